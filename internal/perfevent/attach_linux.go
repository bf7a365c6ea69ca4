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

// Target is something that is sampled: the host, a cgroup or a process.
type Target struct {
	session *Session
	pid     int
	what    string
	events  []*event
}

// event is one descriptor of a target. It does not change once it is published.
type event struct {
	fd     int
	id     uint64
	target *Target

	// round is the listing of threads that it was opened in, counted through the
	// session's life; overlaps says that its target took more than one.
	round    uint64
	overlaps bool
}

// PID is the process of AttachProcess; 0 for other targets.
func (t *Target) PID() int { return t.pid }

// String names the target as an error or a log line does.
func (t *Target) String() string { return t.what }

// maxRounds bounds how often a process's threads are listed: one that starts
// threads faster than they can be attached is left as it is then, with threads
// of the last round inherited by those they start.
const maxRounds = 64

// maxLatest bounds Session.latest. It is cleared when it is full: a thread's next
// sample fills it again, at the price of one sample too many.
const maxLatest = 1 << 16

// AttachHost samples every CPU of the session. The session must be HostWide.
func (s *Session) AttachHost() (*Target, error) {
	return s.attachCPUs("host", pidAll, 0)
}

// AttachCgroup samples what runs in a cgroup and below it. dir is its directory
// in the hierarchy that owns perf_event: v2's, or v1's perf_event. The session
// must be HostWide. Detach when the cgroup is gone.
func (s *Session) AttachCgroup(dir string) (*Target, error) {
	what := "sampling cgroup " + dir
	fd, err := unix.Open(filepath.Clean(dir), unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	defer unix.Close(fd) // the events hold the cgroup themselves
	t, err := s.attachCPUs("cgroup "+dir, fd, unix.PERF_FLAG_PID_CGROUP)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EBADF) {
		return nil, fmt.Errorf("%s: %w", what, ErrNotPerfCgroup)
	}
	return t, err
}

func (s *Session) attachCPUs(name string, pid, flags int) (*Target, error) {
	what := "sampling " + name
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed.Load() {
		return nil, fmt.Errorf("%s: %w", what, os.ErrClosed)
	}
	if !s.hostWide {
		return nil, fmt.Errorf("%s: the session was not opened host-wide", what)
	}
	t := &Target{session: s, what: name}
	attr := s.features.sampling(s.period, s.kernel, s.maxStack)
	for i, cpu := range s.cpus {
		err := s.open(t, attr, pid, cpu, s.sampleFDs[i], flags)
		if errors.Is(err, unix.ENODEV) {
			continue // went offline
		}
		if err != nil {
			return nil, errors.Join(explain(scopeHost, what, err), s.closeEvents(t))
		}
	}
	return s.attached(t)
}

// AttachProcess samples the threads of a process, those to come included, its
// children not. The process may have ended and its pid been used again by then:
// compare its start time after this. Where no thread is left, the error matches
// os.ErrProcessDone.
func (s *Session) AttachProcess(pid int) (*Target, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := &Target{session: s, pid: pid, what: "process " + strconv.Itoa(pid)}
	if s.closed.Load() {
		return nil, fmt.Errorf("sampling %s: %w", t.what, os.ErrClosed)
	}
	if pid <= 0 {
		return nil, fmt.Errorf("sampling %s: no such process", t.what)
	}
	for other := range s.targets {
		if other.pid == pid {
			return nil, fmt.Errorf("sampling %s: it is attached already", t.what)
		}
	}
	if err := s.attachThreads(t); err != nil {
		return nil, err
	}
	return s.attached(t)
}

// attachThreads opens an event per thread and CPU. Threads are listed again
// until no new one shows, because a thread that none of them started before it
// was attached inherits nothing.
func (s *Session) attachThreads(t *Target) error {
	what := "sampling " + t.what
	attr := s.features.ofProcess(s.features.sampling(s.period, s.kernel, s.maxStack), !s.hostWide)
	seen := make(map[int]struct{})
	rounds := 0
	for rounds < maxRounds {
		tids, err := threads(t.pid)
		if err != nil && !errors.Is(err, os.ErrNotExist) && !errors.Is(err, unix.ESRCH) {
			return errors.Join(explain(scopeProcess, what, err), s.closeEvents(t))
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
				err := s.open(t, attr, tid, cpu, s.sampleFDs[i], 0)
				if errors.Is(err, unix.ESRCH) {
					break // ended
				}
				if err != nil {
					return errors.Join(explain(scopeProcess, what, err), s.closeEvents(t))
				}
			}
		}
	}
	if len(t.events) == 0 {
		return fmt.Errorf("%s: %w", what, os.ErrProcessDone)
	}
	for _, e := range t.events {
		e.overlaps = rounds > 1
	}
	return nil
}

