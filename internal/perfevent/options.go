// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package perfevent

import (
	"time"

	"github.com/hotprofile/hotprofile/internal/perfevent/internal/record"
)

// Kernel selects how time spent in the kernel is sampled.
type Kernel uint8

const (
	// KernelExcluded samples only user mode. At kernel.perf_event_paranoid 2, an
	// unprivileged process cannot sample the kernel.
	KernelExcluded Kernel = iota
	// KernelTime also samples time in the kernel, but records only the user-space stack.
	KernelTime
	// KernelStacks samples time in the kernel and records the kernel's stack.
	KernelStacks
)

// Options are the options of a Session. The zero value of each field is valid.
type Options struct {
	// CPUs are the CPUs to sample. An empty list means all CPUs that are online.
	CPUs []int
	// Period is the CPU time between two samples of a CPU or thread, at least 10 µs. 0
	// means 1 s / 97. 97 is prime, so sampling does not run in lockstep with timers.
	Period time.Duration
	// Switches selects the sampling of context switches instead of time. If Switches is a
	// positive number N, the session records every switch, and samples the stack at every
	// Nth switch that takes a thread off its CPU. Switches needs KernelTime or KernelStacks,
	// because threads are switched in the kernel.
	Switches int
	// If Tracepoints is not empty, the session samples tracepoints instead of time. Tracepoints
	// require HostWide, and either KernelTime or KernelStacks.
	Tracepoints []Tracepoint
	// Probes makes the session sample hits of the probes that AttachProbe places, with their
	// stacks, instead of time. Probes needs HostWide.
	Probes bool
	// SplitSwitches makes AttachHost and AttachCgroup record context switches with separate
	// events and in separate rings. Stacks that arrive faster than they are read then do not
	// displace switches. Switches of processes are not split, because that would double the
	// events per thread and CPU.
	SplitSwitches bool
	// Kernel selects how the kernel is sampled. KernelTime and KernelStacks need additional
	// rights. See Probe.
	Kernel Kernel
	// UserStack is the number of bytes of the user's stack that the kernel copies into each
	// sample, with the registers for unwinding. 0 disables the copy. UserStack must be a
	// multiple of 8, at most MaxUserStack. The kernel shortens a copy that would make the
	// record too long. SetUserStack changes UserStack.
	UserStack int
	// HostWide opens an event per CPU that reports every process of the host. It needs
	// additional rights. See Probe. AttachHost and AttachCgroup need HostWide. With HostWide,
	// no FORK, EXIT, COMM or MMAP record is missed during a pause. Without HostWide, the
	// sampling events write these records. In this case, the records cover only attached
	// processes and are missing during a pause. Read the maps again after Resume.
	HostWide bool
	// SampleRing is the size in bytes of each CPU's ring of samples. It is rounded
	// up to a power of two of pages. In a session that samples time, 0 means one
	// second of the deepest stacks: 128 KiB to 1 MiB, or 512 KiB to 4 MiB with
	// copies of stacks. The size of the ring of records is 16 MiB divided by the
	// number of CPUs, but at least 64 KiB and at most 512 KiB. The larger ring is
	// halved until the user may lock both rings.
	SampleRing int
	// MaxDescriptors is the maximum number of file descriptors of the session and of all
	// attachments. 0 means 4096. The limit is never above half of RLIMIT_NOFILE.
	MaxDescriptors int
}

// Tracepoint is a kernel tracepoint whose hits are sampled. Sample.Raw is the tracepoint's
// record of a hit.
type Tracepoint struct {
	// ID is the tracepoint's number in tracefs. If Filter is not empty, it selects hits by
	// the fields of their records. Filter has the syntax of filters in tracefs.
	ID     uint64
	Filter string
	// Every is the number of hits per sample until SetHits changes it. 0 means 1.
	Every int
	// Everywhere reports whether the tracepoint is sampled on every CPU of the session,
	// without stacks. Only AttachTracepoint samples such a tracepoint. Other attachments
	// ignore it.
	Everywhere bool
}

// MaxUserStack is the maximum of Options.UserStack.
const MaxUserStack = record.MaxUserStack

const defaultPeriod = time.Second / 97

// Stats contains the counters of a Session since it was opened.
type Stats struct {
	// Lost counts the samples and context switches that did not fit into a ring. LostRecords
	// counts other records that did not fit. LostSamples counts samples that the kernel
	// dropped earlier. Without HostWide, all records share one ring, and the kernel does
	// not report the kind of a lost record. In this case, Lost counts at most one lost record
	// per Period and CPU as a sample. If such a session samples context switches, Lost counts
	// all lost records.
	Lost, LostRecords, LostSamples uint64
	// Throttled is the number of times that the kernel stopped
	// an event that fired too often.
	Throttled uint64
	// Corrupt counts records that are shorter than they declare, and parts of a ring that
	// were skipped because a header was invalid.
	Corrupt uint64
	// Unsampled counts tracepoint hits that no sample represents, because their event was
	// closed before its next sample.
	Unsampled uint64
	// Duplicate counts samples that were dropped because two events of one attachment
	// sampled the same thread. Foreign counts dropped samples of child processes. Kernels
	// before 5.13 sample children with their parent.
	Duplicate, Foreign uint64
}

// recordRingSize returns the size of a CPU's ring of records. The records of a process that
// starts, executes a program and ends need 1 to 2 KiB. If one CPU runs 1,000 such processes
// a second, a reader can be blocked for a quarter of a second without losing a record.
func recordRingSize(cpus int) int {
	return min(max(16<<20/max(cpus, 1), 64<<10), 512<<10)
}

// sampleRingSize returns the size of a ring for samples. Between a minimum and a maximum, the
// ring has room for one second of the deepest samples, because the reader may be delayed by
// up to a second. With copies of stacks, the rings of all CPUs together need at most 32 MiB,
// or 512 KiB each if that is more.
func sampleRingSize(period int64, userStack, cpus int) int {
	perSecond := int64(time.Second) / max(period, 1)
	if userStack > 0 {
		second := perSecond * int64(record.DeepestSample+userStack)
		return int(max(min(second, 4<<20, int64(32<<20/max(cpus, 1))), 512<<10))
	}
	return int(min(max(perSecond*record.DeepestSample, 128<<10), 1<<20))
}

// switchRingSize returns the size of a CPU's ring for context switches or tracepoint hits,
// like the rings of package switches. With copies of stacks, the ring holds at least
// 16 of the largest copies.
func switchRingSize(cpus, userStack int) int {
	if userStack > 0 {
		return min(max(64<<20/max(cpus, 1), 1<<20), 4<<20)
	}
	return min(max(16<<20/max(cpus, 1), 256<<10), 2<<20)
}
