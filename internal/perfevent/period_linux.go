// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package perfevent

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hotprofile/hotprofile/internal/perfevent/internal/ring"
	"github.com/hotprofile/hotprofile/internal/perfevent/internal/sys"
)

// SetPeriod changes the CPU time between two samples, which each sample has as its
// Period. Everything is attached anew: PERF_EVENT_IOC_PERIOD does not reach threads
// that inherited an event, and their samples would keep the old period. An
// attachment that is gone by now is detached. It fails in a session that samples
// context switches.
func (s *Session) SetPeriod(d time.Duration) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.switches {
		return errors.New("setting the sampling period: the session samples switches")
	}
	if d <= 0 {
		return fmt.Errorf("setting the sampling period: %v is not above 0", d)
	}
	if s.period == int64(d) {
		return nil
	}
	s.period = int64(d)
	s.reader.Period.Store(s.period)
	var errs []error
	for a := range maps.Clone(s.attachments) {
		err := s.detach(a)
		if err == nil {
			err = s.start(a)
		}
		if !isGone(err) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// maxRedrawn bounds the events of a process that get a new period by ioctl. Each ioctl is a
// system call, and an interrupt of another CPU if the thread runs there.
const maxRedrawn = 1024

// SetSwitches sets the number of context switches per sampled stack, in a session that
// samples them. The number is draw(mean) for each event until the next call. mean is the
// average of draw. A fixed number would run in lockstep with loops and always sample the
// same of their waits, so call this repeatedly, also with the same mean.
//
// With another mean, processes are attached anew before their old events are closed, since
// threads that inherited an event keep its period. For a moment each of their switches is
// recorded and sampled twice. A process that is gone by now is detached. Between two calls,
// read all records that were written before the first call.
func (s *Session) SetSwitches(mean int, draw func(mean int) int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if mean <= 0 || !s.switches {
		return fmt.Errorf("sampling every %dth context switch: the number is not above 0, or the session samples in time", mean)
	}
	changed := s.period != int64(mean)
	s.period = int64(mean)
	var errs []error
	for a := range maps.Clone(s.attachments) {
		if a.tid > 0 {
			continue // every switch
		}
		if changed && a.pid > 0 {
			errs = append(errs, s.renew(a))
		}
		if !changed && a.pid > 0 && len(a.events) > maxRedrawn {
			continue
		}
		for _, e := range a.events {
			if e.switches {
				continue
			}
			if err := sys.SetPeriod(e.fd, uint64(max(draw(mean), 1))); err != nil && !errors.Is(err, unix.ENODEV) {
				errs = append(errs, fmt.Errorf("sampling every %dth context switch of %s: %w", mean, a.what, err))
				break
			}
		}
	}
	return errors.Join(errs...)
}

// leastCopies is the number of copies of stacks that a ring of samples has to hold.
const leastCopies = 32

// SetUserStack changes Options.UserStack in a session that copies stacks. The old events of
// each attachment are closed after its new ones sample, so that no time is missed. It
// returns the bytes that are copied from now on. They are fewer than requested if a ring
// would not hold leastCopies copies. An attachment that is gone by now is detached. An
// attachment keeps the old size if its new events cannot be opened.
func (s *Session) SetUserStack(bytes int) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	bytes = min(bytes, s.sampleRing/leastCopies) / ring.WordSize * ring.WordSize
	if s.userStack == 0 || bytes <= 0 || bytes > MaxUserStack {
		return int(s.userStack), fmt.Errorf("copying %d bytes of stacks: the session copies %d, and a ring has %d", bytes, s.userStack, s.sampleRing)
	}
	if s.userStack == uint32(bytes) {
		return bytes, nil
	}
	s.userStack = uint32(bytes)
	var errs []error
	for a := range maps.Clone(s.attachments) {
		errs = append(errs, s.renew(a))
	}
	return bytes, errors.Join(errs...)
}

// SetPrompt makes each sample wake the reader at once, or only when a ring is a quarter
// full (half full with copies of stacks). In a session that is not host-wide, samples in
// time always wake the reader. As with SetUserStack, no time is missed.
func (s *Session) SetPrompt(prompt bool) error {
	s.rings.SetPrompt(prompt)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.prompt == prompt {
		return nil
	}
	s.prompt = prompt
	if !s.hostWide {
		return nil
	}
	var errs []error
	for a := range maps.Clone(s.attachments) {
		errs = append(errs, s.renew(a))
	}
	return errors.Join(errs...)
}

// renew replaces the events of a by new events. If these cannot be opened, a keeps the old
// events with their period.
func (s *Session) renew(a *Attachment) error {
	old := a.events
	a.events = nil
	err := s.openEvents(a)
	if err == nil {
		s.publish(a.events)
		if !s.paused {
			err = a.enable()
		}
	}
	if err == nil {
		s.withdraw(a.replaced) // their records have been read since
		a.replaced = old
		return s.closeAll(a, old)
	}
	fresh := a.events
	a.events = old
	s.withdraw(fresh)
	closing := s.closeAll(a, fresh)
	if isGone(err) {
		return errors.Join(closing, s.detach(a))
	}
	return errors.Join(err, closing)
}

// isGone reports whether err is about a process or cgroup that has ended.
func isGone(err error) bool {
	return errors.Is(err, os.ErrProcessDone) || errors.Is(err, os.ErrNotExist)
}
