// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package perfevent

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hotprofile/hotprofile/internal/perfevent/internal/rights"
	"github.com/hotprofile/hotprofile/internal/perfevent/internal/sys"
)

// Attachment is the host, a cgroup, a process or a probe that a session samples. If a
// thread belongs to several attachments, each attachment samples the thread once.
// Record.Attachment is the attachment of a sample.
type Attachment struct {
	// Data belongs to the caller. This package does not use it.
	Data any

	session *Session
	pid     int    // pid of the process, or of the thread's process
	tid     int    // tid of a single thread
	most    int    // maximum samples of a single thread per CPU until More
	cgroup  string // directory of a cgroup
	split   bool   // its context switches have separate rings
	// periods holds the number of hits per sample of each tracepoint. only is the index,
	// plus 1, of the single tracepoint that AttachTracepoint samples. It is 0 for other
	// attachments.
	periods []int
	only    int
	// carried counts hits of replaced events that no sample represents yet. Only the reader
	// uses carried.
	carried []uint64
	what    string
	// path is the path of a probe's file with a terminating NUL, as the kernel expects it.
	// path is nil for other attachments. offset is the position of the probe in the file.
	path   []byte
	offset uint64
	events []*event
	// replaced holds the closed events that renew has replaced. Some of their records may
	// be unread.
	replaced []*event
}

// event is one descriptor of an attachment. It does not change once it is published.
type event struct {
	fd, cpu    int
	id         uint64
	attachment *Attachment
	// switches reports whether the event records context switches and takes no samples.
	switches bool
	// tracepoint is the index in Options.Tracepoints of the tracepoint that the event
	// samples.
	tracepoint int
	hits       hits

	// round is the number of the thread listing in which the event was
	// opened. A session never reuses a number. overlaps reports whether the
	// attachment needed several rounds.
	round    uint64
	overlaps bool
}

// SharesRing reports whether the attachment's context switches go to the same rings as its
// samples. See Options.SplitSwitches.
func (a *Attachment) SharesRing() bool { return !a.split }

// String names the attachment for errors and log lines.
func (a *Attachment) String() string { return a.what }

// maxRounds is the maximum number of times that the threads of a process are listed. A
// process may start threads faster than they can be attached. Threads that were attached
// in the last round still pass their events on to the threads that they start.
const maxRounds = 64

// AttachHost samples every CPU of the session. The session must be HostWide.
func (s *Session) AttachHost() (*Attachment, error) {
	return s.attach(&Attachment{session: s, split: s.splits, what: "host"})
}

// AttachCgroup samples the processes in a cgroup and in its descendants. dir is the
// cgroup's directory in the hierarchy with the perf_event controller, which is either the v2
// hierarchy or the v1 hierarchy perf_event. The session must be HostWide. Call Detach when
// the cgroup is gone.
func (s *Session) AttachCgroup(dir string) (*Attachment, error) {
	dir = filepath.Clean(dir)
	return s.attach(&Attachment{session: s, split: s.splits, cgroup: dir, what: "cgroup " + dir})
}

// AttachProcess samples the threads of a process, including threads that it starts later,
// but not its children. The process may have ended in the meantime and its pid may be
// reused, so compare the start time afterwards. If no thread is left, the error matches
// os.ErrProcessDone.
func (s *Session) AttachProcess(pid int) (*Attachment, error) {
	a := &Attachment{session: s, pid: pid, what: "process " + strconv.Itoa(pid)}
	if pid <= 0 {
		return nil, fmt.Errorf("sampling %s: no such process", a)
	}
	return s.attach(a)
}

