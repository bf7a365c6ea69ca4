// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package buffer holds samples between the samplers and the emitter, in two batches that
// swap roles. Each batch has a capture window.
//
// Samplers write to the active batch. The other batch is free or is being emitted. A full
// active batch is swapped with a free batch at once. If no batch is free, sampling pauses
// until the emitter calls Done. Memory therefore stays bounded, and samplers never wait.
package buffer

import (
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hotprofile/hotprofile/internal/bytesize"
	"github.com/hotprofile/hotprofile/internal/perfevent"
	"github.com/hotprofile/hotprofile/internal/samples"
	"github.com/hotprofile/hotprofile/internal/token"
)

// Clock returns the time of samples and the offset to wall-clock time.
type Clock interface {
	// Monotonic returns the current time of the clock that timestamps samples, in
	// nanoseconds.
	Monotonic() int64
	// Offset returns Unix time minus Monotonic, in nanoseconds.
	Offset() int64
}

// SystemClock is the clock that timestamps perf records.
type SystemClock struct{}

// Monotonic implements Clock.
func (SystemClock) Monotonic() int64 { return time.Now().UnixNano() - perfevent.ClockOffset() }

// Offset implements Clock.
func (SystemClock) Offset() int64 { return perfevent.ClockOffset() }

// Idle is the position of a sampler that is not sampling. Settle does not wait for such a
// sampler.
const Idle = int64(math.MaxInt64)

// Buffer holds samples. It is safe for concurrent use.
//
// A batch's capture window ends at the time up to which the samplers have read, not when
// the batch is taken. Events that are still in a ring at that time belong to the next
// batch, whose window begins where this window ends. Windows therefore have no gaps and
// do not overlap, and every sample lies in the capture window of its batch. Settle waits
// for the slowest sampler, because some samplers have read further than others.
type Buffer struct {
	clock Clock
	size  int
	// wakes are the functions that OnWake has registered.
	wakes []func()
	// lost is called for each sample that was accepted but did not fit into a batch.
	lost func(*samples.Type)
	// full is called when a full batch is ready to be taken.
	full func()
	// unheld is called for each sample that does not fit into starting.
	unheld func()

	// paused is true while active is full and other is not free. It is written only
	// while mu is locked.
	paused atomic.Bool
	// batches is the number of batches that have been active.
	batches atomic.Uint64
	// read is the monotonic time up to which the sampler of running threads has read.
	// others contains the positions of the other samplers.
	read   atomic.Int64
	others []*Position
	// closing is the end time of the last batch that Settle closed, on the monotonic clock.
	closing atomic.Int64
	// moved receives a token whenever a position changes.
	moved chan struct{}

	// mu guards the fields below. pause, resume and turnFull call registered functions
	// while mu is locked.
	mu sync.Mutex

	active, other *samples.Batch
	// emitting is true if other has been taken. pending is true if other is full and ready
	// to be taken. emitting and pending are never both true.
	emitting, pending bool
	// offset is Unix time minus monotonic time for the samples of the active batch. It is
	// measured once per batch, so that a change of the wall clock does not split a batch.
	offset int64
	// last is the Unix time of the latest sample in the active batch.
	last int64
	// until is the end of the active batch on the monotonic clock. It is 0 unless the batch
	// is about to be taken. held contains later samples, which go into the next batch.
	until int64
	held  []heldSample
	// starting contains samples of programs that are still starting. The samples wait until
	// their resources are known.
	starting []heldSample
	// refused is the monotonic time of the last sample that did not fit.
	refused int64
	// pausedAt is the monotonic time of the sample that did not fit when sampling paused.
	// It is 0 while sampling is not paused.
	pausedAt int64
}

// MinSize and MaxSize limit the configured size of a buffer. MinSize is well above
// the size of the deepest stack.
const (
	MinSize = 64 * bytesize.KiB
	MaxSize = bytesize.GiB
)

