// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package buffer

import (
	"slices"
	"sync"
	"testing"

	"github.com/hotprofile/hotprofile/internal/samples"
)

// bench is a Buffer with samples of a single key. It counts the calls of its callbacks.
type bench struct {
	*Buffer
	key                   samples.Key
	full, pauses, resumes int
}

// newBench returns a bench whose batches have room for limit samples.
func newBench(limit int) *bench {
	b := &bench{key: testKey(1)}
	batch := samples.NewBatch(1 << 20)
	for range limit {
		batch.Add(b.key, 1)
	}
	b.Buffer = New(batch.Size(), &fakeClock{now: 100})
	b.OnFull(func() { b.full++ })
	b.OnWake(func() {
		if b.Paused() {
			b.pauses++
		} else {
			b.resumes++
		}
	})
	return b
}

func (b *bench) put(n int) bool { return b.Add(b.key, int64(n)) }

// held returns the numbers in a batch that were added by put.
func held(b *samples.Batch) []int64 { return b.Samples()[0].Times }

func TestTakeGivesWhatWasWrittenInOrder(t *testing.T) {
	b := newBench(10)
	for n := range 3 {
		b.put(n)
	}
	got, ok := b.Take()
	if !ok || !slices.Equal(held(got), []int64{0, 1, 2}) {
		t.Fatalf("took %v, %v", got, ok)
	}
	b.put(3)
	b.Done()
	got, ok = b.Take()
	if !ok || !slices.Equal(held(got), []int64{3}) {
		t.Fatalf("took %v, %v after Done", got, ok)
	}
}

func TestTakeOfNothingMovesTheWindow(t *testing.T) {
	b := newBench(1)
	if got, ok := b.Take(); ok {
		t.Fatalf("took %v of an empty buffer", got)
	}
	if b.Batch() != 1 {
		t.Fatalf("turned %d times, want 1: the empty window ends too", b.Batch())
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
	if !slices.Equal(held(got), []int64{0, 1}) {
		t.Fatalf("took %v, want the full one first", held(got))
	}
}

func TestBothFullPausesOnceAndDoneResumes(t *testing.T) {
	b := newBench(1)
	b.put(0)
	out, _ := b.Take()
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
	if !slices.Equal(held(out), []int64{0}) {
		t.Fatalf("the exporter's buffer changed under it: %v", held(out))
	}
	b.Done()
	if b.resumes != 1 || b.Paused() {
		t.Fatal("a free buffer did not end the pause")
	}
	if !b.put(5) {
		t.Fatal("does not take samples after the pause")
	}
	got, _ := b.Take()
	if !slices.Equal(held(got), []int64{1}) {
		t.Fatalf("took %v, want what was full at the pause", held(got))
	}
	b.Done()
	got, _ = b.Take()
	if !slices.Equal(held(got), []int64{5}) {
		t.Fatalf("took %v, want what came after the pause", held(got))
	}
}

func TestSampleTooLargeForAnyBufferIsNoPause(t *testing.T) {
	b := newBench(0)
	if b.put(1) || b.pauses != 0 || b.Paused() {
		t.Fatalf("paused %d times for a sample that never fits", b.pauses)
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
			if batch, ok := b.Take(); ok {
				n += len(held(batch))
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
	for batch, ok := b.Take(); ok; batch, ok = b.Take() {
		out += len(held(batch))
		b.Done()
	}
	if in != out || in+dropped != writers*each {
		t.Fatalf("wrote %d, exported %d, lost %d of %d", in, out, dropped, writers*each)
	}
}
