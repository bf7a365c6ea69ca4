// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

// Package uprobe places probes in the files of programs (uprobes). It records the stack and
// one register of each thread that hits a probe.
package uprobe

import (
	"github.com/hotprofile/hotprofile/internal/perfevent/internal/record"
	"github.com/hotprofile/hotprofile/internal/perfevent/internal/sys"
)

// Options are the options of a Session. The zero value of each field is valid.
type Options struct {
	// CPUs are the CPUs on which hits are recorded. An empty list means all online CPUs.
	CPUs []int
	// Ring is the size in bytes of each CPU's ring of hits. It is rounded up to a power of
	// two of pages, and halved until the user may lock it. 0 means 512 KiB, which holds the
	// hits of 50 ms of a program that allocates 10 GB per second.
	Ring int
	// MaxDescriptors bounds the file descriptors: two per CPU, and one per probe and CPU. 0
	// means 4096. The limit is never above half of RLIMIT_NOFILE.
	MaxDescriptors int
}

const (
	defaultRing = 512 << 10
	// recordRing is the size in bytes of each CPU's ring of other records. It has room for
	// the startup of a few hundred programs.
	recordRing = 128 << 10
)

// Record is one record of a Session. Every Read overwrites the Record, so its slices are
// valid only until the next Read.
type Record struct {
	// Record is a TypeSample for a hit. It then contains the stack of the thread that hit
	// the probe. Other records are TypeMmap, TypeComm or TypeLost.
	record.Record
	// Probe is the probe that was hit. It is nil if the probe has been detached.
	Probe *Probe
	// Value is the value of the probe's register. It is valid if HasValue is true.
	Value    uint64
	HasValue bool
}

// Stats are the counters of a Session since it was opened.
type Stats struct {
	// Lost counts hits that did not fit a ring, and hits that the kernel dropped earlier.
	// LostRecords counts other records that did not fit.
	Lost, LostRecords uint64
	// Corrupt counts records that are shorter than they declare, and parts of a ring that
	// were skipped because a header was invalid.
	Corrupt uint64
}

// registerOf decodes the words after the callchain of a hit: {u64 abi; u64 regs[1]}. The
// register is missing if abi is PERF_SAMPLE_REGS_ABI_NONE.
func registerOf(words []uint64) (value uint64, ok bool) {
	rest := record.AfterCallchain(words)
	if len(rest) < 2 || rest[0] != sys.RegistersABI64 {
		return 0, false
	}
	return rest[1], true
}
