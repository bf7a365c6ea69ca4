// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package samplebuffer holds the two buffers between sampling and exporting,
// and the escape hatch for when both are full: sampling is paused rather than
// the host's memory filled or a sampler made to wait.
//
// One buffer is active and takes what samplers write; the other is free or with
// the exporter. A full active buffer changes places with a free one at once;
// without a free one the pair is paused until the exporter gives its buffer
// back.
package samplebuffer

import "sync"

// Contents is a buffer's content. What it means is the caller's business.
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
	// exporting: other is with the exporter. pending: other is full and waits
	// for the exporter to take it. Never both.
	exporting, pending bool
	// paused: active is full while other is not free.
	paused bool

	ready chan struct{}
	hooks Hooks[B]
}

// Hooks are what the owner of a pair does at its turning points. They are
// called with the pair locked: they must not block and must not call the pair.
type Hooks[B Contents] struct {
	// Turn is called when filled stops being active and next starts: the
	// capture window of the one ends and of the other begins. Where there was
	// nothing to export, both are the same, still empty buffer.
	Turn func(filled, next B)
	// Pause is called when both buffers are full, Resume when one is free again.
	Pause, Resume func()
}

// New returns a pair of two empty buffers, a active.
func New[B Contents](a, b B, hooks Hooks[B]) *Pair[B] {
	return &Pair[B]{active: a, other: b, ready: make(chan struct{}, 1), hooks: hooks}
}

// Borrow locks the pair and returns the active buffer for writing; the caller
// must Return it at once. Where ok is false the pair is paused, nothing is
// locked and the event is lost to a full buffer.
func (p *Pair[B]) Borrow() (b B, ok bool) {
	p.mu.Lock()
	if p.paused {
		p.mu.Unlock()
		return b, false
	}
	return p.active, true
}

// Return unlocks the pair. fitted says whether the write fitted into the
// buffer; when it did not, and retry is true, another buffer is active now and
// the write is worth trying again, once: an event that does not fit an empty
// buffer fits none.
func (p *Pair[B]) Return(fitted bool) (retry bool) {
	defer p.mu.Unlock()
	if fitted || p.active.Events() == 0 {
		return false
	}
	if !p.exporting && !p.pending {
		p.turn()
		p.pending = true
		p.signal()
		return true
	}
	p.paused = true
	p.hooks.Pause()
	return false
}

// Ready receives when a full buffer waits to be taken before its time.
func (p *Pair[B]) Ready() <-chan struct{} { return p.ready }

// Take hands over a buffer to export: the one that is full already, else the
// active one, whose place the empty one takes. ok is false where there is
// nothing to export or the last buffer taken was not given back.
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
		p.signal()
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

func (p *Pair[B]) signal() {
	select {
	case p.ready <- struct{}{}:
	default:
	}
}
