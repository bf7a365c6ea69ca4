// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package perfevent

import (
	"errors"
	"fmt"
	"os"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// settle is how long after a moment the records of it are waited for: a record
// takes its time before it is put into its ring, where a reader sees it some
// nanoseconds later, or, if a hypervisor takes the CPU away in between, once it
// has come back.
const settle = 5 * time.Millisecond

// lookPeriod is after how much time of a CPU a look at it is taken.
const lookPeriod = 100 * time.Microsecond

// Switches is a session of CPU-wide switch records and nothing else: which
// process runs on each CPU, at every moment, and the forks, execs and exits that
// tell processes apart. One goroutine calls Wait and Read; Wake and Close may be
// called from any.
type Switches struct {
	cpuRings
	looks   []int // descriptors of the events that Look enables, by CPU
	merger  switchMerger
	through int64
}

// OpenSwitches begins to record. Where that is not permitted, the error is a
// *RightsError.
func OpenSwitches(o SwitchOptions) (*Switches, error) {
	cpus, err := chosen(o.CPUs)
	if err != nil {
		return nil, err
	}
	if needed, limit := 2*len(cpus), descriptorLimit(o.MaxDescriptors); needed > limit {
		return nil, &LimitError{Needed: needed, Limit: limit}
	}
	ring := o.Ring
	if ring <= 0 {
		ring = switchRingFor(len(cpus), 0)
	}
	ring = ringSize(ring)
	s := &Switches{}
	s.what = "switch records"
	if err := s.open(cpus, func(cpu int) error { return s.openCPU(cpu, ring) }, func() bool { return halve(&ring) }); err != nil {
		return nil, explain(scopeHost, "following every switch between threads", err)
	}
	for i, r := range s.rings {
		s.merger.rings = append(s.merger.rings, &switchRing{ring: r.ring, cpu: i, coming: nobody})
	}
	return s, nil
}

func (s *Switches) openCPU(cpu, size int) error {
	anchor := switchAttr(unix.PERF_COUNT_SW_DUMMY, unix.PerfBitContextSwitch|unix.PerfBitTask|unix.PerfBitComm|unix.PerfBitCommExec|unix.PerfBitExcludeKernel)
	anchor.Wakeup = uint32(size / 4)
	r, err := mapRing(anchor, pidAll, cpu, size)
	if err != nil {
		return err
	}
	s.add(r)
	// The idle task is looked at too.
	look := switchAttr(unix.PERF_COUNT_SW_CPU_CLOCK, unix.PerfBitDisabled)
	look.Sample = uint64(lookPeriod)
	fd, err := openEvent(look, pidAll, cpu, 0)
	if err != nil {
		return err
	}
	r.with = append(r.with, fd)
	if err := unix.IoctlSetInt(fd, unix.PERF_EVENT_IOC_SET_OUTPUT, r.fd); err != nil {
		return fmt.Errorf("redirecting the event of CPU %d: %w", cpu, err)
	}
	// CPUs that are left out left nothing here.
	s.looks = append(s.looks[:len(s.cpus)], fd)
	return nil
}

// switchAttr is an event whose records end in switchTrailer.
func switchAttr(config, bits uint64) *unix.PerfEventAttr {
	return &unix.PerfEventAttr{
		Type:        unix.PERF_TYPE_SOFTWARE,
		Size:        uint32(unsafe.Sizeof(unix.PerfEventAttr{})),
		Config:      config,
		Sample_type: unix.PERF_SAMPLE_TID | unix.PERF_SAMPLE_TIME,
		Bits:        bits | unix.PerfBitSampleIDAll | unix.PerfBitUseClockID | unix.PerfBitExcludeHv | unix.PerfBitWatermark,
		Clockid:     unix.CLOCK_MONOTONIC,
	}
}

// Look has every CPU tell once, in a moment, what runs on it, so that this is
// known before it next switches.
func (s *Switches) Look() error {
	s.reading.Lock()
	defer s.reading.Unlock()
	if s.closed.Load() {
		return fmt.Errorf("looking at what runs: %w", os.ErrClosed)
	}
	var errs []error
	for i, fd := range s.looks {
		// Enabled for one sample; nothing to do where the CPU went offline.
		if err := unix.IoctlSetInt(fd, unix.PERF_EVENT_IOC_REFRESH, 1); err != nil && !errors.Is(err, unix.ENODEV) {
			errs = append(errs, fmt.Errorf("looking at what runs on CPU %d: %w", s.cpus[i], err))
		}
	}
	return errors.Join(errs...)
}

// Read fills rec with the next record of a round, those of all CPUs by time. It
// returns false at the round's end, or when the session is closed: everything up
// to Through was handed over then. It allocates nothing.
func (s *Switches) Read(rec *SwitchRecord) bool {
	s.reading.Lock()
	defer s.reading.Unlock()
	if s.closed.Load() {
		return false
	}
	if !s.round {
		s.through = monotonic() - int64(settle)
		s.merger.begin(s.through)
		s.round = true
	}
	s.round = s.merger.next(rec)
	return s.round
}

// Through is the moment, as Time of a record, that the round reaches to: a few
// milliseconds before it began.
func (s *Switches) Through() int64 { return s.through }

// Corrupt counts records, and stretches of a ring, that made no sense.
func (s *Switches) Corrupt() uint64 { return s.merger.corrupt }

// Close ends the recording. A Wait under way returns. A second Close does
// nothing.
func (s *Switches) Close() error {
	return s.close(func() error {
		s.merger.rings, s.merger.heap = nil, nil
		return nil
	})
}
