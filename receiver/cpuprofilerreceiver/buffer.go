// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package cpuprofilerreceiver

import (
	"math"
	"sync/atomic"
	"time"

	"github.com/hotprofile/hotprofile/internal/samplebuffer"
	"github.com/hotprofile/hotprofile/internal/samples"
)

// clock tells the time of the wall and how it relates to the clock of samples.
type clock interface {
	// Monotonic is the clock that samples are stamped with, in nanoseconds.
	Monotonic() int64
	// Offset is what to add to it for nanoseconds since the Unix epoch.
	Offset() int64
}

// buffer is where samplers put their samples: the two batches, and the capture
// window that each of them has.
//
// A batch's window ends where the samplers have read up to, not when the batch
// is taken: what happened before that and still lies unread in a ring belongs
// into the next batch, whose window begins there. So windows neither overlap nor
// leave a hole, and every event lies in the window of its batch. Of several
// samplers one will have read further than another by then: see settle.
type buffer struct {
	clock clock
	pair  *samplebuffer.Pair[*samples.Batch]
	// wake is called when sampling has to be paused or may go on; it must not
	// block.
	wake func()

	paused atomic.Bool
	// batches counts the batches that have been active.
	batches atomic.Uint64
	// read is how far the sampler of running threads has read, on the monotonic
	// clock, others how far others have; attach.Idle while they have nothing to.
	read   atomic.Int64
	others []*position
	// closing is when a batch was about to be taken last.
	closing atomic.Int64
	// moved gets a token when one of others has read on.
	moved chan struct{}

	// lost is told of an event that was taken and then found no room.
	lost func(*samples.Type)

	// What follows is guarded by the pair's lock: it changes while a batch is
	// borrowed and in the hooks.

	// offset makes monotonic times of the active batch's events Unix times. It is
	// measured once per batch, so that a clock that is set while one fills does
	// not tear it apart.
	offset int64
	// last is the latest event of the active batch, in Unix time.
	last int64
	// until is where the active batch is to end, on the monotonic clock, once it is
	// about to be taken; 0 before. held are the events from then on, which are the
	// next one's.
	until int64
	held  []heldEvent
	// refused is the time of the event that did not fit last, on the monotonic
	// clock.
	refused int64
	// pausedAt is the time of the event that sampling was paused for, on the
	// monotonic clock; 0 while it is not.
	pausedAt int64
}

// heldEvent is one that is for the next batch.
type heldEvent struct {
	samples.Key
	time, value int64
}

// maxHeld bounds the events that are held. At the bound they go into the batch
// that is about to be taken, whose window then reaches into the next one's.
const maxHeld = 4096

func newBuffer(size int, c clock, wake func()) *buffer {
	b := &buffer{clock: c, wake: wake, lost: func(*samples.Type) {}, offset: c.Offset(), moved: make(chan struct{}, 1)}
	b.read.Store(c.Monotonic())
	first := samples.NewBatch(size)
	first.Start = b.read.Load() + b.offset
	b.pair = samplebuffer.New(first, samples.NewBatch(size), samplebuffer.Hooks[*samples.Batch]{
		Turn:   b.turn,
		Pause:  b.pause,
		Resume: b.resume,
	})
	return b
}

// Add takes an event that happened at time on the monotonic clock. It reports
// false where both buffers are full: the event is lost.
func (b *buffer) Add(k samples.Key, time int64) bool { return b.AddValue(k, time, 0) }

// AddValue is Add for a type that is Valued.
func (b *buffer) AddValue(k samples.Key, time, value int64) bool {
	return b.put(func(batch *samples.Batch) bool {
		if b.until > 0 && time >= b.until && len(b.held) < maxHeld {
			b.held = append(b.held, heldEvent{k, time, value})
			return true
		}
		return b.widen(batch, time, batch.AddValue(k, time+b.offset, value))
	})
}

// AddSent takes an event of a type that is Sent, with its time in nanoseconds
// since the Unix epoch and its value, where it has one. It does not touch the
// window, which is that of what was sampled here.
func (b *buffer) AddSent(k samples.Key, unixNano, value int64) bool {
	return b.put(func(batch *samples.Batch) bool {
		fitted := batch.AddValue(k, unixNano, value)
		if !fitted {
			// Should sampling be paused for it, what was read until now was captured.
			b.refused = b.readUpTo()
		}
		return fitted
	})
}

// put has add put something into the active batch, and into the other one where
// it did not fit. It reports false where both buffers are full.
func (b *buffer) put(add func(*samples.Batch) (fitted bool)) bool {
	for retry := true; retry; {
		batch, ok := b.pair.Borrow()
		if !ok {
			return false
		}
		fitted := add(batch)
		retry = b.pair.Return(fitted)
		if fitted {
			return true
		}
	}
	return false
}

