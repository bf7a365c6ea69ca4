// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package cputime

import (
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// threadTime returns the CPU time of the current thread in nanoseconds. It uses a raw
// system call, because the call never blocks. Announcing the call to the runtime would
// needlessly wake the runtime's monitor thread.
func threadTime() int64 {
	var ts unix.Timespec
	_, _, _ = unix.RawSyscall(unix.SYS_CLOCK_GETTIME, unix.CLOCK_THREAD_CPUTIME_ID, uintptr(unsafe.Pointer(&ts)), 0) // cannot fail for this clock
	return ts.Nano()
}

// OfProcess returns the CPU time that the kernel charged to a process since its start.
func OfProcess(pid int) (time.Duration, error) {
	const schedClock = 2 // CPUCLOCK_SCHED of a process, see clock_getcpuclockid(3)
	var ts unix.Timespec
	err := unix.ClockGettime(int32(^pid<<3|schedClock), &ts)
	return time.Duration(ts.Nano()), err
}
