// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package perfevent

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// Attachment is the host, a cgroup or a process that a session samples. Where
// attachments overlap, a thread is sampled once by each: Record.Attachment is the
// one that the sample is from.
type Attachment struct {
	session *Session
	pid     int    // of a process
	cgroup  string // directory of a cgroup
	what    string
	events  []*event
}

// event is one descriptor of an attachment. It does not change once it is published.
type event struct {
	fd         int
	id         uint64
	attachment *Attachment

	// round is the listing of threads that it was opened in, counted through the
	// session's life; overlaps says that its attachment took more than one.
	round    uint64
	overlaps bool
}

// PID is the process of AttachProcess; 0 for other attachments.
func (a *Attachment) PID() int { return a.pid }

// String names the attachment as an error or a log line does.
func (a *Attachment) String() string { return a.what }

// maxRounds bounds how often a process's threads are listed: one that starts
// threads faster than they can be attached is left as it is then, with threads
// of the last round inherited by those they start.
const maxRounds = 64

// maxLatest bounds Session.latest. It is cleared when it is full: a thread's next
// sample fills it again, at the price of one sample too many.
const maxLatest = 1 << 16

// AttachHost samples every CPU of the session. The session must be HostWide.
func (s *Session) AttachHost() (*Attachment, error) {
	return s.attach(&Attachment{session: s, what: "host"})
}

// AttachCgroup samples what runs in a cgroup and below it. dir is its directory
// in the hierarchy that owns perf_event: v2's, or v1's perf_event. The session
// must be HostWide. Detach when the cgroup is gone.
func (s *Session) AttachCgroup(dir string) (*Attachment, error) {
	dir = filepath.Clean(dir)
	return s.attach(&Attachment{session: s, cgroup: dir, what: "cgroup " + dir})
}

// AttachProcess samples the threads of a process, those to come included, its
// children not. The process may have ended and its pid been used again by then:
// compare its start time after this. Where no thread is left, the error matches
// os.ErrProcessDone.
func (s *Session) AttachProcess(pid int) (*Attachment, error) {
	a := &Attachment{session: s, pid: pid, what: "process " + strconv.Itoa(pid)}
	if pid <= 0 {
		return nil, fmt.Errorf("sampling %s: no such process", a)
	}
	return s.attach(a)
}

func (s *Session) attach(a *Attachment) (*Attachment, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed.Load() {
		return nil, fmt.Errorf("sampling %s: %w", a, os.ErrClosed)
	}
	for other := range s.attachments {
		if other.what == a.what {
			return nil, fmt.Errorf("sampling %s: it is attached already", a)
		}
	}
	if err := s.begin(a); err != nil {
		return nil, err
	}
	return a, nil
}

// begin opens a's events and lets them count, all or none.
func (s *Session) begin(a *Attachment) error {
	what := "sampling " + a.what
	if err := s.openEvents(a, what); err != nil {
		return errors.Join(err, s.closeEvents(a))
	}
	s.publish(a, true)
	s.attachments[a] = struct{}{}
	if s.paused {
		return nil
	}
	if err := a.ioctl(unix.PERF_EVENT_IOC_ENABLE); err != nil {
		return errors.Join(fmt.Errorf("%s: %w", what, err), s.detach(a))
	}
	return nil
}

func (s *Session) openEvents(a *Attachment, what string) error {
	switch {
	case a.pid > 0:
		return s.openThreads(a, what)
	case !s.hostWide:
		return fmt.Errorf("%s: the session was not opened host-wide", what)
	case a.cgroup == "":
		return s.openCPUs(a, what, pidAll, 0)
	}
	dir, err := unix.Open(a.cgroup, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	defer unix.Close(dir) // the events hold the cgroup themselves
	err = s.openCPUs(a, what, dir, unix.PERF_FLAG_PID_CGROUP)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EBADF) {
		return fmt.Errorf("%s: %w", what, ErrNotPerfCgroup)
	}
	return err
}

func (s *Session) openCPUs(a *Attachment, what string, pid, flags int) error {
	attr := s.features.sampling(s.period, s.kernel, s.maxStack)
	for i, cpu := range s.cpus {
		err := s.openEvent(a, attr, pid, cpu, s.sampleFDs[i], flags)
		if err != nil && !errors.Is(err, unix.ENODEV) { // that is a CPU gone offline
			return explain(scopeHost, what, err)
		}
	}
	return nil
}

// openThreads opens an event per thread and CPU. Threads are listed again until
// no new one shows, because a thread that was started by one not yet attached
// inherits nothing.
func (s *Session) openThreads(a *Attachment, what string) error {
	attr := s.features.ofProcess(s.features.sampling(s.period, s.kernel, s.maxStack), !s.hostWide)
	seen := make(map[int]struct{})
	rounds := 0
	for rounds < maxRounds {
		tids, err := s.listThreads(a.pid)
		if err != nil && !errors.Is(err, os.ErrNotExist) && !errors.Is(err, unix.ESRCH) {
			return explain(scopeProcess, what, err)
		}
		fresh := tids[:0]
		for _, tid := range tids {
			if _, ok := seen[tid]; !ok {
				seen[tid] = struct{}{}
				fresh = append(fresh, tid)
			}
		}
		if len(fresh) == 0 {
			break
		}
		rounds++
		s.rounds++
		for _, tid := range fresh {
			for i, cpu := range s.cpus {
				err := s.openEvent(a, attr, tid, cpu, s.sampleFDs[i], 0)
				if errors.Is(err, unix.ESRCH) {
					break // ended
				}
				if err != nil {
					return explain(scopeProcess, what, err)
				}
			}
		}
	}
	if len(a.events) == 0 {
		return fmt.Errorf("%s: %w", what, os.ErrProcessDone)
	}
	for _, e := range a.events {
		e.overlaps = rounds > 1
	}
	return nil
}

