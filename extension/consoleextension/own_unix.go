// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build unix

package consoleextension

import "golang.org/x/sys/unix"

// cpuSeconds returns the CPU time of this process.
func cpuSeconds() float64 {
	var used unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &used) != nil {
		return 0
	}
	return float64(used.Utime.Nano()+used.Stime.Nano()) / 1e9
}
