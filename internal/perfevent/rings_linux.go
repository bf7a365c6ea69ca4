// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package perfevent

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// cpuRings are the rings of a set of CPUs, and how they are waited for and given
// up: what a Session, Switches and Uprobes have in common.
type cpuRings struct {
	what  string // is waited for, as an error says it
	cpus  []int
	rings []*mappedRing
	waker *waker

	// reading is held by Wait and Read, so that close cannot unmap under them.
	reading sync.Mutex
	round   bool // a round is under way
	pending bool // it left something to the next one
	closed  atomic.Bool

	// checking is held by Stale, which must not wait for a Wait.
	checking sync.Mutex
}

// chosen are the CPUs that options ask for: all that are online where they name
// none.
func chosen(cpus []int) ([]int, error) {
	if len(cpus) > 0 {
		return cpus, nil
	}
	return OnlineCPUs()
}

// open has each map what one CPU needs, by add. Where that is more than this user
// may lock, shrink makes the rings of all CPUs smaller, as long as it can: a host
// with one large and many tiny rings would lose samples of most CPUs. CPUs that
// are offline are left out.
func (c *cpuRings) open(cpus []int, each func(cpu int) error, shrink func() bool) error {
	for {
		err := c.openAt(cpus, each)
		if err == nil {
			break
		}
		if closing := c.unmap(); closing != nil || !tooLarge(err) || !shrink() {
			return errors.Join(err, closing)
		}
	}
	w, err := newWaker(c.rings)
	if err != nil {
		return errors.Join(err, c.unmap())
	}
	c.waker = w
	c.Stale(c.cpus) // from here on time goes by for each event
	return nil
}

// halve makes a ring smaller, if it is not a page.
func halve(size *int) bool {
	if *size <= os.Getpagesize() {
		return false
	}
	*size /= 2
	return true
}

func (c *cpuRings) openAt(cpus []int, each func(cpu int) error) error {
	c.cpus = nil
	for _, cpu := range cpus {
		had := len(c.rings)
		err := each(cpu)
		if errors.Is(err, unix.ENODEV) { // it went offline, maybe after the first of its events
			if err := c.unmapFrom(had); err != nil {
				return err
			}
			continue
		}
		if err != nil {
			return err
		}
		c.cpus = append(c.cpus, cpu)
	}
	if len(c.cpus) == 0 {
		return fmt.Errorf("none of the CPUs %v is online", cpus)
	}
	return nil
}

func (c *cpuRings) add(r *mappedRing) { c.rings = append(c.rings, r) }

// CPUs are those that are followed: not one that came online since.
func (c *cpuRings) CPUs() []int { return c.cpus }

// Stale says that what is open does not see all of cpus, which are online now:
// they are others than CPUs, or one of them was offline in between. Events of a
// CPU end when it goes offline, without a word, and do not begin again with it;
// events of a thread do. Then close this and open another one.
func (c *cpuRings) Stale(cpus []int) bool {
	c.checking.Lock()
	defer c.checking.Unlock()
	if c.closed.Load() {
		return false
	}
	stale := !slices.Equal(cpus, c.cpus)
	for _, r := range c.rings {
		stale = r.ended() || stale
	}
	return stale
}

// Wait blocks until there is something worth reading, Wake is called or timeout
// has passed (negative: never); unless it is woken, for some milliseconds at
// least. Samples and switches do not end it before a ring is a quarter full, so
// timeout is the most that one is old when it is read. After Close it returns
// os.ErrClosed.
func (c *cpuRings) Wait(timeout time.Duration) error {
	c.reading.Lock()
	defer c.reading.Unlock()
	if c.closed.Load() {
		return fmt.Errorf("waiting for %s: %w", c.what, os.ErrClosed)
	}
	if err := c.waker.wait(timeout, c.round || c.pending); err != nil {
		return fmt.Errorf("waiting for %s: %w", c.what, err)
	}
	return nil
}

// Wake makes the Wait under way, or else the next one, return.
func (c *cpuRings) Wake() { c.waker.wake() }

// close unmaps the rings, after detach has given up what writes to them. A Wait
// under way returns. A second close does nothing.
func (c *cpuRings) close(detach func() error) error {
	if c.closed.Swap(true) {
		return nil
	}
	c.Wake()
	c.reading.Lock()
	defer c.reading.Unlock()
	c.checking.Lock()
	defer c.checking.Unlock()
	return errors.Join(detach(), c.waker.close(), c.unmap())
}

func (c *cpuRings) unmap() error { return c.unmapFrom(0) }

func (c *cpuRings) unmapFrom(first int) error {
	var errs []error
	for _, r := range c.rings[first:] {
		errs = append(errs, r.close())
	}
	clear(c.rings[first:])
	c.rings = c.rings[:first]
	return errors.Join(errs...)
}

// recordRings are cpuRings whose records are merged by time and decoded as
// Records.
type recordRings struct {
	cpuRings
	merger  *merger
	decoder decoder
	corrupt atomic.Uint64
}

// merge is called once, when the rings are open.
func (m *recordRings) merge() {
	rings := make([]*ring, len(m.rings))
	for i, r := range m.rings {
		rings[i] = &r.ring
	}
	m.merger = newMerger(rings)
}

// next fills rec with the next record of a round that can be decoded, and returns
// its words and the ring it came from; nil at the round's end. The caller holds
// reading.
func (m *recordRings) next(rec *Record) ([]uint64, *ring) {
	if m.closed.Load() {
		return nil, nil
	}
	if !m.round {
		m.merger.begin(monotonic())
		m.round = true
	}
	for {
		words, r := m.merger.next()
		if words == nil {
			m.round, m.pending = false, m.merger.pending
			if n := m.merger.corrupt; n > 0 {
				m.corrupt.Add(n)
				m.merger.corrupt = 0
			}
			return nil, nil
		}
		switch m.decoder.decode(words, rec) {
		case corrupt:
			m.corrupt.Add(1)
		case decoded:
			return words, r
		}
	}
}
