// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package procfs

import "time"

// Tick is the unit of times in /proc, 1/USER_HZ. USER_HZ is 100 on every
// architecture of Linux that Go runs on.
const Tick = 10 * time.Millisecond

// maxTicks bounds start times, so that no duration of so many ticks overflows: 174
// years.
const maxTicks = 1 << 39

// BootTime returns when the host booted, by the wall clock as it is set now and
// rounded to a tick; zero if unknown. btime in /proc/stat is the same in whole
// seconds, so start times of programs that use it are up to a second earlier.
func BootTime() time.Time {
	best, least := time.Time{}, time.Duration(-1)
	for range 3 { // the least disturbed of three readings
		before := sinceBoot()
		now := time.Now()
		took := sinceBoot() - before
		if before == 0 {
			return time.Time{}
		}
		if least < 0 || took < least {
			best, least = now.Add(-before-took/2), took
		}
	}
	return best.Round(0).UTC().Round(Tick)
}

// TimeOf returns the time that is ticks after boot; zero if boot is.
func TimeOf(boot time.Time, ticks uint64) time.Time {
	if boot.IsZero() {
		return boot
	}
	return boot.Add(time.Duration(min(ticks, maxTicks)) * Tick)
}

// Now returns the clock ticks since the host booted.
func Now() uint64 { return uint64(sinceBoot() / Tick) }
