// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package perfevent

import (
	"errors"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hotprofile/hotprofile/internal/procfs"
)

// Session owns the rings of a set of CPUs and what is attached to them. One
// goroutine reads; everything else may be called from any.
type Session struct {
	recordRings
	kernel   Kernel
	hostWide bool
	features features
	maxStack int
	limit    int
	// sampleFDs are the anchors to redirect sampling events into, by index in cpus.
	sampleFDs []int

	// latest is the round of the event that counts, by thread, where a thread may
	// carry several; see acceptThread.
	latest map[int]uint64

	// mu guards what is attached.
	mu          sync.Mutex
	period      int64
	paused      bool
	attachments map[*Attachment]struct{}
	attached    int // events of attachments
	rounds      uint64
	// listThreads lists /proc/PID/task; tests let threads start in between.
	listThreads func(pid int) ([]int, error)

	// events finds what wrote a record by its id. It is replaced, never changed.
	events atomic.Pointer[map[uint64]*event]

	counters counters
}

type counters struct {
	lost, lostSamples, throttled, duplicate, foreign atomic.Uint64
}

// Open makes the rings; nothing is sampled until something is attached. Where
// Options.HostWide is not permitted, the error is a *RightsError.
func Open(o Options) (*Session, error) {
	cpus, err := chosen(o.CPUs)
	if err != nil {
		return nil, err
	}
	s := &Session{
		kernel:      o.Kernel,
		hostWide:    o.HostWide,
		features:    findFeatures(),
		maxStack:    stackDepth(),
		limit:       descriptorLimit(o.MaxDescriptors),
		period:      int64(o.Period),
		attachments: make(map[*Attachment]struct{}),
		latest:      make(map[int]uint64),

		listThreads: procfs.At("").Threads,
	}
	if s.period <= 0 {
		s.period = int64(defaultPeriod)
	}
	if o.Switches > 0 {
		if o.Kernel == KernelExcluded {
			return nil, errors.New("sampling switches: threads are switched in the kernel, and time in the kernel is excluded")
		}
		s.features.switches, s.period = true, int64(o.Switches)
	}
	if o.UserStack > 0 {
		if s.features.registers, err = userStackRegisters(o.UserStack); err != nil {
			return nil, err
		}
		s.features.userStack = uint32(o.UserStack)
	}
	s.events.Store(&map[uint64]*event{})
	s.decoder = decoder{cgroup: s.features.cgroup, switches: s.features.switches, registers: s.features.registers, maxStack: s.maxStack}
	s.what = "perf events"
	if err := s.mapRings(cpus, o); err != nil {
		return nil, err
	}
	s.merge()
	return s, nil
}

// mapRings maps the two rings of each CPU.
func (s *Session) mapRings(cpus []int, o Options) error {
	sample, record := o.SampleRing, o.RecordRing
	switch {
	case sample > 0:
	case s.features.switches:
		sample = switchRingFor(len(cpus), o.UserStack)
	default:
		sample = sampleRingFor(s.period, o.UserStack)
	}
	if record <= 0 {
		record = recordRingFor(len(cpus))
	}
	if !s.hostWide {
		record = max(record, sample)
	}
	sample, record = ringSize(sample), ringSize(record)
	return s.open(cpus, func(cpu int) error {
		return s.mapRingsOf(cpu, sample, record)
	}, func() bool {
		if record >= sample {
			return halve(&record)
		}
		return halve(&sample)
	})
}

func (s *Session) mapRingsOf(cpu, sample, record int) error {
	// A quarter full leaves the reader three quarters to get here; one byte is
	// each record, see the package comment.
	sampleSpec := ringSpec{size: sample, watermark: sample / 4}
	recordSpec := ringSpec{size: record, watermark: 1, records: true}
	if s.features.switches && !s.hostWide {
		// They share the ring of the switches, each of which would interrupt its
		// CPU to wake the reader: a switch would take twenty times as long.
		recordSpec.watermark = record / 4
	}
	pid := os.Getpid() // whose main thread lives as long as the process
	if s.hostWide {
		pid = pidAll
	}
	r, err := s.mapRing(pid, cpu, recordSpec)
	if err == nil && s.hostWide {
		r, err = s.mapRing(pid, cpu, sampleSpec)
	}
	if err != nil {
		return err
	}
	// CPUs that are left out left nothing here.
	s.sampleFDs = append(s.sampleFDs[:len(s.cpus)], r.fd)
	return nil
}

