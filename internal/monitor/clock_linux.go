// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package monitor

import (
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hotprofile/hotprofile/internal/procfs"
)

type systemClocks struct{}

// process reads the CPU clock of a whole process. Its id is that of
// MAKE_PROCESS_CPUCLOCK(pid, CPUCLOCK_SCHED) in the kernel's posix-timers.h.
func (systemClocks) process(pid int) (time.Duration, error) {
	const sched = 2
	var ts unix.Timespec
	if err := unix.ClockGettime(int32(^pid<<3|sched), &ts); err != nil {
		if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ESRCH) {
			return 0, ErrGone
		}
		return 0, fmt.Errorf("read the CPU clock of process %d: %w", pid, err)
	}
	return time.Duration(ts.Nano()), nil
}

func (systemClocks) ticks() uint64 { return procfs.Now() }