// AttachThread samples one thread's stack at each of its context switches. The session must
// sample switches. Threads that the thread starts are not sampled. The argument most is the
// number of samples per CPU after which the kernel stops sampling until More is called. The
// attachment of the thread's process, cgroup or host still records the switches and samples
// every Nth switch. SetSwitches has no effect on AttachThread. If switches are split, the
// samples of the thread also have separate rings. If the thread has ended, the error matches
// os.ErrProcessDone.
func (s *Session) AttachThread(pid, tid, most int) (*Attachment, error) {
	a := &Attachment{session: s, pid: pid, tid: tid, most: max(most, 1), what: "thread " + strconv.Itoa(tid)}
	if pid <= 0 || tid <= 0 || !s.switches {
		return nil, fmt.Errorf("sampling %s: no such thread, or the session does not sample switches", a)
	}
	return s.attach(a)
}

func (s *Session) attach(a *Attachment) (*Attachment, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.rings.Closed() {
		return nil, fmt.Errorf("sampling %s: %w", a, os.ErrClosed)
	}
	for other := range s.attachments {
		if other.what == a.what && a.path == nil {
			return nil, fmt.Errorf("sampling %s: it is attached already", a)
		}
	}
	if err := s.start(a); err != nil {
		return nil, err
	}
	return a, nil
}

// start opens the events of a and enables them, unless the session is paused. If one event
// fails, start closes all of them.
func (s *Session) start(a *Attachment) error {
	if err := s.openEvents(a); err != nil {
		opened := a.events
		a.events = nil
		return errors.Join(err, s.closeAll(a, opened))
	}
	s.publish(a.events, nil)
	s.attachments[a] = struct{}{}
	if s.paused {
		return nil
	}
	if err := a.enable(); err != nil {
		return errors.Join(err, s.detach(a))
	}
	return nil
}

// maxApart is the maximum time over which enable staggers the start of the CPUs' events.
const maxApart = 20 * time.Millisecond

// enable enables the events of a. The events of the host's CPUs start staggered over one
// period. Otherwise two programs that wait for each other on two CPUs would be interrupted at
// the same time. The program that is interrupted first would make the other program wait, so
// both programs would be sampled too rarely.
func (a *Attachment) enable() error {
	if a.tid > 0 {
		return a.request(a.events, unix.PERF_EVENT_IOC_REFRESH, a.most)
	}
	apart := time.Duration(0)
	if a.pid == 0 && a.cgroup == "" && a.path == nil && !a.session.switches && len(a.session.tracepoints) == 0 {
		apart = min(time.Duration(a.session.period), maxApart) / time.Duration(max(len(a.events), 1))
	}
	begin := time.Now()
	for i, e := range a.events {
		time.Sleep(time.Until(begin.Add(time.Duration(i) * apart)))
		if err := unix.IoctlSetInt(e.fd, unix.PERF_EVENT_IOC_ENABLE, 0); err != nil {
			return fmt.Errorf("enabling the events of %s: %w", a.what, err)
		}
	}
	return nil
}

// More allows n more samples on one CPU for an attachment of AttachThread.
func (a *Attachment) More(cpu, n int) error {
	s := a.session
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.attachments[a]; !ok || s.paused || a.tid == 0 || n <= 0 {
		return nil
	}
	for _, e := range a.events {
		if e.cpu == cpu {
			if err := unix.IoctlSetInt(e.fd, unix.PERF_EVENT_IOC_REFRESH, n); err != nil {
				return fmt.Errorf("sampling more of %s: %w", a.what, err)
			}
		}
	}
	return nil
}

// openEvents opens the events of a.
func (s *Session) openEvents(a *Attachment) error {
	what, scope := "sampling "+a.what, rights.Host
	switch {
	case a.path != nil:
		what, scope = "placing the "+a.what, rights.Uprobes
	case len(s.tracepoints) > 0:
		scope = rights.Tracepoints
	case a.pid > 0:
		scope = rights.Process
	}
	switch {
	case a.pid > 0:
		err := s.openThreads(a)
		if err == nil && len(a.events) == 0 {
			err = os.ErrProcessDone
		}
		return rights.Explain(scope, what, err)
	case !s.hostWide:
		return fmt.Errorf("%s: the session was not opened host-wide", what)
	case a.cgroup == "":
		return rights.Explain(scope, what, s.openCPUs(a, sys.AllProcesses, 0))
	}
	dir, err := unix.Open(a.cgroup, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	defer unix.Close(dir) // the events keep a reference to the cgroup
	err = s.openCPUs(a, dir, unix.PERF_FLAG_PID_CGROUP)
	switch {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.EBADF):
		return fmt.Errorf("%s: %w", what, ErrNotPerfCgroup)
	case errors.Is(err, unix.EINVAL): // perf_cgroup_connect without CONFIG_CGROUP_PERF
		return fmt.Errorf("%s: %w", what, &UnsupportedError{Feature: "perf events of cgroups", Needs: "Linux with CONFIG_CGROUP_PERF", Err: err})
	}
	return rights.Explain(scope, what, err)
}