// openEvent adds one event to a, disabled, its output redirected to the ring of
// output.
func (s *Session) openEvent(a *Attachment, attr *unix.PerfEventAttr, pid, cpu, output, flags int) error {
	if used := s.used(); used >= s.limit {
		return &LimitError{Needed: used + 1, Limit: s.limit}
	}
	fd, err := openEvent(attr, pid, cpu, flags)
	if err != nil {
		return err
	}
	e := &event{fd: fd, attachment: a, round: s.rounds}
	s.attached++
	a.events = append(a.events, e)
	if err := unix.IoctlSetInt(fd, unix.PERF_EVENT_IOC_SET_OUTPUT, output); err != nil {
		return fmt.Errorf("redirecting the event of CPU %d: %w", cpu, err)
	}
	if e.id, err = eventID(fd); err != nil {
		return fmt.Errorf("reading the id of the event of CPU %d: %w", cpu, err)
	}
	return nil
}

// publish gives the reader a new table of events, with a's or without.
func (s *Session) publish(a *Attachment, with bool) {
	events := maps.Clone(*s.events.Load())
	for _, e := range a.events {
		if with {
			events[e.id] = e
		} else {
			delete(events, e.id)
		}
	}
	s.events.Store(&events)
}

// Detach ends the sampling of a and closes its descriptors. Samples that it left
// in the rings are still read, without an Attachment. A second Detach does nothing.
func (a *Attachment) Detach() error {
	a.session.mu.Lock()
	defer a.session.mu.Unlock()
	return a.session.detach(a)
}

func (s *Session) detach(a *Attachment) error {
	if _, ok := s.attachments[a]; !ok {
		return nil
	}
	delete(s.attachments, a)
	s.publish(a, false)
	return s.closeEvents(a)
}

func (s *Session) closeEvents(a *Attachment) error {
	var errs []error
	for _, e := range a.events {
		errs = append(errs, unix.Close(e.fd))
	}
	s.attached -= len(a.events)
	a.events = nil
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("detaching from %s: %w", a.what, err)
	}
	return nil
}

// Pause stops all sampling, that of attachments made later included. Records
// about processes go on where the session is HostWide.
func (s *Session) Pause() error { return s.setPaused(true, unix.PERF_EVENT_IOC_DISABLE) }

// Resume undoes Pause.
func (s *Session) Resume() error { return s.setPaused(false, unix.PERF_EVENT_IOC_ENABLE) }

func (s *Session) setPaused(paused bool, request uint) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.paused == paused {
		return nil
	}
	s.paused = paused
	var errs []error
	for a := range s.attachments {
		errs = append(errs, a.ioctl(request))
	}
	return errors.Join(errs...)
}

// SetPeriod changes the CPU time between two samples, which each sample's Period
// then says. Everything is attached anew: PERF_EVENT_IOC_PERIOD does not reach
// the threads that inherited an event, and samples go on naming the old period.
// An attachment that is gone meanwhile is detached. It is not for a session of
// switches.
func (s *Session) SetPeriod(d time.Duration) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.features.switches {
		return errors.New("setting the sampling period: the session samples switches")
	}
	if d <= 0 {
		return fmt.Errorf("setting the sampling period: %v is not above 0", d)
	}
	if s.period == int64(d) {
		return nil
	}
	s.period = int64(d)
	var errs []error
	for a := range maps.Clone(s.attachments) {
		err := s.detach(a)
		if err == nil {
			err = s.begin(a)
		}
		if !errors.Is(err, os.ErrProcessDone) && !errors.Is(err, os.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

func (a *Attachment) ioctl(request uint) error {
	for _, e := range a.events {
		if err := unix.IoctlSetInt(e.fd, request, 0); err != nil {
			return fmt.Errorf("switching the events of %s: %w", a.what, err)
		}
	}
	return nil
}

// acceptThread decides about a sample of a process's event. A thread that was
// started while the process was being attached may carry the event that it
// inherited, for some CPUs, and one of its own from the next round, for all;
// and those that it starts inherit both. The event of the latest round is for
// all CPUs, and no thread has two of one round, so that one counts.
func (s *Session) acceptThread(rec *Record, e *event) bool {
	a := e.attachment
	if !s.features.inheritThread && rec.PID > 0 && rec.PID != a.pid {
		s.counters.foreign.Add(1)
		return false
	}
	if !e.overlaps {
		return true
	}
	latest := s.latest[rec.TID]
	if e.round < latest {
		s.counters.duplicate.Add(1)
		return false
	}
	if e.round > latest {
		if len(s.latest) >= maxLatest {
			clear(s.latest)
		}
		s.latest[rec.TID] = e.round
	}
	return true
}