// threads lists the ids in /proc/PID/task. The kernel that the events are opened
// with counts pids as this process's own /proc does.
func threads(pid int) ([]int, error) {
	dir, err := os.Open("/proc/" + strconv.Itoa(pid) + "/task")
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	tids := make([]int, 0, len(names))
	for _, name := range names {
		if tid, err := strconv.Atoi(name); err == nil {
			tids = append(tids, tid)
		}
	}
	return tids, err
}

// open adds one event to t, disabled, its output redirected to the ring of
// output.
func (s *Session) open(t *Target, attr *unix.PerfEventAttr, pid, cpu, output, flags int) error {
	if s.descriptors >= s.limit {
		return &LimitError{Needed: s.descriptors + 1, Limit: s.limit}
	}
	fd, err := openEvent(attr, pid, cpu, flags)
	if err != nil {
		return err
	}
	e := &event{fd: fd, target: t, round: s.rounds}
	s.descriptors++
	t.events = append(t.events, e)
	if err := unix.IoctlSetInt(fd, unix.PERF_EVENT_IOC_SET_OUTPUT, output); err != nil {
		return fmt.Errorf("redirecting the event of CPU %d: %w", cpu, err)
	}
	if e.id, err = eventID(fd); err != nil {
		return fmt.Errorf("reading the id of the event of CPU %d: %w", cpu, err)
	}
	return nil
}

// attached makes t known to the reader and lets it begin.
func (s *Session) attached(t *Target) (*Target, error) {
	s.publish(t, true)
	s.targets[t] = struct{}{}
	if s.paused {
		return t, nil
	}
	if err := t.ioctl(unix.PERF_EVENT_IOC_ENABLE); err != nil {
		return nil, errors.Join(fmt.Errorf("sampling %s: %w", t.what, err), s.detach(t))
	}
	return t, nil
}

// publish gives the reader a new table of events, with t's or without.
func (s *Session) publish(t *Target, with bool) {
	events := maps.Clone(*s.events.Load())
	for _, e := range t.events {
		if with {
			events[e.id] = e
		} else {
			delete(events, e.id)
		}
	}
	s.events.Store(&events)
}

// Detach ends the sampling of t and closes its descriptors. Samples that it left
// in the rings are still read, without a Target. A second Detach does nothing.
func (t *Target) Detach() error {
	t.session.mu.Lock()
	defer t.session.mu.Unlock()
	return t.session.detach(t)
}

func (s *Session) detach(t *Target) error {
	if _, ok := s.targets[t]; !ok {
		return nil
	}
	delete(s.targets, t)
	s.publish(t, false)
	return s.closeEvents(t)
}

func (s *Session) closeEvents(t *Target) error {
	var errs []error
	for _, e := range t.events {
		errs = append(errs, unix.Close(e.fd))
	}
	s.descriptors -= len(t.events)
	t.events = nil
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("detaching from %s: %w", t.what, err)
	}
	return nil
}

// Pause stops all sampling, that of targets attached later included. Records
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
	for t := range s.targets {
		errs = append(errs, t.ioctl(request))
	}
	return errors.Join(errs...)
}

// SetPeriod changes the CPU time between two samples, which each sample's Period
// then says. Processes are attached anew: the kernel does not pass the change on
// to the threads that inherited an event.
func (s *Session) SetPeriod(d time.Duration) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if d <= 0 {
		return fmt.Errorf("setting the sampling period: %v is not above 0", d)
	}
	if s.period == int64(d) {
		return nil
	}
	s.period = int64(d)
	var errs []error
	for t := range maps.Clone(s.targets) {
		errs = append(errs, s.setPeriod(t))
	}
	return errors.Join(errs...)
}

func (s *Session) setPeriod(t *Target) error {
	if t.pid == 0 {
		for _, e := range t.events {
			period := uint64(s.period)
			if err := ioctlPointer(e.fd, unix.PERF_EVENT_IOC_PERIOD, &period); err != nil {
				return fmt.Errorf("setting the period of %s: %w", t.what, err)
			}
		}
		return nil
	}
	err := s.detach(t)
	if err == nil {
		err = s.attachThreads(t)
	}
	if errors.Is(err, os.ErrProcessDone) {
		return nil
	}
	if err == nil {
		_, err = s.attached(t)
	}
	return err
}

func (t *Target) ioctl(request uint) error {
	for _, e := range t.events {
		if err := unix.IoctlSetInt(e.fd, request, 0); err != nil {
			return fmt.Errorf("switching the events of %s: %w", t.what, err)
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
	t := e.target
	if !s.features.inheritThread && rec.PID > 0 && rec.PID != t.pid {
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
