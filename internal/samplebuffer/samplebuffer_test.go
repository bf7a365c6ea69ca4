// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package samplebuffer

import (
	"slices"
	"sync"
	"testing"
)

// box is a buffer of so many numbers.
type box struct {
	limit int
	held  []int
}

func (b *box) Reset()      { b.held = b.held[:0] }
func (b *box) Events() int { return len(b.held) }
func (b *box) add(n int) bool {
	if len(b.held) == b.limit {
		return false
	}
	b.held = append(b.held, n)
	return true
}

// bench is a pair and what its hooks saw.
type bench struct {
	*Pair[*box]
	turns, full, pauses, resumes int
}

func newBench(limit int) *bench {
	b := &bench{}
	b.Pair = New(&box{limit: limit}, &box{limit: limit}, Hooks[*box]{
		Turn:   func(_, _ *box) { b.turns++ },
		Full:   func() { b.full++ },
		Pause:  func() { b.pauses++ },
		Resume: func() { b.resumes++ },
	})
	return b
}

func (b *bench) put(n int) bool {
	for {
		box, ok := b.Borrow()
		if !ok {
			return false
		}
		fitted := box.add(n)
		if !b.Return(fitted) {
			return fitted
		}
	}
}

func TestTakeGivesWhatWasWrittenInOrder(t *testing.T) {
	b := newBench(10)
	for n := range 3 {
		b.put(n)
	}
	got, ok := b.Take()
	if !ok || !slices.Equal(got.held, []int{0, 1, 2}) {
		t.Fatalf("took %v, %v", got, ok)
	}
	b.put(3)
	b.Done()
	got, ok = b.Take()
	if !ok || !slices.Equal(got.held, []int{3}) {
		t.Fatalf("took %v, %v after Done", got, ok)
	}
}

func TestTakeOfNothingMovesTheWindow(t *testing.T) {
	b := newBench(1)
	if got, ok := b.Take(); ok {
		t.Fatalf("took %v of an empty pair", got)
	}
	if b.turns != 1 {
		t.Fatalf("turned %d times, want 1: the empty window ends too", b.turns)
	}
}

func TestFullBufferIsTakenEarly(t *testing.T) {
	b := newBench(2)
	for n := range 3 {
		if !b.put(n) {
			t.Fatalf("%d did not fit, with a free buffer beside", n)
		}
	}
	if b.full != 1 {
		t.Fatalf("Full was called %d times, want 1", b.full)
	}
	got, _ := b.Take()
	if !slices.Equal(got.held, []int{0, 1}) {
		t.Fatalf("took %v, want the full one first", got.held)
	}
}

func TestBothFullPausesOnceAndDoneResumes(t *testing.T) {
	b := newBench(1)
	b.put(0)
	held, _ := b.Take()
	b.put(1)
	for n := 2; n < 5; n++ {
		if b.put(n) {
			t.Fatalf("%d fitted into two full buffers", n)
		}
	}
	if b.pauses != 1 || b.resumes != 0 || !b.Paused() {
		t.Fatalf("paused %d, resumed %d times", b.pauses, b.resumes)
	}
	if _, ok := b.Take(); ok {
		t.Fatal("took a second buffer while the first is out")
	}
	if !slices.Equal(held.held, []int{0}) {
		t.Fatalf("the exporter's buffer changed under it: %v", held.held)
	}
	b.Done()
	if b.resumes != 1 || b.Paused() {
		t.Fatal("a free buffer did not end the pause")
	}
	if !b.put(5) {
		t.Fatal("does not take events after the pause")
	}
	got, _ := b.Take()
	if !slices.Equal(got.held, []int{1}) {
		t.Fatalf("took %v, want what was full at the pause", got.held)
	}
	b.Done()
	got, _ = b.Take()
	if !slices.Equal(got.held, []int{5}) {
		t.Fatalf("took %v, want what came after the pause", got.held)
	}
}

func TestEventTooLargeForAnyBufferIsNoPause(t *testing.T) {
	b := newBench(0)
	if b.put(1) || b.pauses != 0 || b.Paused() {
		t.Fatalf("paused %d times for an event that never fits", b.pauses)
	}
}

func TestConcurrentWritersLoseNothingUncounted(t *testing.T) {
	const writers, each = 4, 5000
	b := newBench(64)
	var wrote, lost [writers]int
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			for n := range each {
				if b.put(n) {
					wrote[w]++
				} else {
					lost[w]++
				}
			}
		})
	}
	stop := make(chan struct{})
	exported := make(chan int)
	go func() {
		n := 0
		for {
			if box, ok := b.Take(); ok {
				n += len(box.held)
				b.Done()
				continue
			}
			select {
			case <-stop:
				exported <- n
				return
			default:
			}
		}
	}()
	wg.Wait()
	close(stop)
	out := <-exported
	in, dropped := 0, 0
	for w := range writers {
		in += wrote[w]
		dropped += lost[w]
	}
	for box, ok := b.Take(); ok; box, ok = b.Take() {
		out += len(box.held)
		b.Done()
	}
	if in != out || in+dropped != writers*each {
		t.Fatalf("wrote %d, exported %d, lost %d of %d", in, out, dropped, writers*each)
	}
}