// openCPUs opens the events of an attachment on each CPU. If the session samples
// tracepoints, openHits opens the events. Otherwise openCPUs opens one event for samples,
// and another event for context switches if the session splits them.
func (s *Session) openCPUs(a *Attachment, pid, flags int) error {
	attr := s.sampling(s.period)
	if s.splits {
		attr.Bits &^= unix.PerfBitContextSwitch
	}
	if a.path != nil {
		var err error
		if attr, err = s.probe(a); err != nil {
			return err
		}
		defer runtime.KeepAlive(a)
	}
	for i, cpu := range s.CPUs() {
		if len(s.tracepoints) > 0 {
			if err := s.openHits(a, pid, cpu, s.sampleFDs[i], flags, false); err != nil && !errors.Is(err, unix.ENODEV) {
				return err
			}
			continue
		}
		err := s.openEvent(a, attr, pid, cpu, s.sampleFDs[i], flags)
		if err == nil && s.splits {
			if err = s.openEvent(a, s.switchRecords(), pid, cpu, s.switchFDs[i], flags); err == nil {
				a.events[len(a.events)-1].switches = true
			}
		}
		if err != nil && !errors.Is(err, unix.ENODEV) { // ENODEV: the CPU went offline
			return err
		}
	}
	return nil
}

// openThreads opens the events of the threads of a process, or of the single thread of
// AttachThread. A thread inherits the events of the thread that starts it, but only if that
// thread is already attached. openThreads therefore lists the threads again until it finds
// no new threads.
func (s *Session) openThreads(a *Attachment) error {
	if a.tid > 0 {
		attr, outputs := s.sampling(1), s.sampleFDs
		attr.Bits &^= unix.PerfBitContextSwitch
		if s.splits {
			outputs = s.threadFDs
		}
		return s.openThread(a, attr, a.tid, outputs)
	}
	attr := s.ofThread(s.period, !s.hostWide)
	seen := make(map[int]bool)
	rounds := 0
	for rounds < maxRounds {
		fresh, err := s.newThreads(a.pid, seen)
		if err != nil {
			return err
		}
		if len(fresh) == 0 {
			break
		}
		rounds++
		s.rounds++
		for _, tid := range fresh {
			if err := s.openThread(a, attr, tid, s.sampleFDs); err != nil {
				return err
			}
		}
	}
	for _, e := range a.events {
		e.overlaps = rounds > 1
	}
	return nil
}

