// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package samples

import (
	"fmt"
	"slices"
	"testing"
)

func stack(n int) *Stack {
	s := &Stack{}
	for i := range n {
		s.Locations = append(s.Locations, &Location{Address: uint64(i)})
	}
	return s
}

func TestTimesOfOneKeyBecomeOneSample(t *testing.T) {
	r := &Resource{PID: 1}
	a, b := stack(3), stack(4)
	batch := NewBatch(1 << 20)
	for i, s := range []*Stack{a, b, a, a} {
		if !batch.Add(Key{Resource: r, Type: OnCPU, Stack: s}, int64(i)) {
			t.Fatalf("sample %d did not fit", i)
		}
	}
	got := batch.Samples()
	if len(got) != 2 || got[0].Stack != a || got[1].Stack != b {
		t.Fatalf("got %v", got)
	}
	if !slices.Equal(got[0].Times, []int64{0, 2, 3}) || !slices.Equal(got[1].Times, []int64{1}) {
		t.Fatalf("times %v and %v", got[0].Times, got[1].Times)
	}
}

func TestEachPartOfTheKeyTellsSamplesApart(t *testing.T) {
	r, s := &Resource{}, stack(1)
	base := Key{Resource: r, Type: OnCPU, Stack: s}
	for name, k := range map[string]Key{
		"resource":    {Resource: &Resource{PID: 2}, Type: OnCPU, Stack: s},
		"type":        {Resource: r, Type: &Type{}, Stack: s},
		"stack":       {Resource: r, Type: OnCPU, Stack: stack(1)},
		"thread name": {Resource: r, Type: OnCPU, Stack: s, Thread: Thread{Name: "x"}},
		"thread id":   {Resource: r, Type: OnCPU, Stack: s, Thread: Thread{ID: 7}},
		"period":      {Resource: r, Type: OnCPU, Stack: s, Period: 5},
	} {
		batch := NewBatch(1 << 20)
		batch.Add(base, 1)
		batch.Add(k, 2)
		if n := len(batch.Samples()); n != 2 {
			t.Errorf("another %s: %d samples, want 2", name, n)
		}
	}
}

func TestWhatDoesNotFitLeavesNoTrace(t *testing.T) {
	const limit = 64 << 10
	batch := NewBatch(limit)
	r := &Resource{}
	added := 0
	for batch.Add(Key{Resource: r, Type: OnCPU, Stack: stack(20)}, int64(added)) {
		added++
	}
	size, held := batch.Size(), batch.Count()
	if size > limit || held != added {
		t.Fatalf("%d bytes of %d, %d samples of %d", size, limit, held, added)
	}
	if batch.Add(Key{Resource: r, Type: OnCPU, Stack: stack(20)}, 0) {
		t.Fatal("took one more")
	}
	if batch.Size() != size || batch.Count() != held || len(batch.Samples()) != added {
		t.Fatal("a refused sample changed the batch")
	}
}

func TestResetBatchTakesTheSameAgain(t *testing.T) {
	batch := NewBatch(32 << 10)
	fill := func() (n int) {
		for batch.Add(Key{Resource: &Resource{}, Type: OnCPU, Stack: stack(5)}, int64(n)) {
			n++
		}
		return n
	}
	first := fill()
	batch.Reset()
	if batch.Count() != 0 || batch.Size() != 0 || len(batch.Samples()) != 0 {
		t.Fatal("not empty after Reset")
	}
	if again := fill(); again != first {
		t.Fatalf("took %d, and %d after Reset", first, again)
	}
}

func TestSampleOfAKnownStackAllocatesNothing(t *testing.T) {
	batch := NewBatch(1 << 20)
	k := Key{Resource: &Resource{}, Type: OnCPU, Stack: stack(30), Thread: Thread{Name: "worker"}}
	for batch.Add(k, 1) {
	}
	batch.Reset()
	batch.Add(k, 1)
	if n := testing.AllocsPerRun(100, func() { batch.Add(k, 2) }); n != 0 {
		t.Fatalf("%v allocations a sample", n)
	}
}

func BenchmarkAdd(b *testing.B) {
	for _, distinct := range []int{1, 1000} {
		b.Run(fmt.Sprintf("stacks=%d", distinct), func(b *testing.B) {
			keys := make([]Key, distinct)
			for i := range keys {
				keys[i] = Key{Resource: &Resource{}, Type: OnCPU, Stack: stack(30), Thread: Thread{Name: "worker"}}
			}
			batch := NewBatch(16 << 20)
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				if !batch.Add(keys[i%distinct], int64(i)) {
					batch.Reset()
				}
				i++
			}
		})
	}
	b.Run("baseline=map", func(b *testing.B) {
		counts := map[Key]int{}
		k := Key{Resource: &Resource{}, Type: OnCPU, Stack: stack(30), Thread: Thread{Name: "worker"}}
		b.ReportAllocs()
		for b.Loop() {
			counts[k]++
		}
	})
}

