// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package perfevent

import "errors"

// ErrNoUprobes is returned where the kernel has no uprobes that perf events can
// use.
var ErrNoUprobes = errors.New("probes in programs need Linux with CONFIG_UPROBE_EVENTS, and /sys mounted")

// UprobeOptions of Uprobes. The zero value of each field has a meaning.
type UprobeOptions struct {
	// CPUs are those on which probes are heard; empty means all that are online.
	CPUs []int
	// Ring is the bytes of each CPU's ring, rounded up to a power of two of pages;
	// 0 means 512 KiB: half a tenth of a second of a program that allocates 10 GB
	// in one. It is halved until it fits what the kernel lets this user lock.
	Ring int
	// MaxDescriptors bounds the descriptors, of which each CPU takes one and each
	// probe one per CPU; 0 means 4096. It is never above half of RLIMIT_NOFILE.
	MaxDescriptors int
}

const defaultProbeRing = 512 << 10

// UprobeRecord is one record of Uprobes. Like a Record it is filled again by every
// Read.
type UprobeRecord struct {
	// Record is a TypeSample where a probe was hit, with the stack of the thread
	// that hit it; or TypeMmap, TypeComm or TypeLost.
	Record
	// Uprobe is the one that was hit; nil where it is detached by now.
	Uprobe *Uprobe
	// Value is what the probe's register held, Valued says whether that is known.
	Value  uint64
	Valued bool
}

// UprobeStats are the counters of Uprobes since they were opened.
type UprobeStats struct {
	// Lost are records that did not fit a ring, or that the kernel gave up before.
	Lost uint64
	// Corrupt are records that did not hold what their header says, and stretches
	// of a ring that were skipped because a header made no sense.
	Corrupt uint64
}

// register reads what follows the callchain of a sample: {u64 abi; u64 regs[1]},
// the register only where abi is not PERF_SAMPLE_REGS_ABI_NONE.
func register(words []uint64) (value uint64, ok bool) {
	const abi64 = 2
	if len(words) < sampleIPs || words[sampleNr] > uint64(len(words)-sampleIPs) {
		return 0, false
	}
	rest := words[sampleIPs+int(words[sampleNr]):]
	if len(rest) < 2 || rest[0] != abi64 {
		return 0, false
	}
	return rest[1], true
}