// heldSample is a sample for a later batch. other is the second sample of AddBoth. It is
// nil for a single sample.
type heldSample struct {
	samples.Key
	time, value int64
	other       *samples.Key
	otherValue  int64
}

// final replaces the resource of a sample by the final resource of its program. It
// returns false if the program is still starting, so that the final resource is not known
// yet.
func final(k *samples.Key) bool {
	r := k.Resource.Final()
	if r == nil {
		return false
	}
	k.Resource = r
	return true
}

// maxHeld is the maximum number of samples in held, and also in starting. Further samples
// go into the active batch with their current resource. If held is full, the window of
// the active batch overlaps the next window.
const maxHeld = 4096

// New returns an empty buffer of two batches of at most size bytes each.
func New(size int, c Clock) *Buffer {
	b := &Buffer{
		clock: c, size: size, lost: func(*samples.Type) {}, full: func() {}, unheld: func() {}, offset: c.Offset(), moved: make(chan struct{}, 1),
		active: samples.NewBatch(size), other: samples.NewBatch(size),
	}
	b.read.Store(c.Monotonic())
	b.active.Start, b.active.Offset = b.read.Load()+b.offset, b.offset
	return b
}

// OnWake registers a function that is called when sampling must pause, when it can resume,
// and when a batch is about to be taken. The function must not block. Call OnWake, OnLost
// and OnFull before the first sample.
func (b *Buffer) OnWake(wake func()) { b.wakes = append(b.wakes, wake) }

// OnLost registers the function that counts samples that were accepted but did not fit into
// a batch.
func (b *Buffer) OnLost(lost func(*samples.Type)) { b.lost = lost }

// OnFull registers the function that is called when a full batch is ready to be taken. The
// function must not block.
func (b *Buffer) OnFull(full func()) { b.full = full }

// OnUnheld registers a function for samples of starting programs. The function is called
// for each sample that cannot be held, because maxHeld samples are already held. Such a
// sample keeps its current resource.
func (b *Buffer) OnUnheld(unheld func()) { b.unheld = unheld }

func (b *Buffer) wake() {
	for _, wake := range b.wakes {
		wake()
	}
}

// AddValue adds a sample with its time on the monotonic clock, and with a value if the type
// is Valued. It returns false if both batches are full. The sample is then lost.
func (b *Buffer) AddValue(k samples.Key, time, value int64) bool {
	return b.put(func(batch *samples.Batch) bool {
		if !final(&k) && b.hold(heldSample{Key: k, time: time, value: value}) {
			return true
		}
		if b.until > 0 && time >= b.until && len(b.held) < maxHeld {
			b.held = append(b.held, heldSample{Key: k, time: time, value: value})
			return true
		}
		return b.widen(batch, time, batch.AddValue(k, time+b.offset, value))
	})
}

// AddBoth adds an allocation as two samples, one for the number of objects and one for
// the bytes. It adds both samples or neither. Samples after the end of the active batch
// are not held for the next batch, because a buffer of allocations has a single writer.
func (b *Buffer) AddBoth(objects, space samples.Key, time, count, bytes int64) bool {
	return b.put(func(batch *samples.Batch) bool {
		if !final(&objects) {
			other := space
			if b.hold(heldSample{Key: objects, time: time, value: count, other: &other, otherValue: bytes}) {
				return true
			}
		}
		space.Resource = objects.Resource
		return b.widen(batch, time, batch.AddBoth(objects, space, time+b.offset, count, bytes))
	})
}

// AddSent adds a sample that another process sent (see Type.Sent). unixNano is the Unix
// time of the sample in nanoseconds. The value is optional. AddSent does not widen the
// capture window, which covers only samples of this host's samplers.
func (b *Buffer) AddSent(k samples.Key, unixNano, value int64) bool {
	return b.put(func(batch *samples.Batch) bool {
		fitted := batch.AddValue(k, unixNano, value)
		if !fitted {
			// If sampling pauses at this sample, the window ends at the time up to which all
			// samplers have read.
			b.refused = b.readUpTo()
		}
		return fitted
	})
}

