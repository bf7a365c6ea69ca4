// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package samples

import (
	"iter"
	"unsafe"
)

// Key is what the events of one Sample have in common. Pointers are compared
// by identity: samplers intern what they point to.
type Key struct {
	Resource *Resource
	Type     *Type
	Stack    *Stack
	Thread   Thread
	// Period is the sampling period in the unit of Type; samples taken with
	// different periods end up in different profiles.
	Period int64
}

// event is one thing that happened, to the sample at index.
type event struct {
	time   int64
	sample int32
}

// Batch is what was sampled in one capture window, bounded by Limit bytes. It
// is used again after Reset, with the memory it has. Not safe for concurrent
// use.
type Batch struct {
	// Start and End are the capture window in nanoseconds since the Unix epoch:
	// every event lies in [Start, End).
	Start, End int64

	limit   int
	size    int
	index   map[Key]int32
	samples []Key
	counts  []int32
	events  []event
	stacks  map[*Stack]struct{}
}

const (
	eventSize    = int(unsafe.Sizeof(event{}))
	sampleSize   = 2*int(unsafe.Sizeof(Key{})) + 16 // in samples and in index
	stackSize    = int(unsafe.Sizeof(Stack{})) + 16
	locationSize = int(unsafe.Sizeof(Location{})) + int(unsafe.Sizeof(uintptr(0)))
)

// NewBatch returns an empty batch that takes up to limit bytes.
func NewBatch(limit int) *Batch {
	return &Batch{
		limit:  limit,
		index:  make(map[Key]int32),
		stacks: make(map[*Stack]struct{}),
	}
}

// Add counts one event at time (nanoseconds since the Unix epoch) and reports
// whether it fitted. What did not fit left no trace.
func (b *Batch) Add(k Key, time int64) bool {
	i, seen := b.index[k]
	need := eventSize
	newStack := false
	if !seen {
		need += sampleSize + len(k.Thread.Name)
		if _, ok := b.stacks[k.Stack]; !ok {
			newStack = true
			need += stackSize + len(k.Stack.Locations)*locationSize
		}
	}
	if b.size+need > b.limit {
		return false
	}
	b.size += need
	if newStack {
		b.stacks[k.Stack] = struct{}{}
	}
	if !seen {
		i = int32(len(b.samples))
		b.index[k] = i
		b.samples = append(b.samples, k)
		b.counts = append(b.counts, 0)
	}
	b.counts[i]++
	b.events = append(b.events, event{time: time, sample: i})
	return true
}

// Size is the bytes held, Limit the most that may be.
func (b *Batch) Size() int { return b.size }

// Limit is the size at which Add refuses.
func (b *Batch) Limit() int { return b.limit }

// Events is the number of events held.
func (b *Batch) Events() int { return len(b.events) }

// Reset empties the batch and keeps its memory for the next window.
func (b *Batch) Reset() {
	clear(b.index)
	clear(b.stacks)
	clear(b.samples) // lets go of processes that are gone
	b.samples = b.samples[:0]
	b.counts = b.counts[:0]
	b.events = b.events[:0]
	b.size = 0
	b.Start, b.End = 0, 0
}

// Keys yields each key with the number of its events, in order of first use.
func (b *Batch) Keys() iter.Seq2[Key, int] {
	return func(yield func(Key, int) bool) {
		for i, k := range b.samples {
			if !yield(k, int(b.counts[i])) {
				return
			}
		}
	}
}

// Sample is one key and the times of its events, in the order they were added.
type Sample struct {
	Key
	Times []int64
}

// Samples groups the events by key, keys in order of first use.
func (b *Batch) Samples() []Sample {
	times := make([]int64, len(b.events))
	out := make([]Sample, len(b.samples))
	next := 0
	for i, k := range b.samples {
		n := int(b.counts[i])
		out[i] = Sample{Key: k, Times: times[next : next : next+n]}
		next += n
	}
	for _, e := range b.events {
		out[e.sample].Times = append(out[e.sample].Times, e.time)
	}
	return out
}
