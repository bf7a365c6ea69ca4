// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package samplebuffer is the pair of buffers between sampling and exporting, with
// the escape hatch for when both are full: sampling pauses, so that memory stays
// bounded and no sampler waits.
//
// Samplers write to the active buffer; the other one is free or being exported. A
// full active buffer swaps places with a free one at once; without a free one the
// pair is paused until the exporter gives its buffer back.
package samplebuffer

import "sync"

// Contents is a buffer's content.
type Contents interface {
	// Reset empties the buffer for its next use.
	Reset()
	// Events is the number of events held.
	Events() int
}

// Pair is the two buffers. Safe for concurrent use.
type Pair[B Contents] struct {
	mu     sync.Mutex
	active B
	other  B
	// exporting: other is being exported. pending: other is full and waits to be
	// taken. Never both.
	exporting, pending bool
	// paused: active is full while other is not free.
	paused bool

	hooks Hooks[B]
}

// Hooks are called when a pair changes, with the pair locked: they must not block
// and must not call the pair.
type Hooks[B Contents] struct {
	// Turn is called when filled stops being active and next starts: the capture
	// window of filled ends and that of next begins. If there was nothing to export,
	// both are the same, still empty buffer.
	Turn func(filled, next B)
	// Full is called when a full buffer waits to be taken before its time.
	Full func()
	// Pause is called when both buffers are full, Resume when one is free again.
	Pause, Resume func()
}

// New returns a pair of two empty buffers, a active.
func New[B Contents](a, b B, hooks Hooks[B]) *Pair[B] {
	return &Pair[B]{active: a, other: b, hooks: hooks}
}

// Borrow locks the pair and returns the active buffer for writing; the caller must
// Return it at once. If ok is false the pair is paused, nothing is locked and the
// event is lost to a full buffer.
func (p *Pair[B]) Borrow() (b B, ok bool) {
	p.mu.Lock()
	if p.paused {
		p.mu.Unlock()
		return b, false
	}
	return p.active, true
}

// Return unlocks the pair. fitted reports whether the write fitted into the buffer.
// If it did not and retry is true, another buffer is active now: try the write
// again, once. An event that does not fit an empty buffer fits none.
func (p *Pair[B]) Return(fitted bool) (retry bool) {
	defer p.mu.Unlock()
	if fitted || p.active.Events() == 0 {
		return false
	}
	if !p.exporting && !p.pending {
		p.turn()
		p.pending = true
		p.hooks.Full()
		return true
	}
	p.paused = true
	p.hooks.Pause()
	return false
}

// Take returns a buffer to export: the full one, else the active one, which the
// empty one replaces. ok is false if there is nothing to export or the last buffer
// taken was not given back.
func (p *Pair[B]) Take() (b B, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.exporting {
		return b, false
	}
	if !p.pending {
		if p.active.Events() == 0 {
			p.hooks.Turn(p.active, p.active)
			return b, false
		}
		p.turn()
	}
	p.exporting, p.pending = true, false
	return p.other, true
}

// Done gives back the buffer that Take returned.
func (p *Pair[B]) Done() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.other.Reset()
	p.exporting = false
	if p.paused {
		p.turn()
		p.pending = true
		p.hooks.Full()
		p.paused = false
		p.hooks.Resume()
	}
}

// Paused reports whether both buffers are full.
func (p *Pair[B]) Paused() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.paused
}

func (p *Pair[B]) turn() {
	p.active, p.other = p.other, p.active
	p.hooks.Turn(p.other, p.active)
}
