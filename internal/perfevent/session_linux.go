// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package perfevent

import (
	"cmp"
	"errors"
	"os"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/hotprofile/hotprofile/internal/perfevent/internal/record"
	"github.com/hotprofile/hotprofile/internal/perfevent/internal/rights"
	"github.com/hotprofile/hotprofile/internal/perfevent/internal/ring"
	"github.com/hotprofile/hotprofile/internal/perfevent/internal/sys"
	"github.com/hotprofile/hotprofile/internal/procfs"
)

// Session is a set of open perf events with the rings of their CPUs. One goroutine calls
// Wait and Read. All other methods may be called from any goroutine. While a record of Read
// is in use, Close may only be called on a session of probes.
//
// In a host-wide session, samples and switches end Wait only when a ring is a quarter
// full, or half full with copies of stacks. The timeout of Wait therefore limits the age
// of a record when it is read. SetPrompt disables this batching.
type Session struct {
	ring.Waiter
	attributes
	hostWide bool
	limit    int // maximum number of descriptors

	rings  ring.Set
	reader *record.Reader
	// splits is true in a HostWide session that samples switches, if
	// Options.SplitSwitches is set.
	splits bool
	// sampleFDs contains the events that own the rings for samples, by index in
	// CPUs. If switches are split, switchFDs contains the events that own the
	// rings for switches, and threadFDs contains the events that own the rings
	// for the samples of AttachThread.
	sampleFDs, switchFDs, threadFDs []int

	// sampleRing is the size in bytes of each ring for samples.
	sampleRing int

	// latest maps a thread with events of several rounds to the latest round. Samples of
	// earlier rounds are duplicates. See acceptThread. Only the reader uses latest.
	latest map[int]uint64
	// duplicate, foreign and unsampled are counters for Stats.
	duplicate, foreign, unsampled atomic.Uint64
	// threadHits holds hit counts by thread and inherited event. Each count is the count at
	// the thread's last sample. Only the reader uses threadHits.
	threadHits map[int]map[uint64]uint64

	// mu guards the attachments and their settings.
	mu          sync.Mutex
	period      int64
	paused      bool
	attachments map[*Attachment]struct{}
	attached    int // number of events of all attachments
	rounds      uint64
	// retired holds closed events whose last samples may be unread.
	retired    []*event
	anyRetired atomic.Bool
	// listThreads lists the threads of a process. The ids are in the pid namespace of this
	// process's own /proc, like the kernel's ids. Tests replace listThreads to start
	// threads between two calls.
	listThreads func(pid int) ([]int, error)

	// events maps the id in a record to its event. The map is replaced, never modified.
	events atomic.Pointer[map[uint64]*event]
}

