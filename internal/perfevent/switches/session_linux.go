// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package switches

import (
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hotprofile/hotprofile/internal/perfevent/internal/rights"
	"github.com/hotprofile/hotprofile/internal/perfevent/internal/ring"
	"github.com/hotprofile/hotprofile/internal/perfevent/internal/sys"
)

// settle is the maximum delay until an event's record becomes readable. The kernel takes
// the record's time first and makes the record readable some nanoseconds later. If a
// hypervisor suspends the CPU in between, the record becomes readable when the CPU resumes.
const settle = 5 * time.Millisecond

// snapshotPeriod is the CPU time after which Snapshot samples a CPU.
const snapshotPeriod = 100 * time.Microsecond

// Session records the context switches of several CPUs. One goroutine calls Wait and Read.
// Wake and Close may be called from any goroutine.
type Session struct {
	ring.Waiter
	rings ring.Set
	// clocks are the events that Snapshot enables, by index in CPUs.
	clocks  []int
	merger  merger
	through int64
}

// Open starts recording on all CPUs that are online. If recording is not permitted, the error
// is a *perfevent.RightsError.
func Open() (*Session, error) {
	cpus, err := sys.OnlineCPUs()
	if err != nil {
		return nil, err
	}
	return openOn(cpus, ringSize(len(cpus)), sys.DescriptorLimit(0))
}

// openOn starts recording on CPUs. Each CPU needs two descriptors, of at most limit.
func openOn(cpus []int, size, limit int) (*Session, error) {
	if needed := 2 * len(cpus); needed > limit {
		return nil, &rights.LimitError{Needed: needed, Limit: limit}
	}
	size = ring.Size(size)
	s := &Session{}
	s.Waiter = s.rings.Waiter()
	if err := s.rings.Open("context switches", cpus, func(cpu int) error { return s.openCPU(cpu, size) }, func() bool { return ring.Halve(&size) }); err != nil {
		return nil, rights.Explain(rights.Host, "recording context switches", err)
	}
	s.merger = newMerger(s.rings.Rings())
	return s, nil
}

func (s *Session) openCPU(cpu, size int) error {
	anchor := attr(unix.PERF_COUNT_SW_DUMMY, unix.PerfBitContextSwitch|unix.PerfBitTask|unix.PerfBitComm|unix.PerfBitCommExec|unix.PerfBitExcludeKernel)
	anchor.Wakeup = uint32(size / 4)
	r, err := ring.Map(anchor, sys.AllProcesses, cpu, size)
	if err != nil {
		return err
	}
	s.rings.Add(r)
	clock := attr(unix.PERF_COUNT_SW_CPU_CLOCK, unix.PerfBitDisabled) // also samples the idle task
	clock.Sample = uint64(snapshotPeriod)
	fd, err := sys.Open(clock, sys.AllProcesses, cpu, 0)
	if err != nil {
		return err
	}
	r.Others = append(r.Others, fd)
	if err := sys.SetOutput(fd, r.FD, cpu); err != nil {
		return err
	}
	// If a CPU went offline, its events are closed and its index is reused.
	s.clocks = append(s.clocks[:len(s.CPUs())], fd)
	return nil
}

// attr returns the attributes of an event whose records end with pid:tid and time.
func attr(config, bits uint64) *unix.PerfEventAttr {
	return sys.Attr(unix.PERF_TYPE_SOFTWARE, config, unix.PERF_SAMPLE_TID|unix.PERF_SAMPLE_TIME, bits)
}

// Snapshot makes every CPU write one Running record soon, so that its current thread is
// known before the next switch.
func (s *Session) Snapshot() error {
	s.rings.Reading.Lock()
	defer s.rings.Reading.Unlock()
	if s.rings.Closed() {
		return fmt.Errorf("sampling what runs: %w", os.ErrClosed)
	}
	var errs []error
	for i, fd := range s.clocks {
		// REFRESH enables the event for one sample. ENODEV means that the CPU went
		// offline.
		if err := unix.IoctlSetInt(fd, unix.PERF_EVENT_IOC_REFRESH, 1); err != nil && !errors.Is(err, unix.ENODEV) {
			errs = append(errs, fmt.Errorf("sampling what runs on CPU %d: %w", s.CPUs()[i], err))
		}
	}
	return errors.Join(errs...)
}

// Read fills rec with the next record of a round. It merges all CPUs by time. It returns
// false at the end of the round, when all records up to Through were returned, or if the
// session is closed. It does not allocate.
func (s *Session) Read(rec *Record) bool {
	s.rings.Reading.Lock()
	defer s.rings.Reading.Unlock()
	if s.rings.Closed() {
		return false
	}
	if !s.rings.Unfinished {
		s.through = sys.Monotonic() - int64(settle)
		s.merger.begin(s.through)
	}
	s.rings.Unfinished = s.merger.next(rec)
	return s.rings.Unfinished
}

// Through returns the time up to which the round is complete. It is a few milliseconds
// before the start of the round.
func (s *Session) Through() int64 { return s.through }

// Close stops recording and ends a current Wait. A second Close has no effect.
func (s *Session) Close() error { return s.rings.Close(func() error { return nil }) }
