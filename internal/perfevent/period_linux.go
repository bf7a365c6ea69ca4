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

// SetPeriod changes the CPU time between two samples, which is Sample.Period. It reattaches
// all attachments except probes. PERF_EVENT_IOC_PERIOD is not sufficient, because threads
// that inherited an event would keep the old period. An attachment whose process or cgroup
// has ended is detached. SetPeriod fails in a session that samples context switches.
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
	return s.each(func(a *Attachment) error {
		if a.path != nil {
			return nil
		}
		err := s.detach(a)
		if err == nil {
			err = s.start(a)
		}
		if isGone(err) {
			return nil
		}
		return err
	})
}

// each calls do with each attachment, and returns all errors. do may detach the attachment.
func (s *Session) each(do func(*Attachment) error) error {
	var errs []error
	for a := range maps.Clone(s.attachments) {
		errs = append(errs, do(a))
	}
	return errors.Join(errs...)
}

// maxRedrawn is the maximum number of events of a process that get a new period by ioctl.
// Each ioctl is a system call, and interrupts another CPU if the thread runs there.
const maxRedrawn = 1024

// SetSwitches sets the number of context switches per sampled stack. The session must
// sample switches. Each event uses draw(mean) until the next call, and draw must average
// mean. A fixed number would run in lockstep with loops and always sample the same waits,
// so call SetSwitches repeatedly, even with the same mean.
//
// If mean changes, SetSwitches replaces the events of processes, because threads that
// inherited an event keep its period. The old events are closed after the new events are
// opened, so for a moment switches are recorded and sampled twice. A process that has
// ended is detached. Between two calls, read all records that were written before the
// first call.
func (s *Session) SetSwitches(mean int, draw func(mean int) int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if mean <= 0 || !s.switches {
		return fmt.Errorf("sampling every %dth context switch: the number is not above 0, or the session samples in time", mean)
	}
	changed := s.period != int64(mean)
	s.period = int64(mean)
	return s.each(func(a *Attachment) (err error) {
		if a.tid > 0 {
			return nil // AttachThread samples every switch
		}
		if changed && a.pid > 0 {
			err = s.renew(a)
		}
		if !changed && a.pid > 0 && len(a.events) > maxRedrawn {
			return nil
		}
		for _, e := range a.events {
			if e.switches {
				continue
			}
			if failed := sys.SetPeriod(e.fd, uint64(max(draw(mean), 1))); failed != nil && !errors.Is(failed, unix.ENODEV) {
				return errors.Join(err, fmt.Errorf("sampling every %dth context switch of %s: %w", mean, a.what, failed))
			}
		}
		return err
	})
}

// leastCopies is the minimum number of stack copies that a ring of samples must hold.
const leastCopies = 32

// SetUserStack changes Options.UserStack in a session that copies stacks. It closes the old
// events of each attachment after the new events are enabled, so that no time is missed. It
// returns the number of bytes copied from now on, which is lower than requested if a ring
// would not hold leastCopies copies. An attachment whose process or cgroup has ended is
// detached. An attachment keeps the old size if its new events cannot be opened.
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
	return bytes, s.each(s.renew)
}

// SetPrompt sets whether each sample wakes the reader at once. Otherwise samples wake the
// reader when a ring is a quarter full, or half full with copies of stacks. Samples of time
// always wake the reader in a session that is not host-wide. No time is missed during the
// change.
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
	return s.each(s.renew)
}

// renew replaces the events of a. If the new events cannot be opened, a keeps the old
// events with their period. If the process or cgroup of a has ended, a is detached.
func (s *Session) renew(a *Attachment) error {
	if a.path != nil {
		return nil // its settings do not change, and its file may be closed
	}
	old := a.events
	a.events = nil
	err := s.openEvents(a)
	if err == nil {
		s.publish(a.events, a.replaced) // the records of replaced events have been read by now
		if !s.paused {
			err = a.enable()
		}
	}
	if err == nil {
		a.replaced = old
		return s.closeAll(a, old)
	}
	return s.restore(a, old, err)
}

// restore closes the new events of a, because opening or enabling them failed with err. a
// gets its old events back, or is detached if its process or cgroup has ended.
func (s *Session) restore(a *Attachment, old []*event, err error) error {
	fresh := a.events
	a.events = old
	s.publish(nil, fresh)
	closing := s.closeAll(a, fresh)
	if isGone(err) {
		return errors.Join(closing, s.detach(a))
	}
	return errors.Join(err, closing)
}

// isGone reports whether err means that a process or cgroup has ended.
func isGone(err error) bool {
	return errors.Is(err, os.ErrProcessDone) || errors.Is(err, os.ErrNotExist)
}
