// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package perfevent

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"

	"golang.org/x/sys/unix"
)

// maxRedrawn bounds the events of processes that are given a new period at once:
// each is a system call, and one to another CPU for a thread that runs.
const maxRedrawn = 1024

// SetSwitches changes of how many switches one has its stack sampled, in a
// session of switches: mean on average, and draw(mean) for each event until this
// is called again. A count that stays the same steps along with loops and sees
// one of their waits alone, so call it again and again with the same mean too.
//
// With another mean processes are attached anew, before what was attached is
// given up, since the threads that inherited an event keep the count that it had:
// for a moment their switches are told twice, and sampled twice. A process that
// is gone meanwhile is detached.
func (s *Session) SetSwitches(mean int, draw func(mean int) int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if mean <= 0 || !s.features.switches {
		return fmt.Errorf("sampling one of %d switches: that is no number of them, or the session samples in time", mean)
	}
	changed := s.period != int64(mean)
	s.period = int64(mean)
	var errs []error
	for a := range maps.Clone(s.attachments) {
		if changed && a.pid > 0 {
			errs = append(errs, s.renew(a))
		}
		if !changed && a.pid > 0 && len(a.events) > maxRedrawn {
			continue
		}
		for _, e := range a.events {
			if err := setPeriod(e.fd, uint64(max(draw(mean), 1))); err != nil && !errors.Is(err, unix.ENODEV) {
				errs = append(errs, fmt.Errorf("sampling one of %d switches of %s: %w", mean, a.what, err))
				break
			}
		}
	}
	return errors.Join(errs...)
}

// renew opens the events of a anew and closes those that it had.
func (s *Session) renew(a *Attachment) error {
	old := a.events
	a.events = nil
	err := s.openEvents(a, "sampling "+a.what)
	if err == nil && !s.paused {
		s.publish(a, true)
		err = a.ioctl(unix.PERF_EVENT_IOC_ENABLE)
	} else if err == nil {
		s.publish(a, true)
	}
	if errors.Is(err, os.ErrProcessDone) || errors.Is(err, fs.ErrNotExist) {
		closing := s.closeEvents(a)
		a.events = old
		return errors.Join(closing, s.detach(a))
	}
	if err != nil {
		fresh := &Attachment{session: s, what: a.what, events: a.events}
		s.publish(fresh, false)
		closing := s.closeEvents(fresh)
		a.events = old // with the count that it had
		return errors.Join(err, closing)
	}
	gone := &Attachment{session: s, what: a.what, events: old}
	s.publish(gone, false)
	return s.closeEvents(gone)
}