func (s *Session) mapRing(pid, cpu int, spec ringSpec) (*mappedRing, error) {
	if used := s.used(); used >= s.limit {
		return nil, &LimitError{Needed: used + 1, Limit: s.limit}
	}
	r, err := s.features.mapRing(pid, cpu, spec)
	if err != nil {
		if pid == pidAll {
			return nil, explain(scopeHost, scopeHost.String(), err)
		}
		return nil, explain(scopeOwn, scopeOwn.String(), err)
	}
	s.add(r)
	return r, nil
}

// used is how many descriptors are open.
func (s *Session) used() int { return len(s.rings) + s.attached }

// Read fills rec with the next record of a round, all rings merged by time. It
// returns false at the round's end, or when the session is closed: Wait, then
// read again. It allocates nothing.
func (s *Session) Read(rec *Record) bool {
	s.reading.Lock()
	defer s.reading.Unlock()
	for {
		words, r := s.next(rec)
		if words == nil {
			return false
		}
		if s.accept(rec, r) {
			return true
		}
	}
}

// accept counts what is to be counted and drops what no one asked for.
func (s *Session) accept(rec *Record, r *ring) bool {
	rec.Attachment = nil
	switch rec.Type {
	case TypeSample, TypeSwitch:
		e := (*s.events.Load())[rec.ID]
		if e == nil {
			return true // of an attachment detached since
		}
		rec.Attachment = e.attachment
		return e.attachment.pid == 0 || rec.Type == TypeSwitch || s.acceptThread(rec, e)
	case TypeExit:
		delete(s.latest, rec.Task.TID)
	case TypeLost:
		rec.Lost.Records = r.records
		s.counters.lost.Add(rec.Lost.Count)
	case TypeLostSamples:
		s.counters.lostSamples.Add(rec.Lost.Count)
	case TypeThrottle:
		s.counters.throttled.Add(1)
	}
	return true
}

// Stats returns the counters.
func (s *Session) Stats() Stats {
	c := &s.counters
	return Stats{
		Lost:        c.lost.Load(),
		LostSamples: c.lostSamples.Load(),
		Throttled:   c.throttled.Load(),
		Corrupt:     s.corrupt.Load(),
		Duplicate:   c.duplicate.Load(),
		Foreign:     c.foreign.Load(),
	}
}

// Descriptors is how many are open, those of the rings included.
func (s *Session) Descriptors() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.used()
}

// Close detaches everything and unmaps the rings. A Wait under way returns. A
// second Close does nothing.
func (s *Session) Close() error {
	return s.close(func() error {
		s.mu.Lock()
		defer s.mu.Unlock()
		var errs []error
		for a := range s.attachments {
			errs = append(errs, s.detach(a))
		}
		s.merger = nil
		return errors.Join(errs...)
	})
}

// findFeatures tries each on an event of our own that counts nothing.
func findFeatures() features {
	understood := func(f features, bits uint64) bool {
		a := f.anchor(1, false)
		a.Bits |= bits
		fd, err := openEvent(a, 0, -1, 0)
		if err != nil {
			return false
		}
		unix.Close(fd)
		return true
	}
	return features{
		inheritThread: understood(features{}, unix.PerfBitInherit|attrInheritThread),
		cgroup:        unifiedOwnsPerfEvent() && understood(features{cgroup: true}, attrCgroup),
	}
}

// maxControllers is the most that is read of /proc/cgroups, in bytes; it has some
// 500.
const maxControllers = 64 << 10

// unifiedOwnsPerfEvent reads from /proc/cgroups whether perf_event is in the v2
// tree, as it is unless a v1 hierarchy took it. Kernels without v1 have no such
// file.
func unifiedOwnsPerfEvent() bool {
	text, err := procfs.ReadFile("/proc/cgroups", maxControllers)
	if errors.Is(err, os.ErrNotExist) {
		return true
	}
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) >= 2 && f[0] == "perf_event" {
			return f[1] == "0"
		}
	}
	return false
}

// stackDepth is how many frames the kernel records of a stack.
func stackDepth() int {
	if n, err := procfs.Sysctl("kernel/perf_event_max_stack"); err == nil && n > 0 && n < maxStackDepth {
		return n
	}
	return maxStackDepth
}

func descriptorLimit(limit int) int {
	if limit <= 0 {
		limit = defaultMaxDescriptors
	}
	return min(limit, procfs.OpenFileLimit()/2)
}

func monotonic() int64 {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts) // cannot fail for this clock
	return ts.Nano()
}

// ClockOffset is what to add to a Record's Time for nanoseconds since the Unix
// epoch. It moves when the wall clock is set, so ask again now and then.
func ClockOffset() int64 {
	before := monotonic()
	wall := time.Now().UnixNano()
	after := monotonic()
	return wall - (before + (after-before)/2)
}
