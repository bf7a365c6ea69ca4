// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package perfevent

import (
	"errors"
	"os"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/hotprofile/hotprofile/internal/perfevent/internal/record"
	"github.com/hotprofile/hotprofile/internal/perfevent/internal/sys"
	"github.com/hotprofile/hotprofile/internal/procfs"
)

// attributes builds the struct perf_event_attr of a session's events.
type attributes struct {
	features
	kernel   Kernel
	maxStack int
	// userStack is Options.UserStack. registers are the registers sampled with the stack.
	userStack uint32
	// prompt reports whether each sample wakes the reader.
	prompt    bool
	registers record.RegisterSet
	// switches reports whether the session samples context switches. tracepoints are the
	// tracepoints that the session samples instead of time.
	switches    bool
	tracepoints []Tracepoint
	// probes reports whether the session samples probes instead of time.
	probes bool
}

// sampleType returns the fields that the records of every event contain. Because all events
// of a session share one layout, a record can be decoded without knowing its event.
func (a attributes) sampleType() uint64 {
	t := uint64(unix.PERF_SAMPLE_IDENTIFIER | unix.PERF_SAMPLE_TID | unix.PERF_SAMPLE_TIME |
		unix.PERF_SAMPLE_CPU | unix.PERF_SAMPLE_CALLCHAIN)
	if !a.switches && len(a.tracepoints) == 0 {
		// With PERF_SAMPLE_PERIOD the kernel samples every switch or hit, whatever the
		// period.
		t |= unix.PERF_SAMPLE_PERIOD
	}
	if a.cgroup {
		t |= unix.PERF_SAMPLE_CGROUP
	}
	return t
}

func (a attributes) attr(config, bits uint64) *unix.PerfEventAttr {
	return sys.Attr(unix.PERF_TYPE_SOFTWARE, config, a.sampleType(), bits)
}

// recordBits request records of processes and their mappings. Build ids are not requested,
// because they would replace device and inode.
const recordBits = unix.PerfBitMmap | unix.PerfBitMmap2 | unix.PerfBitComm | unix.PerfBitCommExec | unix.PerfBitTask

// anchor returns the event that a ring is mapped from. The event has no counter. If records
// is true, the event reports every process that runs on its CPU, and starts enabled, because
// a disabled event emits no records.
func (a attributes) anchor(watermark int, records bool) *unix.PerfEventAttr {
	// An event that excludes the kernel needs no right to sample the kernel.
	bits := unix.PerfBitExcludeKernel | unix.PerfBitDisabled
	if records {
		bits = unix.PerfBitExcludeKernel | recordBits
	}
	attr := a.attr(unix.PERF_COUNT_SW_DUMMY, bits)
	attr.Wakeup = uint32(watermark)
	return attr
}

// sampling returns the event that takes samples. The event is a timer that fires
// once per period while its thread or CPU runs. In a session that samples
// context switches, the event instead counts context switches and reports each
// of them. The event starts disabled.
func (a attributes) sampling(period int64) *unix.PerfEventAttr {
	// Without exclude_idle, the kernel would sample the idle task of each idle CPU.
	bits := unix.PerfBitDisabled | unix.PerfBitExcludeIdle
	switch a.kernel {
	case KernelExcluded:
		bits |= unix.PerfBitExcludeKernel
	case KernelTime:
		bits |= unix.PerfBitExcludeCallchainKernel
	}
	config := uint64(unix.PERF_COUNT_SW_CPU_CLOCK)
	if a.switches {
		config, bits = unix.PERF_COUNT_SW_CONTEXT_SWITCHES, bits|unix.PerfBitContextSwitch
	}
	attr := a.attr(config, bits)
	attr.Sample = uint64(period)
	if a.prompt {
		attr.Bits &^= unix.PerfBitWatermark
		attr.Wakeup = 1
	}
	a.withStacks(attr)
	return attr
}

// withStacks adds stacks to the samples.
func (a attributes) withStacks(attr *unix.PerfEventAttr) {
	attr.Sample_max_stack = uint16(a.maxStack)
	if a.registers != (record.RegisterSet{}) {
		// The stack's fields come after the fields that all records share, so ids keep
		// their offset.
		attr.Sample_type |= unix.PERF_SAMPLE_REGS_USER | unix.PERF_SAMPLE_STACK_USER
		attr.Sample_regs_user = a.registers.Mask()
		attr.Sample_stack_user = a.userStack
	}
}

