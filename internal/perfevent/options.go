// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package perfevent

import "time"

// Kernel says how much of the time spent in the kernel is sampled.
type Kernel uint8

const (
	// KernelExcluded samples user mode alone: all that an unprivileged process
	// may at kernel.perf_event_paranoid 2.
	KernelExcluded Kernel = iota
	// KernelTime samples time in the kernel too, with the user's stack alone.
	KernelTime
	// KernelStacks samples time in the kernel with its stack.
	KernelStacks
)

// Options of a Session. The zero value of each field has a meaning.
type Options struct {
	// CPUs are those to sample; empty means all that are online.
	CPUs []int
	// Period is the CPU time between two samples of a CPU or thread; 0 means
	// 1 s / 97. The kernel takes nothing below 10 µs.
	Period time.Duration
	// Switches samples the stack of every so manieth switch of a thread off its
	// CPU, in place of stacks in time, and has every switch told by a record; 0
	// samples in time. It needs KernelTime or KernelStacks: threads are switched
	// in the kernel.
	Switches int
	// Kernel says what is sampled of the kernel. KernelTime and KernelStacks
	// need a right, see Probe.
	Kernel Kernel
	// UserStack is how many bytes of the user's stack are copied into each sample,
	// with the registers that unwinding it begins with; 0 copies nothing. The
	// kernel takes multiples of 8 up to MaxUserStack, and clips a copy that would
	// make the record too long.
	UserStack int
	// HostWide opens an event per CPU that tells of every process of the host,
	// which needs a right, see Probe. AttachHost and AttachCgroup need it, and
	// with it no FORK, EXIT, COMM or MMAP record is missed during a pause.
	// Without it these records come from the sampling events, of the attached
	// processes alone and not while paused: read maps again after Resume.
	HostWide bool
	// SampleRing and RecordRing are the bytes of each CPU's two rings, rounded
	// up to a power of two of pages; 0 means a second's worth of the deepest
	// stacks (at least 128 KiB, at most 1 MiB), and 16 MiB shared out among the
	// CPUs, each 64 to 512 KiB of it. The larger is halved until both fit what
	// the kernel lets this user lock.
	SampleRing, RecordRing int
	// MaxDescriptors bounds the descriptors of all that is attached and of the
	// session itself; 0 means 4096. It is never above half of RLIMIT_NOFILE.
	MaxDescriptors int
}

// MaxUserStack is the most that Options.UserStack may be.
const MaxUserStack = 65528

const (
	defaultPeriod         = time.Second / 97
	defaultMaxDescriptors = 4096
)

// Stats are the counters of a Session since it was opened.
type Stats struct {
	// Lost are records that did not fit a ring, LostSamples those that the
	// kernel gave up before.
	Lost, LostSamples uint64
	// Throttled is how often the kernel stopped an event that fired too often.
	Throttled uint64
	// Corrupt are records that did not hold what their header says, and stretches
	// of a ring that were skipped because a header made no sense.
	Corrupt uint64
	// Duplicate are samples left out because the same thread is sampled by two
	// events of one attachment, Foreign those of children that a kernel before 5.13
	// samples along with their parent.
	Duplicate, Foreign uint64
}

// recordRingFor shares out the memory of the records. A process that is started,
// runs a program and ends takes 1 to 2 KiB, so that at 1,000 a second on one CPU
// a reader that is kept from running for a quarter of a second loses none.
func recordRingFor(cpus int) int {
	return min(max(16<<20/max(cpus, 1), 64<<10), 512<<10)
}

// sampleRingFor is a second's worth of samples as deep as they come, within
// bounds: the reader may be kept from running that long.
func sampleRingFor(period int64, userStack int) int {
	const deepest = (sampleIPs + maxStackDepth + 4) * wordSize
	perSecond := int64(time.Second) / max(period, 1)
	if userStack > 0 {
		return int(min(max(perSecond*int64(deepest+userStack), 512<<10), 4<<20))
	}
	return int(min(max(perSecond*deepest, 128<<10), 1<<20))
}