// Open maps the rings. Sampling starts with the first attachment. If Options.HostWide is
// not permitted, the error is a *RightsError.
func Open(o Options) (*Session, error) {
	var err error
	cpus := o.CPUs
	if len(cpus) == 0 {
		if cpus, err = sys.OnlineCPUs(); err != nil {
			return nil, err
		}
	}
	s := &Session{
		attributes:  attributes{features: findFeatures(), kernel: o.Kernel, maxStack: sys.StackDepth()},
		hostWide:    o.HostWide,
		limit:       sys.DescriptorLimit(o.MaxDescriptors),
		period:      int64(o.Period),
		attachments: make(map[*Attachment]struct{}),
		latest:      make(map[int]uint64),
		threadHits:  make(map[int]map[uint64]uint64),
		listThreads: procfs.At("").Threads,
	}
	s.Waiter = s.rings.Waiter()
	if s.period <= 0 {
		s.period = int64(defaultPeriod)
	}
	if o.Switches > 0 {
		if o.Kernel == KernelExcluded {
			return nil, errors.New("sampling switches: threads are switched in the kernel, and time in the kernel is excluded")
		}
		s.switches, s.period = true, int64(o.Switches)
		s.splits = o.HostWide && o.SplitSwitches
	}
	if s.tracepoints = o.Tracepoints; len(s.tracepoints) > 0 && (!o.HostWide || o.Kernel == KernelExcluded || s.switches) {
		return nil, errors.New("sampling tracepoints: it needs a host-wide session with time in the kernel, that samples no switches")
	}
	if s.probes = o.Probes; s.probes {
		if _, err := probeType(); err != nil || !o.HostWide {
			return nil, cmp.Or(err, errors.New("sampling probes: the session was not opened host-wide"))
		}
	}
	if o.UserStack > 0 || s.probes {
		if s.registers, err = record.RegistersFor(o.UserStack); err != nil {
			return nil, err
		}
		s.userStack = uint32(o.UserStack)
	}
	s.events.Store(&map[uint64]*event{})
	if err := s.openRings(cpus, o); err != nil {
		return nil, err
	}
	decoder := record.Decoder{Cgroup: s.cgroup, Switches: s.switches, Registers: s.registers, MaxStack: s.maxStack}
	decoder.Hits = len(s.tracepoints) > 0
	decoder.HitsLost = decoder.Hits && s.formatLost
	s.reader = record.NewReader(s.rings.Rings(), decoder, sys.Monotonic)
	s.reader.Copies = s.probes
	if !s.switches && !decoder.Hits {
		s.reader.Period.Store(s.period)
	}
	return s, nil
}

// openRings maps the rings of each CPU, as large as the options and limits permit.
func (s *Session) openRings(cpus []int, o Options) error {
	samples, records := o.SampleRing, recordRingSize(len(cpus))
	switch {
	case samples > 0:
	case s.probes:
		samples = probeRing
	case s.switches, len(s.tracepoints) > 0:
		samples = switchRingSize(len(cpus), o.UserStack)
	default:
		samples = sampleRingSize(s.period, o.UserStack, len(cpus))
	}
	if !s.hostWide {
		records = max(records, samples)
	}
	samples, records = ring.Size(samples), ring.Size(records)
	switches := ring.Size(switchRingSize(len(cpus), 0))
	return s.rings.Open("perf events", cpus, func(cpu int) error {
		return s.openRingsOf(cpu, samples, records, switches)
	}, func() bool {
		switch {
		case s.splits && switches >= max(samples, records):
			return ring.Halve(&switches)
		case records >= samples:
			return ring.Halve(&records)
		}
		return ring.Halve(&samples)
	})
}

// threadShare is the ratio of the size of the ring for samples to the size of the ring
// for AttachThread.
const threadShare = 4

// openRingsOf maps the rings of one CPU. The ring of records wakes its reader at once,
// unless context switches share it or the session samples probes. The ring of samples
// wakes the reader when it is a quarter full, so that there is room until the reader
// runs. If a session samples time and copies stacks, the ring of samples has room for
// only one second of samples. It then wakes the reader when it is half full.
func (s *Session) openRingsOf(cpu, samples, records, switches int) error {
	watermark := 1
	if s.switches && !s.hostWide || s.probes {
		// Switches share this ring. If each switch interrupted its CPU to wake the reader,
		// a switch would take twenty times as long. A session of probes needs only the
		// mappings, and only when it reads hits.
		watermark = records / 4
	}
	pid := os.Getpid() // this process, because its main thread lives as long as the process
	if s.hostWide {
		pid = sys.AllProcesses
	}
	sampled := ring.Samples
	if s.switches {
		sampled |= ring.Switches // of processes, and of cgroups and the host if not split
	}
	kinds := ring.Records
	if !s.hostWide {
		kinds |= sampled
	}
	fd, err := s.openRing(pid, cpu, s.anchor(watermark, s.hostWide), records, kinds)
	if err != nil {
		return err
	}
	if s.splits {
		switchFD, err := s.openRing(pid, cpu, s.anchor(switches/4, false), switches, ring.Switches)
		if err != nil {
			return err
		}
		s.switchFDs = append(s.switchFDs[:len(s.CPUs())], switchFD)
		threads := ring.Size(samples / threadShare)
		threadFD, err := s.openRing(pid, cpu, s.anchor(threads/4, false), threads, ring.Samples)
		if err != nil {
			return err
		}
		s.threadFDs = append(s.threadFDs[:len(s.CPUs())], threadFD)
	}
	if s.hostWide {
		unread := samples / 4
		if s.userStack > 0 && !s.switches && len(s.tracepoints) == 0 {
			unread = samples / 2
		}
		if fd, err = s.openRing(pid, cpu, s.anchor(unread, false), samples, sampled); err != nil {
			return err
		}
	}
	// If a CPU went offline, its rings are closed and its index is reused.
	s.sampleFDs = append(s.sampleFDs[:len(s.CPUs())], fd)
	s.sampleRing = records
	if s.hostWide {
		s.sampleRing = samples
	}
	return nil
}

