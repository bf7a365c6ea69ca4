// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package ring

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

// Set is the rings of a number of CPUs: what the sessions of records, context
// switches and uprobes have in common.
type Set struct {
	// Reading is held by whoever waits or reads, so that Close does not unmap rings
	// in use.
	Reading sync.Mutex
	// Unfinished reports whether there are records to read without waiting: a round
	// is under way, or left records to the next one. It is guarded by Reading.
	Unfinished bool

	what   string // what is waited for, for errors
	cpus   []int
	rings  []*Mapped
	waker  *waker
	closed atomic.Bool

	// checking is held by Stale, which must not block while Wait does.
	checking sync.Mutex
}

// Open calls openCPU for each CPU, which maps its rings and passes them to Add.
// Where they exceed what this user may lock, Open unmaps all, calls shrink and
// begins again, until shrink returns false: rings of different sizes would lose
// samples on most CPUs. CPUs that are offline are left out. what names the records
// in errors.
func (s *Set) Open(what string, cpus []int, openCPU func(cpu int) error, shrink func() bool) error {
	s.what = what
	for {
		err := s.openAll(cpus, openCPU)
		if err == nil {
			break
		}
		if closing := s.unmap(0); closing != nil || !tooLarge(err) || !shrink() {
			return errors.Join(err, closing)
		}
	}
	w, err := newWaker(s.rings)
	if err != nil {
		return errors.Join(err, s.unmap(0))
	}
	s.waker = w
	for _, r := range s.rings {
		r.ended() // reads its clock for the first time
	}
	return nil
}

func (s *Set) openAll(cpus []int, openCPU func(cpu int) error) error {
	s.cpus = nil
	for _, cpu := range cpus {
		before := len(s.rings)
		err := openCPU(cpu)
		if errors.Is(err, unix.ENODEV) { // it went offline, maybe after the first of its events
			if err := s.unmap(before); err != nil {
				return err
			}
			continue
		}
		if err != nil {
			return err
		}
		s.cpus = append(s.cpus, cpu)
	}
	if len(s.cpus) == 0 {
		return fmt.Errorf("none of the CPUs %v is online", cpus)
	}
	return nil
}

// Add adds a ring. It is called during Open alone.
func (s *Set) Add(r *Mapped) { s.rings = append(s.rings, r) }

// Rings returns the rings in the order of Add.
func (s *Set) Rings() []*Ring {
	rings := make([]*Ring, len(s.rings))
	for i, r := range s.rings {
		rings[i] = &r.Ring
	}
	return rings
}

// FDs returns the descriptors that the rings are mapped from, in the order of Add.
func (s *Set) FDs() []int {
	fds := make([]int, len(s.rings))
	for i, r := range s.rings {
		fds[i] = r.FD
	}
	return fds
}

// Len returns the number of rings.
func (s *Set) Len() int { return len(s.rings) }

// Waiter returns what the session of these rings embeds.
func (s *Set) Waiter() Waiter { return Waiter{s} }

// Waiter is the part of a Set that sessions offer to their callers.
type Waiter struct{ set *Set }

// CPUs returns the CPUs whose rings are open. During Open it returns those that
// are complete. A CPU that came online since is not among them.
func (w Waiter) CPUs() []int { return w.set.cpus }

// Stale reports whether some of cpus, which are online now, are not covered: cpus
// differs from CPUs, or a CPU was offline in between. Events of a CPU end silently
// when it goes offline and do not resume; events of a thread do. Close a stale
// session and open another one.
func (w Waiter) Stale(cpus []int) bool {
	s := w.set
	s.checking.Lock()
	defer s.checking.Unlock()
	if s.closed.Load() {
		return false
	}
	stale := !slices.Equal(cpus, s.cpus)
	for _, r := range s.rings {
		stale = r.ended() || stale // each ring's clock is read, whatever the others say
	}
	return stale
}

// Wait blocks until a ring has as much to read as it wakes its reader for, Wake is
// called, or timeout has passed (negative: never). Unless it is woken it returns a
// few milliseconds after the last time at the earliest. After Close it returns
// os.ErrClosed.
func (w Waiter) Wait(timeout time.Duration) error {
	s := w.set
	s.Reading.Lock()
	defer s.Reading.Unlock()
	if s.closed.Load() {
		return fmt.Errorf("waiting for %s: %w", s.what, os.ErrClosed)
	}
	if err := s.waker.wait(timeout, s.Unfinished); err != nil {
		return fmt.Errorf("waiting for %s: %w", s.what, err)
	}
	return nil
}

// Wake makes the Wait under way return, or else the next one.
func (w Waiter) Wake() { w.set.waker.wake() }

// Closed reports whether Close was called.
func (s *Set) Closed() bool { return s.closed.Load() }

// Close ends the Wait under way, calls detach to close what writes to the rings,
// and unmaps them. A second Close does nothing.
func (s *Set) Close(detach func() error) error {
	if s.closed.Swap(true) {
		return nil
	}
	s.waker.wake()
	s.Reading.Lock()
	defer s.Reading.Unlock()
	s.checking.Lock()
	defer s.checking.Unlock()
	return errors.Join(detach(), s.waker.close(), s.unmap(0))
}

// unmap unmaps the rings from index first on.
func (s *Set) unmap(first int) error {
	var errs []error
	for _, r := range s.rings[first:] {
		errs = append(errs, r.close())
	}
	clear(s.rings[first:])
	s.rings = s.rings[:first]
	return errors.Join(errs...)
}
