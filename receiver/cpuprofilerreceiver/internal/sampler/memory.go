// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package sampler

import "github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/processes"

// shares are the parts of max_memory, in bytes.
type shares struct {
	// symbols is the memory for names from files, from perf maps and from the kernel.
	symbols int64
	// tables is the memory for unwind tables.
	tables int64
	// processes and stacks are the memory for the process tables of all samplers together.
	processes, stacks int64
}

// shareOut divides max_memory into parts. Go's garbage collector lets garbage grow to the
// size of the memory in use, so only half of max_memory may be in use.
func shareOut(maxMemory int64) shares {
	part := maxMemory / 2 / 64
	return shares{symbols: 22 * part, tables: 15 * part, processes: 9 * part, stacks: 18 * part}
}

// limits returns the limits of a sampler's table of processes. total is the sum of all
// weights.
func (s *shares) limits(weight, total int) processes.Limits {
	return processes.Limits{
		Bytes:      max(1, int(s.processes)*weight/total),
		StackBytes: max(1, int(s.stacks)*weight/total),
	}
}