// openRing maps a ring for records of the given kinds, and returns the event that owns it.
func (s *Session) openRing(pid, cpu int, anchor *unix.PerfEventAttr, size int, kinds ring.Kinds) (fd int, err error) {
	if used := s.used(); used >= s.limit {
		return -1, &LimitError{Needed: used + 1, Limit: s.limit}
	}
	r, err := ring.Map(anchor, pid, cpu, size)
	if err != nil {
		scope := rights.Own
		switch {
		case s.probes:
			scope = rights.Uprobes
		case s.hostWide:
			scope = rights.Host
		}
		return -1, rights.Explain(scope, scope.String(), err)
	}
	r.Kinds = kinds
	s.rings.Add(r)
	return r.FD, nil
}

// used returns the number of open descriptors.
func (s *Session) used() int { return s.rings.Len() + s.attached }

// Read fills rec with the next record of a round. It merges all rings by time. It returns
// false at the end of the round, or if the session is closed. Call Wait before the next
// round. Read does not allocate.
func (s *Session) Read(rec *Record) bool {
	s.rings.Reading.Lock()
	defer s.rings.Reading.Unlock()
	if s.rings.Closed() {
		return false
	}
	for {
		var words []uint64
		if words, s.rings.Unfinished = s.reader.Next(&rec.Record); words == nil {
			if s.anyRetired.Load() {
				s.forgetRetired()
			}
			return false
		}
		if s.accept(rec) {
			return true
		}
	}
}

// accept sets the record's attachment, and reports whether to return the record.
func (s *Session) accept(rec *Record) bool {
	rec.Attachment = nil
	switch rec.Type {
	case TypeSample, TypeSwitch:
		e := (*s.events.Load())[rec.ID]
		if e == nil {
			return true // the attachment was detached
		}
		rec.Attachment = e.attachment
		if len(s.tracepoints) > 0 {
			if e.leftOut(rec) {
				return false
			}
			rec.Tracepoint = e.tracepoint
			rec.Hits, rec.HitsLost = s.hitsSince(rec, e)
		}
		return e.attachment.pid == 0 || rec.Type == TypeSwitch || s.acceptThread(rec, e)
	case TypeExit:
		delete(s.latest, rec.Task.TID)
		delete(s.threadHits, rec.Task.TID)
	}
	return true
}

// Stats returns the counters.
func (s *Session) Stats() Stats {
	return Stats{
		Lost:        s.reader.Lost.Load(),
		LostRecords: s.reader.LostRecords.Load(),
		LostSamples: s.reader.LostSamples.Load(),
		Unsampled:   s.unsampled.Load(),
		Throttled:   s.reader.Throttled.Load(),
		Corrupt:     s.reader.Corrupt.Load(),
		Duplicate:   s.duplicate.Load(),
		Foreign:     s.foreign.Load(),
	}
}

// Close detaches all attachments and unmaps the rings. It ends a current Wait. A second
// Close has no effect.
func (s *Session) Close() error {
	return s.rings.Close(s.DetachAll)
}
