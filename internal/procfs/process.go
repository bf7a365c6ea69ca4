// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package procfs

// A Process is one process, as opposed to a later one with the same pid.
type Process struct {
	PID int
	// Start is the time of its fork, in clock ticks since boot (field 22 of
	// /proc/PID/stat); 0 stands for whichever process has the pid.
	Start uint64
}

// Process returns the process that has a pid now.
func (fs FS) Process(pid int) (Process, error) {
	s, err := fs.Stat(pid)
	return Process{PID: pid, Start: s.Start}, err
}