// widen has the batch's window hold an event that fitted, and remembers the time
// of one that did not.
func (b *buffer) widen(batch *samples.Batch, time int64, fitted bool) bool {
	if !fitted {
		b.refused = time
		return false
	}
	// Rings of several CPUs are merged by time within what has been read, so an
	// event may still be a little older than the last of the batch before. The
	// window is widened rather than the time bent.
	t := time + b.offset
	batch.Start = min(batch.Start, t)
	b.last = max(b.last, t)
	return true
}

// KernelLost says that the kernel could not hand over n events of a type's
// sampler: they are told of with the batch that is active. While both buffers are
// full there is none, and nothing is captured either.
func (b *buffer) KernelLost(t *samples.Type, n uint64) {
	if batch, ok := b.pair.Borrow(); ok {
		batch.AddLost(t, n)
		b.pair.Return(true)
	}
}

// ReadUpTo says that every event before time, on the monotonic clock, has been
// added or was lost.
func (b *buffer) ReadUpTo(time int64) {
	b.read.Store(time)
	b.signal()
}

// position is the buffer of another sampler, with how far that one has read.
type position struct {
	*buffer
	read atomic.Int64
}

// another returns the buffer for one more sampler; it is to be called before
// there is anything in it.
func (b *buffer) another() *position {
	p := &position{buffer: b}
	p.read.Store(math.MaxInt64)
	b.others = append(b.others, p)
	return p
}

// ReadUpTo is that of the one sampler.
func (p *position) ReadUpTo(time int64) {
	p.read.Store(time)
	p.signal()
}

func (b *buffer) signal() {
	select {
	case b.moved <- struct{}{}:
	default:
	}
}

// readUpTo is how far all samplers have read.
func (b *buffer) readUpTo() int64 {
	at := b.read.Load()
	for _, p := range b.others {
		at = min(at, p.read.Load())
	}
	if at == math.MaxInt64 {
		return b.clock.Monotonic()
	}
	return at
}

// settle has samplers that show what is in progress do so up to now, and all of
// them read up to it, so that a batch that is taken then ends there; what they
// read beyond it is held for the next one, until release. It waits no longer than
// limit, and not at all where none shows such things.
func (b *buffer) settle(limit time.Duration) {
	if len(b.others) == 0 {
		return
	}
	if _, ok := b.pair.Borrow(); !ok {
		return
	}
	now := b.clock.Monotonic()
	b.until = now
	b.pair.Return(true)
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

// release ends what settle began, if no batch has been taken since.
func (b *buffer) release() {
	if batch, ok := b.pair.Borrow(); ok {
		b.takeHeld(batch)
		b.pair.Return(true)
	}
}

// takeHeld adds what was held to a batch. The pair is locked.
func (b *buffer) takeHeld(to *samples.Batch) {
	for i := range b.held {
		h := &b.held[i]
		t := h.time + b.offset
		if !to.AddValue(h.Key, t, h.value) {
			b.lost(h.Type)
			continue
		}
		b.last = max(b.last, t)
	}
	clear(b.held)
	b.held, b.until = b.held[:0], 0
}

// Closing is until when what is in progress is to be shown: it changes each time
// that a batch is about to be taken.
func (b *buffer) Closing() int64 { return b.closing.Load() }

// Paused says whether sampling has to be paused.
func (b *buffer) Paused() bool { return b.paused.Load() }

// Batch counts the batches that have been active.
func (b *buffer) Batch() uint64 { return b.batches.Load() }

// usage is the bytes held in the active buffer.
func (b *buffer) usage(limit int) int {
	batch, ok := b.pair.Borrow()
	if !ok {
		return limit
	}
	size := batch.Size()
	b.pair.Return(true)
	return size
}

func (b *buffer) turn(filled, next *samples.Batch) {
	end := b.readUpTo()
	if b.until > 0 {
		end = min(end, b.until)
	}
	if b.pausedAt != 0 {
		end = b.pausedAt // nothing was captured since
	}
	filled.End = max(end+b.offset, b.last+1, filled.Start+1)
	start := filled.End
	offset := b.clock.Offset()
	if b.pausedAt != 0 {
		start = b.clock.Monotonic() + b.offset
	}
	if filled == next {
		next.Reset() // what was lost in a window that nobody sees
	}
	next.Start = start + offset - b.offset
	next.End = 0
	b.batches.Add(1)
	b.offset, b.last = offset, 0
	b.takeHeld(next)
}

// pause ends the capture with the event that found no room: what is still in
// the rings from then on is lost too, however late it is read.
func (b *buffer) pause() {
	b.pausedAt = b.refused
	b.paused.Store(true)
	b.wake()
}

func (b *buffer) resume() {
	b.pausedAt = 0
	b.paused.Store(false)
	b.wake()
}