// put calls add with the active batch. If the sample does not fit, put calls add again
// with the other batch. put returns false if both batches are full, or if the sample does
// not fit even into an empty batch.
func (b *Buffer) put(add func(*samples.Batch) (fitted bool)) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	for !b.paused.Load() {
		if add(b.active) {
			return true
		}
		if b.active.Count() == 0 {
			return false
		}
		if b.emitting || b.pending {
			b.pause()
			return false
		}
		b.turnFull()
	}
	return false
}

// widen extends the batch's capture window to include a sample that was added. If the
// sample did not fit, widen only records the time of the sample.
func (b *Buffer) widen(batch *samples.Batch, time int64, fitted bool) bool {
	if !fitted {
		b.refused = time
		return false
	}
	// Rings of several CPUs are merged by time only within one read, so a sample may be
	// slightly older than the last sample of the previous batch. The sample keeps its
	// time, and the window is widened instead.
	t := time + b.offset
	batch.Start = min(batch.Start, t)
	b.last = max(b.last, t)
	return true
}

// KernelLost adds n to the lost samples of a type's sampler, in the active batch. It
// ignores n while both batches are full, because no capture window is open then.
func (b *Buffer) KernelLost(t *samples.Type, n uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.paused.Load() {
		b.active.AddLost(t, n)
	}
}

// ReadUpTo sets the position of the sampler of running threads. All samples before time,
// which is on the monotonic clock, must have been added or lost.
func (b *Buffer) ReadUpTo(time int64) {
	b.read.Store(time)
	b.signal()
}

// Position gives a further sampler access to the buffer. The sampler has its own
// position.
type Position struct {
	*Buffer
	read atomic.Int64
}

// NewPosition adds another sampler to the buffer. Call it before the first sample.
func (b *Buffer) NewPosition() *Position {
	p := &Position{Buffer: b}
	p.read.Store(Idle)
	b.others = append(b.others, p)
	return p
}

// ReadUpTo sets the position of this sampler.
func (p *Position) ReadUpTo(time int64) {
	p.read.Store(time)
	p.signal()
}

func (b *Buffer) signal() { token.Put(b.moved) }

// readUpTo returns the time up to which all samplers have read.
func (b *Buffer) readUpTo() int64 {
	at := b.read.Load()
	for _, p := range b.others {
		at = min(at, p.read.Load())
	}
	if at == Idle {
		return b.clock.Monotonic()
	}
	return at
}

// Settle ends the active batch at the current time. It makes samplers add their waits in
// progress, and blocks until all samplers have read up to this time. Later samples are
// held for the next batch until Take. Settle blocks for at most limit, and returns at
// once if no sampler is sampling.
func (b *Buffer) Settle(limit time.Duration) {
	b.mu.Lock()
	if b.paused.Load() { // both batches are full
		b.mu.Unlock()
		return
	}
	now := b.clock.Monotonic()
	b.until = now
	b.mu.Unlock()
	b.closing.Store(now)
	b.wake()
	late := time.NewTimer(limit)
	defer late.Stop()
	for b.readUpTo() < now {
		select {
		case <-b.moved:
		case <-late.C:
			return
		}
	}
}

// Take returns a batch to emit. If no batch is full, Take returns the active batch and
// makes the empty batch active. ok is false if there is no sample to emit, or if Done has
// not been called for the last batch.
func (b *Buffer) Take() (batch *samples.Batch, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.paused.Load() {
		b.takeStarting(b.active)
	}
	switch {
	case b.emitting:
	case b.pending:
		ok = true
	case b.active.Count() == 0:
		b.begin(b.active)
	default:
		b.turn()
		ok = true
	}
	if !b.paused.Load() {
		b.takeHeld(b.active) // for a batch that stays active after Settle
	}
	if !ok {
		return nil, false
	}
	b.emitting, b.pending = true, false
	return b.other, true
}

