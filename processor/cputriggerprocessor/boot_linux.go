// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package cputriggerprocessor

import (
	"time"

	"golang.org/x/sys/unix"
)

// bootTime is when the machine was started, by the clock that counts while it
// is suspended too. /proc/stat has it in whole seconds only.
func bootTime(now time.Time) time.Time {
	var ts unix.Timespec
	if unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts) != nil {
		return time.Time{}
	}
	return now.Add(-time.Duration(ts.Nano()))
}
