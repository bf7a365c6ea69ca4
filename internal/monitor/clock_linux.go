// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package monitor

import (
	"fmt"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/hotprofile/hotprofile/internal/procfs"
)

type systemClocks struct{}

// process returns the CPU time of a whole process. The clock's id is
// MAKE_PROCESS_CPUCLOCK(pid, CPUCLOCK_SCHED) in the kernel's posix-timers.h.
func (systemClocks) process(pid int) (time.Duration, error) {
	const sched = 2
	var ts unix.Timespec
	// The system call never blocks. Announcing it to the runtime would only
	// wake a thread for nothing.
	_, _, err := unix.RawSyscall(unix.SYS_CLOCK_GETTIME, uintptr(int32(^pid<<3|sched)), uintptr(unsafe.Pointer(&ts)), 0)
	switch err {
	case 0:
		return time.Duration(ts.Nano()), nil
	case unix.EINVAL, unix.ESRCH:
		return 0, ErrGone
	}
	return 0, fmt.Errorf("read the CPU clock of process %d: %w", pid, err)
}

func (systemClocks) ticks() uint64 { return procfs.Now() }