// Done frees the batch that Take returned. Until then, the batch counts as full.
func (b *Buffer) Done() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.other.Reset()
	b.emitting = false
	if b.paused.Load() {
		b.turnFull()
		b.resume()
	}
}

// takeHeld adds the held samples to a batch.
func (b *Buffer) takeHeld(to *samples.Batch) {
	for i := range b.held {
		b.addHeld(to, &b.held[i])
	}
	clear(b.held)
	b.held, b.until = b.held[:0], 0
}

// addHeld adds a held sample to a batch.
func (b *Buffer) addHeld(to *samples.Batch, h *heldSample) {
	t := h.time + b.offset
	fitted := false
	if h.other == nil {
		fitted = to.AddValue(h.Key, t, h.value)
	} else {
		h.other.Resource = h.Resource
		fitted = to.AddBoth(h.Key, *h.other, t, h.value, h.otherValue)
	}
	if !fitted {
		b.lost(h.Type)
		return
	}
	b.last = max(b.last, t)
}

// hold holds a sample of a program that is starting. It returns false if starting is full.
func (b *Buffer) hold(h heldSample) bool {
	if len(b.starting) >= maxHeld {
		b.unheld()
		return false
	}
	b.starting = append(b.starting, h)
	return true
}

// takeStarting moves the samples in b.starting whose resources are now known to a
// batch.
func (b *Buffer) takeStarting(to *samples.Batch) {
	left := b.starting[:0]
	for i := range b.starting {
		h := &b.starting[i]
		if final(&h.Key) {
			b.addHeld(to, h)
		} else {
			left = append(left, *h)
		}
	}
	clear(b.starting[len(left):])
	b.starting = left
}

// Closing returns the time up to which samplers must add their waits in progress. This
// time changes whenever a batch is about to be taken.
func (b *Buffer) Closing() int64 { return b.closing.Load() }

// Paused reports whether sampling must pause because both batches are full.
func (b *Buffer) Paused() bool { return b.paused.Load() }

// Batch returns the number of batches that have been active.
func (b *Buffer) Batch() uint64 { return b.batches.Load() }

// Usage returns the number of bytes in the active batch. While both batches are full, it
// returns the size of a batch.
func (b *Buffer) Usage() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.paused.Load() {
		return b.size
	}
	return b.active.Size()
}

// turn makes the other batch active.
func (b *Buffer) turn() {
	b.active, b.other = b.other, b.active
	b.begin(b.other)
}

// turnFull is like turn, for an active batch that filled up before it was taken.
func (b *Buffer) turnFull() {
	b.turn()
	b.pending = true
	b.full()
}

// begin ends the capture window of filled and begins the window of the active batch. If
// there was no sample to emit, filled is the active batch itself.
func (b *Buffer) begin(filled *samples.Batch) {
	next := b.active
	end := b.readUpTo()
	if b.until > 0 {
		end = min(end, b.until)
	}
	if b.pausedAt != 0 {
		end = b.pausedAt // no sample has been captured since
	}
	filled.End = max(end+b.offset, b.last+1, filled.Start+1)
	start := filled.End
	offset := b.clock.Offset()
	if b.pausedAt != 0 {
		start = b.clock.Monotonic() + b.offset
	}
	if filled == next {
		next.Reset() // losses in a window without samples are dropped, because the window is not emitted
	}
	next.Start = start + offset - b.offset
	next.End, next.Offset = 0, offset
	b.batches.Add(1)
	b.offset, b.last = offset, 0
	b.takeHeld(next)
}

// pause ends the capture window at the sample that did not fit. Later samples in the rings
// are lost as well.
func (b *Buffer) pause() {
	b.pausedAt = b.refused
	b.paused.Store(true)
	b.wake()
}

func (b *Buffer) resume() {
	b.pausedAt = 0
	b.paused.Store(false)
	b.wake()
}