// hits returns the event that samples a tracepoint. The event starts disabled. In addition
// to the fields that all events share, its records contain the hit count and the
// tracepoint's own data.
func (a attributes) hits(t Tracepoint, period int64) *unix.PerfEventAttr {
	attr := sys.Attr(unix.PERF_TYPE_TRACEPOINT, t.ID, a.sampleType()|unix.PERF_SAMPLE_READ|unix.PERF_SAMPLE_RAW, unix.PerfBitDisabled)
	if a.kernel == KernelTime || t.Everywhere {
		attr.Bits |= unix.PerfBitExcludeCallchainKernel
	}
	attr.Sample = uint64(period)
	if a.formatLost {
		attr.Read_format = unix.PERF_FORMAT_LOST
	}
	a.withStacks(attr)
	if t.Everywhere {
		attr.Bits |= unix.PerfBitExcludeCallchainUser
		attr.Sample_stack_user = 0
	}
	return attr
}

// switchRecords returns the event that records context switches but takes no
// samples. The event starts disabled.
func (a attributes) switchRecords() *unix.PerfEventAttr {
	return a.attr(unix.PERF_COUNT_SW_DUMMY, unix.PerfBitDisabled|unix.PerfBitExcludeKernel|unix.PerfBitContextSwitch)
}

// ofThread returns the event that samples a thread and the threads that it starts. If
// records is true, the event also reports the mappings and children of these threads.
func (a attributes) ofThread(period int64, records bool) *unix.PerfEventAttr {
	attr := a.sampling(period)
	attr.Bits |= unix.PerfBitInherit
	if a.inheritThread {
		attr.Bits |= sys.AttrInheritThread
	}
	if records {
		attr.Bits |= recordBits
	}
	return attr
}

// features are the features of the running kernel.
type features struct {
	// inheritThread restricts an event to the threads of its process (Linux 5.13).
	inheritThread bool
	// cgroup adds the cgroup to samples (Linux 5.7). It is used only if the v2 tree owns
	// perf_event, because ids of a v1 hierarchy are useless elsewhere.
	cgroup bool
	// formatLost adds the number of lost samples to event counts (Linux 6.0).
	formatLost bool
}

func findFeatures() features {
	return features{
		inheritThread: inheritThread.supported(),
		cgroup:        sampleCgroup.supported() && unifiedOwnsPerfEvent(),
		formatLost:    formatLost.supported(),
	}
}

var (
	inheritThread = featureTest{bits: unix.PerfBitInherit | sys.AttrInheritThread}
	sampleCgroup  = featureTest{sampleType: unix.PERF_SAMPLE_CGROUP}
	formatLost    = featureTest{readFormat: unix.PERF_FORMAT_LOST}
	// inheritHits makes the kernel count hits per thread for inherited events (Linux 6.12).
	inheritHits = featureTest{bits: unix.PerfBitInherit | sys.AttrInheritThread, sampleType: unix.PERF_SAMPLE_READ}
)

// featureTest opens a dummy event of this process to test a feature. It repeats the test
// until the result is certain, because opening may also fail for lack of descriptors.
type featureTest struct {
	bits, sampleType, readFormat uint64

	mu             sync.Mutex
	certain, works bool
}

func (t *featureTest) supported() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.certain {
		return t.works
	}
	attr := attributes{}.anchor(1, false)
	attr.Bits |= t.bits
	attr.Sample_type |= t.sampleType
	attr.Read_format = t.readFormat
	fd, err := sys.Open(attr, 0, -1, 0)
	if err == nil {
		unix.Close(fd)
	}
	t.works = err == nil
	t.certain = t.works || errors.Is(err, unix.EINVAL) || errors.Is(err, unix.E2BIG)
	return t.works
}

// maxControllers is the maximum number of bytes read from /proc/cgroups. The file is
// usually about 500 bytes long.
const maxControllers = 64 << 10

// unifiedOwnsPerfEvent reports whether the v2 tree owns perf_event. This is the case
// unless a v1 hierarchy owns perf_event. Kernels without v1 have no /proc/cgroups.
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
