// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package buffer holds samples between the samplers and the emitter, in two batches that
// swap places. Each batch has a capture window.
//
// Samplers write to the active batch. The other batch is free or being emitted. A full
// active batch is swapped with a free batch at once. Without a free batch sampling pauses
// until the emitter calls Done. So memory stays bounded and no sampler waits.
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

// Clock returns the time of samples and its difference to wall-clock time.
type Clock interface {
	// Monotonic returns the time of the clock that samples are stamped with, in
	// nanoseconds.
	Monotonic() int64
	// Offset returns the difference between Unix time and Monotonic, in nanoseconds.
	Offset() int64
}

// SystemClock is the clock of perf records.
type SystemClock struct{}

// Monotonic implements Clock, as does Offset.
func (SystemClock) Monotonic() int64 { return time.Now().UnixNano() - perfevent.ClockOffset() }

// Offset implements Clock.
func (SystemClock) Offset() int64 { return perfevent.ClockOffset() }

// Idle is the position of a sampler that does not sample, so that Settle does not wait for
// it.
const Idle = int64(math.MaxInt64)

// Buffer holds samples. It is safe for concurrent use.
//
// A batch's capture window ends at the time up to which the samplers have read, not when
// the batch is taken. Earlier events that are still unread in a ring belong to the next
// batch, and its window begins at the same time. So windows neither overlap nor leave a
// gap, and every sample lies in the capture window of its batch. Some samplers will have
// read further than others, see Settle.
type Buffer struct {
	clock Clock
	size  int
	// wakes are called when sampling has to pause or may resume.
	wakes []func()
	// lost is called for a sample that was accepted and then found no room.
	lost func(*samples.Type)
	// full is called when a full batch waits to be taken.
	full func()
	// unheld is called for a sample at maxHeld of starting.
	unheld func()

	// paused is true while active is full and other is not free. It changes under mu.
	paused atomic.Bool
	// batches is the number of batches that have been active.
	batches atomic.Uint64
	// read is the position of the sampler of running threads on the monotonic clock. others
	// are the positions of the other samplers.
	read   atomic.Int64
	others []*Position
	// closing is the last time at which a batch was about to be taken.
	closing atomic.Int64
	// moved receives a token when a position has changed.
	moved chan struct{}

	// mu guards the fields below. pause, resume and full call functions of others with mu
	// locked.
	mu sync.Mutex

	active, other *samples.Batch
	// emitting reports that other was taken. pending reports that other is full and waits
	// to be taken. Only one of them is true.
	emitting, pending bool
	// offset is the difference between the Unix times and monotonic times of the active
	// batch's samples. It is measured once per batch, so that setting the wall clock does
	// not tear a batch apart.
	offset int64
	// last is the time of the active batch's latest sample, in Unix time.
	last int64
	// until is the end of the active batch on the monotonic clock, or 0 unless the batch is
	// about to be taken. held are samples after until, for the next batch.
	until int64
	held  []heldSample
	// starting are samples of programs that were being started. They wait until their
	// resources are known.
	starting []heldSample
	// refused is the time of the last sample that did not fit, on the monotonic clock.
	refused int64
	// pausedAt is the time of the sample that did not fit when sampling paused, on the
	// monotonic clock. It is 0 while sampling is not paused.
	pausedAt int64
}

// MinSize and MaxSize bound the configured size of a buffer. MinSize is well above the size
// of the deepest stack.
const (
	MinSize = 64 * bytesize.KiB
	MaxSize = bytesize.GiB
)

// heldSample is a sample for a later batch. other is the second sample of AddBoth and may
// be nil.
type heldSample struct {
	samples.Key
	time, value int64
	other       *samples.Key
	otherValue  int64
}

// final replaces the resource of a program that was being started. It returns false if the
// final resource is not known yet.
func final(k *samples.Key) bool {
	r := k.Resource.Final()
	if r == nil {
		return false
	}
	k.Resource = r
	return true
}

// maxHeld bounds held and starting. Above it, samples go into the batch that is about to be
// taken and keep their current resource. The window of that batch then overlaps the next
// one.
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

// OnWake registers a function that is called when sampling has to pause or may
// resume, and when a batch is about to be taken. It must not block. Call OnWake,
// OnLost and OnFull before the first sample.
func (b *Buffer) OnWake(wake func()) { b.wakes = append(b.wakes, wake) }

// OnLost registers the function that counts a sample that was accepted and then
// found no room.
func (b *Buffer) OnLost(lost func(*samples.Type)) { b.lost = lost }

// OnFull registers the function that is called when a full batch waits to be taken.
// It must not block.
func (b *Buffer) OnFull(full func()) { b.full = full }

// OnUnheld registers a function that counts samples of starting programs beyond maxHeld.
// Such samples are added with their current resource.
func (b *Buffer) OnUnheld(unheld func()) { b.unheld = unheld }

func (b *Buffer) wake() {
	for _, wake := range b.wakes {
		wake()
	}
}

// Add adds a sample that was taken at time on the monotonic clock. It returns false if both
// batches are full. The sample is lost then.
func (b *Buffer) Add(k samples.Key, time int64) bool { return b.AddValue(k, time, 0) }

// AddValue is Add for a type that is Valued.
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

// AddBoth adds an allocation as two samples, its count and its bytes, or neither. It does
// not hold samples for the next batch, because a buffer of allocations has a single writer.
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

