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
	// KernelExcluded samples user mode alone. An unprivileged process may not sample more
	// at kernel.perf_event_paranoid 2.
	KernelExcluded Kernel = iota
	// KernelTime also samples time in the kernel, with the user's stack alone.
	KernelTime
	// KernelStacks samples time in the kernel with its stack.
	KernelStacks
)

// Options of a Session. The zero value of each field has a meaning.
type Options struct {
	// CPUs are the CPUs to sample. Empty means all CPUs that are online.
	CPUs []int
	// Period is the CPU time between two samples of a CPU or thread, at least 10 µs. 0
	// means 1 s / 97. 97 is prime, so sampling does not run in lockstep with timers.
	Period time.Duration
	// Switches, if above 0, samples the stack at every Nth context switch of a thread off
	// its CPU instead of in time, and records every switch. It needs KernelTime or
	// KernelStacks, because threads are switched in the kernel.
	Switches int
	// Tracepoints, if not empty, are sampled instead of time. They need HostWide and
	// KernelTime or KernelStacks.
	Tracepoints []Tracepoint
	// SplitSwitches records the context switches of AttachHost and AttachCgroup by events
	// of their own, in rings of their own. There, stacks that come faster than they are
	// read do not push them out. Switches of processes are not split, because twice as many
	// events per thread and CPU would be too many.
	SplitSwitches bool
	// Kernel selects how the kernel is sampled. KernelTime and KernelStacks need a right,
	// see Probe.
	Kernel Kernel
	// UserStack is the number of bytes of the user's stack that are copied into each
	// sample, with the registers to unwind from. 0 disables the copy. UserStack is a
	// multiple of 8, at most MaxUserStack. The kernel cuts a copy that would make the
	// record too long. SetUserStack changes UserStack.
	UserStack int
	// HostWide opens an event per CPU that reports every process of the host, which needs a
	// right, see Probe. AttachHost and AttachCgroup need it, and with it no FORK, EXIT,
	// COMM or MMAP record is missed during a pause. Without it the sampling events write
	// these records, for attached processes alone and not while paused. Read maps again
	// after Resume.
	HostWide bool
	// SampleRing is the bytes of each CPU's ring of samples, rounded up to a power of two
	// of pages. 0 means a second of the deepest stacks (128 KiB to 1 MiB, and up to 4 MiB
	// with copies of stacks). The ring of records is a CPU's part of 16 MiB (64 to 512
	// KiB). The larger ring is halved until both fit what the kernel lets this user lock.
	SampleRing int
	// MaxDescriptors bounds the descriptors of the session and of all attachments. 0 means
	// 4096. It is never above half of RLIMIT_NOFILE.
	MaxDescriptors int
}

// Tracepoint is a place in the kernel with hits to sample. Sample.Raw is the tracepoint's
// record.
type Tracepoint struct {
	// ID is the tracepoint's number in tracefs. Filter, unless it is empty, selects hits by
	// the fields of their records, in the language of tracefs.
	ID     uint64
	Filter string
	// Every is the number of hits per sample until SetHits. 0 means 1.
	Every int
	// Everywhere reports whether AttachTracepoint samples the tracepoint, without stacks,
	// on every CPU of the session. Other attachments make no difference.
	Everywhere bool
}

// MaxUserStack is the maximum of Options.UserStack.
const MaxUserStack = record.MaxUserStack

const defaultPeriod = time.Second / 97

// Stats are the counters of a Session since it was opened.
type Stats struct {
	// Lost counts the samples and context switches that did not fit a ring, LostRecords the
	// other records, LostSamples the samples that the kernel dropped before. If the session
	// is not HostWide all share a ring. There Lost is at most a sample per Period and CPU,
	// and has all records in a session that samples context switches.
	Lost, LostRecords, LostSamples uint64
	// Throttled counts how often the kernel stopped an event that fired too often.
	Throttled uint64
	// Corrupt counts records that are shorter than they declare, and parts of a ring that
	// were skipped because a header made no sense.
	Corrupt uint64
	// Unsampled counts the hits of tracepoints since the last sample of events that are
	// closed. No sample represents these hits.
	Unsampled uint64
	// Duplicate counts samples that were dropped because two events of one attachment
	// sample the same thread. Foreign counts dropped samples of children, which kernels
	// before 5.13 sample with their parent.
	Duplicate, Foreign uint64
}

// recordRingSize returns a CPU's part of the memory for records. A process that is started,
// runs a program and ends takes 1 to 2 KiB. At 1,000 a second on one CPU, a reader that
// does not run for a quarter of a second loses no record.
func recordRingSize(cpus int) int {
	return min(max(16<<20/max(cpus, 1), 64<<10), 512<<10)
}

// sampleRingSize returns the bytes of a second of the deepest samples, within bounds,
// because the reader may not run for that long. If stacks are copied, the rings of all CPUs
// have at most 32 MiB, or 512 KiB each.
func sampleRingSize(period int64, userStack, cpus int) int {
	perSecond := int64(time.Second) / max(period, 1)
	if userStack > 0 {
		second := perSecond * int64(record.DeepestSample+userStack)
		return int(max(min(second, 4<<20, int64(32<<20/max(cpus, 1))), 512<<10))
	}
	return int(min(max(perSecond*record.DeepestSample, 128<<10), 1<<20))
}

// switchRingSize returns a CPU's part of the memory for context switches or hits of
// tracepoints, as switches.Options.Ring does. With copies of stacks it holds at least 16 of
// the largest copies.
func switchRingSize(cpus, userStack int) int {
	if userStack > 0 {
		return min(max(64<<20/max(cpus, 1), 1<<20), 4<<20)
	}
	return min(max(16<<20/max(cpus, 1), 256<<10), 2<<20)
}