func TestValuesStayWithTheirTimes(t *testing.T) {
	r, a, b := &Resource{}, stack(2), stack(2)
	batch := NewBatch(1 << 20)
	for i := range int64(6) {
		s := a
		if i%2 == 1 {
			s = b
		}
		batch.AddValue(Key{Resource: r, Type: DotnetAllocSpace, Stack: s}, i, 100+i)
		batch.Add(Key{Resource: r, Type: OnCPU, Stack: s}, i)
	}
	for range 2 {
		got := batch.Samples()
		if len(got) != 4 || !slices.Equal(got[0].Values, []int64{100, 102, 104}) || got[1].Values != nil || !slices.Equal(got[2].Values, []int64{101, 103, 105}) {
			t.Fatalf("%v", got)
		}
	}
	batch.Reset()
	if batch.AddValue(Key{Resource: r, Type: DotnetAllocSpace, Stack: a}, 1, 7); !slices.Equal(batch.Samples()[0].Values, []int64{7}) {
		t.Fatal("values of before Reset")
	}
}

func TestTheKeyTellsWhatIsSentApart(t *testing.T) {
	r, s := &Resource{}, stack(1)
	base := Key{Resource: r, Type: DotnetThreads, Stack: s}
	for name, change := range map[string]func(*Key){
		"link":     func(k *Key) { k.Link.SpanID[0] = 1 },
		"selected": func(k *Key) { k.Selected = true },
		"type":     func(k *Key) { k.AllocType = "T" },
	} {
		k := base
		change(&k)
		batch := NewBatch(1 << 20)
		batch.Add(base, 1)
		batch.Add(k, 2)
		if n := len(batch.Samples()); n != 2 {
			t.Errorf("another %s: %d samples, want 2", name, n)
		}
	}
}

// TestWhatIsSentCountsInFull checks that the batch counts the size of each name and each
// resource once. Only the size of the batch limits the samples that other programs send.
func TestWhatIsSentCountsInFull(t *testing.T) {
	batch := NewBatch(1 << 20)
	long := string(make([]byte, 10_000))
	l := &Location{Lines: []Line{{Function: long}}}
	r := &Resource{Attributes: []Attribute{{Key: "k", Value: long}}}
	add := func(r *Resource, s *Stack) int {
		before := batch.Size()
		if !batch.Add(Key{Resource: r, Type: DotnetThreads, Stack: s}, 1) {
			t.Fatal("full")
		}
		return batch.Size() - before
	}
	if n := add(r, &Stack{Locations: []*Location{l}}); n < 20_000 {
		t.Fatalf("%d bytes", n)
	}
	if n := add(r, &Stack{Locations: []*Location{l}}); n > 1000 {
		t.Fatalf("%d bytes for names and a resource that are there", n)
	}
	if n := add(&Resource{Attributes: r.Attributes}, &Stack{Locations: []*Location{{Lines: l.Lines}}}); n < 20_000 {
		t.Fatalf("%d bytes of others", n)
	}
	batch.Reset()
	if n := add(r, &Stack{Locations: []*Location{l}}); n < 20_000 {
		t.Fatalf("%d bytes after Reset", n)
	}
}

func TestTwoSamplesFitBothOrNeither(t *testing.T) {
	k := Key{Resource: &Resource{}, Type: AllocObjects, Stack: stack(9)}
	other := k
	other.Type = AllocSpace
	exactly := NewBatch(1 << 20)
	exactly.AddValue(k, 1, 2)
	exactly.AddValue(other, 1, 2)
	batch := NewBatch(exactly.Size())
	if !batch.AddBoth(k, other, 1, 2, 3) || batch.Size() != batch.limit {
		t.Fatalf("%d bytes of %d", batch.Size(), batch.limit)
	}
	if batch.AddBoth(k, other, 1, 2, 3) || batch.Count() != 2 {
		t.Fatal("took two more")
	}
	batch = NewBatch(exactly.Size() - 1)
	if batch.AddBoth(k, other, 1, 2, 3) || batch.Count() != 0 || batch.Size() != 0 {
		t.Fatal("took one of two")
	}
}