// AddSent adds a sample of a type that is Sent, with its time in nanoseconds since the Unix
// epoch and an optional value. It does not widen the window, which covers only samples of
// this host's samplers.
func (b *Buffer) AddSent(k samples.Key, unixNano, value int64) bool {
	return b.put(func(batch *samples.Batch) bool {
		fitted := batch.AddValue(k, unixNano, value)
		if !fitted {
			// If sampling pauses for this sample, everything read so far was captured.
			b.refused = b.readUpTo()
		}
		return fitted
	})
}

// put calls add with the active batch, and again with the other one if the sample
// did not fit. It returns false if both batches are full, or if the sample does not
// fit even an empty one.
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

// widen extends the batch's capture window to a sample that fitted. If the sample did not
// fit, widen records its time.
func (b *Buffer) widen(batch *samples.Batch, time int64, fitted bool) bool {
	if !fitted {
		b.refused = time
		return false
	}
	// Rings of several CPUs are merged by time only within one read, so a sample may be
	// slightly older than the last sample of the previous batch. The window is widened and
	// the sample keeps its time.
	t := time + b.offset
	batch.Start = min(batch.Start, t)
	b.last = max(b.last, t)
	return true
}

// KernelLost adds n to the lost samples of a type's sampler in the active batch's capture
// window. While both batches are full it ignores n, because no window is open then.
func (b *Buffer) KernelLost(t *samples.Type, n uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.paused.Load() {
		b.active.AddLost(t, n)
	}
}

// ReadUpTo sets the position of the sampler of running threads. Every sample before time,
// on the monotonic clock, has been added or was lost.
func (b *Buffer) ReadUpTo(time int64) {
	b.read.Store(time)
	b.signal()
}

// Position is the buffer of another sampler, with a position of its own.
type Position struct {
	*Buffer
	read atomic.Int64
}

// NewPosition returns the buffer for one more sampler. Call it before the first
// sample.
func (b *Buffer) NewPosition() *Position {
	p := &Position{Buffer: b}
	p.read.Store(Idle)
	b.others = append(b.others, p)
	return p
}

// ReadUpTo sets this sampler's position.
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

// Settle makes samplers add their waits in progress, and waits until all samplers have read
// up to now. The next batch then ends now. Samples after that time are held for the next
// batch until Take. Settle waits at most limit, and returns at once while no sampler
// samples.
func (b *Buffer) Settle(limit time.Duration) {
	now, ok := b.close()
	if !ok {
		return
	}
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

// close makes the active batch end now. ok is false if both batches are full.
func (b *Buffer) close() (now int64, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.paused.Load() {
		return 0, false
	}
	b.until = b.clock.Monotonic()
	return b.until, true
}

// Take returns a batch to emit. It is the full batch, or else the active batch, which the
// empty one replaces. ok is false if there is no sample to emit, or before Done was called
// for the last batch.
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
		b.takeHeld(b.active) // ends the Settle, if no batch has been taken since
	}
	if !ok {
		return nil, false
	}
	b.emitting, b.pending = true, false
	return b.other, true
}

// Done returns the batch of Take to the buffer. Until then it counts as full.
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

// hold holds a sample of a program that is being started. It returns false at the
// bound.
func (b *Buffer) hold(h heldSample) bool {
	if len(b.starting) >= maxHeld {
		b.unheld()
		return false
	}
	b.starting = append(b.starting, h)
	return true
}

// takeStarting adds samples of programs that were being started to a batch, if their
// resources are known now.
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

// Closing returns the time up to which waits in progress have to be added. It changes each
// time a batch is about to be taken.
func (b *Buffer) Closing() int64 { return b.closing.Load() }

// Paused reports whether sampling has to pause because both batches are full.
func (b *Buffer) Paused() bool { return b.paused.Load() }

// Batch returns the number of batches that have been active.
func (b *Buffer) Batch() uint64 { return b.batches.Load() }

// Usage returns the bytes held in the active batch.
func (b *Buffer) Usage() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.paused.Load() {
		return b.size
	}
	return b.active.Size()
}

// turn makes the other batch the active one.
func (b *Buffer) turn() {
	b.active, b.other = b.other, b.active
	b.begin(b.other)
}

// turnFull is turn for an active batch that is full before it was taken.
func (b *Buffer) turnFull() {
	b.turn()
	b.pending = true
	b.full()
}

// begin ends the capture window of filled and begins the window of the active batch. Both
// are the same batch if there was no sample to emit.
func (b *Buffer) begin(filled *samples.Batch) {
	next := b.active
	end := b.readUpTo()
	if b.until > 0 {
		end = min(end, b.until)
	}
	if b.pausedAt != 0 {
		end = b.pausedAt // no sample was captured since
	}
	filled.End = max(end+b.offset, b.last+1, filled.Start+1)
	start := filled.End
	offset := b.clock.Offset()
	if b.pausedAt != 0 {
		start = b.clock.Monotonic() + b.offset
	}
	if filled == next {
		next.Reset() // losses in a capture window without samples, which is not emitted
	}
	next.Start = start + offset - b.offset
	next.End, next.Offset = 0, offset
	b.batches.Add(1)
	b.offset, b.last = offset, 0
	b.takeHeld(next)
}

// pause ends the capture window at the sample that did not fit. Later samples in the rings
// are lost too.
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