// openThread opens an event of a thread on each CPU and directs the records to the rings in
// outputs. It returns nil if the thread has ended.
func (s *Session) openThread(a *Attachment, attr *unix.PerfEventAttr, tid int, outputs []int) error {
	for i, cpu := range s.CPUs() {
		var err error
		if len(s.tracepoints) > 0 {
			err = s.openHits(a, tid, cpu, outputs[i], 0, true)
		} else {
			err = s.openEvent(a, attr, tid, cpu, outputs[i], 0)
		}
		if errors.Is(err, unix.ESRCH) {
			return nil
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// newThreads returns the threads of a process that are not in seen, and adds them to seen.
// The list is empty if the process has ended.
func (s *Session) newThreads(pid int, seen map[int]bool) ([]int, error) {
	tids, err := s.listThreads(pid)
	if err != nil && !errors.Is(err, os.ErrNotExist) && !errors.Is(err, unix.ESRCH) {
		return nil, err
	}
	fresh := slices.DeleteFunc(tids, func(tid int) bool { return seen[tid] })
	for _, tid := range fresh {
		seen[tid] = true
	}
	return fresh, nil
}

// openEvent adds one disabled event to a, and redirects it to the ring of output.
func (s *Session) openEvent(a *Attachment, attr *unix.PerfEventAttr, pid, cpu, output, flags int) error {
	if used := s.used(); used >= s.limit {
		return &LimitError{Needed: used + 1, Limit: s.limit}
	}
	fd, err := sys.Open(attr, pid, cpu, flags)
	if err != nil {
		return err
	}
	e := &event{fd: fd, cpu: cpu, attachment: a, round: s.rounds}
	s.attached++
	a.events = append(a.events, e)
	if err := sys.SetOutput(fd, output, cpu); err != nil {
		return err
	}
	e.id, err = sys.EventID(fd)
	return err
}

// publish adds events to the reader's map, and removes the events in gone.
func (s *Session) publish(events, gone []*event) {
	known := maps.Clone(*s.events.Load())
	for _, e := range events {
		known[e.id] = e
	}
	for _, e := range gone {
		delete(known, e.id)
	}
	s.events.Store(&known)
}

// Detach stops sampling a and closes its descriptors. Read still returns the samples left
// in the rings. In a session that samples tracepoints, these samples still refer to a. In
// other sessions, they have no Attachment. A second Detach has no effect.
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
	events := a.events
	a.events = nil
	if len(s.tracepoints) > 0 {
		return s.retire(a, events)
	}
	s.publish(nil, slices.Concat(events, a.replaced))
	a.replaced = nil
	return s.closeAll(a, events)
}

// closeAll closes current or former events of a.
func (s *Session) closeAll(a *Attachment, events []*event) error {
	var errs []error
	for _, e := range events {
		errs = append(errs, unix.Close(e.fd))
	}
	s.attached -= len(events)
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("detaching from %s: %w", a.what, err)
	}
	return nil
}

// Pause stops all sampling, including the sampling of later attachments. A HostWide session
// still records process events, such as forks and mappings.
func (s *Session) Pause() error {
	return s.setPaused(true, func(a *Attachment) error { return a.request(a.events, unix.PERF_EVENT_IOC_DISABLE, 0) })
}

// Resume undoes Pause.
func (s *Session) Resume() error { return s.setPaused(false, (*Attachment).enable) }

func (s *Session) setPaused(paused bool, change func(*Attachment) error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.paused == paused {
		return nil
	}
	s.paused = paused
	return s.each(change)
}

// request makes an ioctl request on each of the given events of the attachment.
func (a *Attachment) request(events []*event, request uint, value int) error {
	for _, e := range events {
		if err := unix.IoctlSetInt(e.fd, request, value); err != nil {
			return fmt.Errorf("enabling or disabling the events of %s: %w", a.what, err)
		}
	}
	return nil
}

// maxLatest is the maximum number of entries in Session.latest. The map is cleared when
// it is full, which may cause one duplicate sample per thread.
const maxLatest = 1 << 16

// acceptThread reports whether to accept a sample that was written by an event of a process.
// A thread that was started during the attachment may have inherited events for only some
// CPUs. The next round may then open events for this thread on all CPUs. Threads that this
// thread starts inherit the events of both rounds. Only samples of the latest round are
// accepted, because the latest round covers all CPUs. A thread never has two events of one
// round on the same CPU.
func (s *Session) acceptThread(rec *Record, e *event) bool {
	if !s.inheritThread && rec.PID > 0 && rec.PID != e.attachment.pid {
		s.foreign.Add(1)
		return false
	}
	if !e.overlaps {
		return true
	}
	latest := s.latest[rec.TID]
	if e.round < latest {
		s.duplicate.Add(1)
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
