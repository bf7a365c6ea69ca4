// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package procfs

import "time"

// A Listed is a process in the process list of Windows.
type Listed struct {
	Process
	Name     string // name of the executable file, without its directory
	PPID     int
	Used     time.Duration // user and kernel time of all threads, in steps of a clock interrupt
	Threads  int
	Resident uint64 // working set in bytes
}
