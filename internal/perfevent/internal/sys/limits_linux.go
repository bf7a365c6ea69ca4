// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package sys

import (
	"golang.org/x/sys/unix"

	"github.com/hotprofile/hotprofile/internal/procfs"
)

// defaultMaxDescriptors is the limit where options set none.
const defaultMaxDescriptors = 4096

// DescriptorLimit returns how many descriptors perf events may take: limit, or
// 4096 where that is not above 0, and at most half of RLIMIT_NOFILE.
func DescriptorLimit(limit int) int {
	if limit <= 0 {
		limit = defaultMaxDescriptors
	}
	return min(limit, procfs.OpenFileLimit()/2)
}

// StackDepth returns how many frames the kernel records of a stack.
func StackDepth() int {
	if n, err := procfs.Sysctl("kernel/perf_event_max_stack"); err == nil && n > 0 && n < MaxStackDepth {
		return n
	}
	return MaxStackDepth
}

// Monotonic returns CLOCK_MONOTONIC in nanoseconds, the clock of all records.
func Monotonic() int64 {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts) // cannot fail for this clock
	return ts.Nano()
}
