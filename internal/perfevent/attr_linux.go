// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package perfevent

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// Bits of struct perf_event_attr that golang.org/x/sys does not name.
const (
	attrCgroup        = 1 << 32
	attrInheritThread = 1 << 35
)

// pidAll asks perf_event_open for every process.
const pidAll = -1

// features are what the kernel is found to understand.
type features struct {
	// inheritThread keeps an event to the threads of its process (5.13).
	inheritThread bool
	// userStack is what the session copies of stacks, see Options.UserStack, and
	// registers what it samples with them.
	userStack uint32
	registers registerSet
	// cgroup puts the cgroup into samples (5.7), and is of use only where the v2
	// tree owns perf_event: ids of a v1 hierarchy mean nothing to others.
	cgroup bool
	// switches is no feature but what the session samples, see Options.Switches.
	switches bool
}

// sampleType is what every event's records carry; one layout per session keeps
// records of one ring decodable whichever event wrote them.
func (f features) sampleType() uint64 {
	t := uint64(unix.PERF_SAMPLE_IDENTIFIER | unix.PERF_SAMPLE_TID | unix.PERF_SAMPLE_TIME |
		unix.PERF_SAMPLE_CPU | unix.PERF_SAMPLE_CALLCHAIN)
	if !f.switches {
		// With it the kernel samples every switch, whatever the period.
		t |= unix.PERF_SAMPLE_PERIOD
	}
	if f.cgroup {
		t |= unix.PERF_SAMPLE_CGROUP
	}
	return t
}

func (f features) attr(config uint64, bits uint64) *unix.PerfEventAttr {
	return &unix.PerfEventAttr{
		Type:        unix.PERF_TYPE_SOFTWARE,
		Size:        uint32(unsafe.Sizeof(unix.PerfEventAttr{})),
		Config:      config,
		Sample_type: f.sampleType(),
		// Watermark alone decides when to wake the reader; without it each sample
		// of wakeup_events would.
		Bits:    bits | unix.PerfBitSampleIDAll | unix.PerfBitUseClockID | unix.PerfBitExcludeHv | unix.PerfBitWatermark,
		Clockid: unix.CLOCK_MONOTONIC,
	}
}

// recordBits ask for what tells whose samples they are. Build ids are not asked
// for: they would take the place of device and inode.
const recordBits = unix.PerfBitMmap | unix.PerfBitMmap2 | unix.PerfBitComm | unix.PerfBitCommExec | unix.PerfBitTask

// anchor is the event that a ring is mapped from. It counts nothing; with
// records it tells of every process that runs on its CPU, and so must not be
// disabled: a disabled event emits no records.
func (f features) anchor(watermark int, records bool) *unix.PerfEventAttr {
	// Nothing of the kernel is asked for, so that no right to it is needed.
	bits := uint64(unix.PerfBitExcludeKernel)
	switch {
	case !records:
		bits |= unix.PerfBitDisabled
	case f.cgroup:
		bits |= recordBits | attrCgroup
	default:
		bits |= recordBits
	}
	a := f.attr(unix.PERF_COUNT_SW_DUMMY, bits)
	a.Wakeup = uint32(watermark)
	return a
}

// sampling is the event that samples: a timer that runs while the thread or CPU
// it is attached to does, and fires each period; or a counter of switches, which
// tells of each of them as well. It begins disabled.
func (f features) sampling(period int64, kernel Kernel, maxStack int) *unix.PerfEventAttr {
	// Without exclude_idle the idle task of each idle CPU is sampled.
	bits := unix.PerfBitDisabled | unix.PerfBitExcludeIdle
	switch kernel {
	case KernelExcluded:
		bits |= unix.PerfBitExcludeKernel
	case KernelTime:
		bits |= unix.PerfBitExcludeCallchainKernel
	}
	config := uint64(unix.PERF_COUNT_SW_CPU_CLOCK)
	if f.switches {
		config, bits = unix.PERF_COUNT_SW_CONTEXT_SWITCHES, bits|unix.PerfBitContextSwitch
	}
	a := f.attr(config, bits)
	a.Sample = uint64(period)
	a.Sample_max_stack = uint16(maxStack)
	if f.userStack > 0 {
		// Ids are where they are in the records of the other events.
		a.Sample_type |= unix.PERF_SAMPLE_REGS_USER | unix.PERF_SAMPLE_STACK_USER
		a.Sample_regs_user = f.registers.mask()
		a.Sample_stack_user = f.userStack
	}
	return a
}

// ofProcess makes a sampling event one for a thread and the threads it starts.
func (f features) ofProcess(a *unix.PerfEventAttr, records bool) *unix.PerfEventAttr {
	a.Bits |= unix.PerfBitInherit
	if f.inheritThread {
		a.Bits |= attrInheritThread
	}
	if records {
		a.Bits |= recordBits
	}
	return a
}

func openEvent(a *unix.PerfEventAttr, pid, cpu, flags int) (int, error) {
	for {
		fd, err := unix.PerfEventOpen(a, pid, cpu, -1, flags|unix.PERF_FLAG_FD_CLOEXEC)
		if err != unix.EINTR {
			return fd, err
		}
	}
}
