// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package cputime

import "golang.org/x/sys/unix"

// threadTime returns the CPU time of this thread in nanoseconds.
func threadTime() int64 {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &ts) // cannot fail for this clock
	return ts.Nano()
}
