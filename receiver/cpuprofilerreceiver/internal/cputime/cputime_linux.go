// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package cputime

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// threadTime returns the CPU time of this thread in nanoseconds. The system call is raw:
// it never blocks, and one that the runtime is told of wakes its monitor thread.
func threadTime() int64 {
	var ts unix.Timespec
	_, _, _ = unix.RawSyscall(unix.SYS_CLOCK_GETTIME, unix.CLOCK_THREAD_CPUTIME_ID, uintptr(unsafe.Pointer(&ts)), 0) // cannot fail for this clock
	return ts.Nano()
}
