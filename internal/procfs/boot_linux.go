// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package procfs

import (
	"time"

	"golang.org/x/sys/unix"
)

// sinceBoot reads the clock of start times in /proc/PID/stat, which runs while the
// host is suspended too.
func sinceBoot() time.Duration {
	var ts unix.Timespec
	if unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts) != nil {
		return 0 // no kernel that has perf events lacks it
	}
	return time.Duration(ts.Nano())
}
