// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package procfs

import (
	"errors"
	"io"
	"os"
	"strconv"
)

// MaxPID is the kernel's PID_MAX_LIMIT: a host has no more threads.
const MaxPID = 4 << 20

// PIDs returns the pids of all processes, at most [MaxPID].
func (fs FS) PIDs() ([]int, error) { return ids(fs.dir) }

// Threads returns the ids of a process's threads, at most [MaxPID].
func (fs FS) Threads(pid int) ([]int, error) { return ids(fs.File(pid, "task")) }

// ids returns the numbers among the names in a directory.
func ids(dir string) ([]int, error) {
	d, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	names, err := d.Readdirnames(MaxPID)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	out := make([]int, 0, len(names))
	for _, name := range names {
		if id, err := strconv.Atoi(name); err == nil && id > 0 {
			out = append(out, id)
		}
	}
	return out, nil
}

// OwnPID returns the pid of this process in the procfs; 0 if it cannot be read. If it
// is not os.Getpid, the procfs is of another pid namespace than this process.
func (fs FS) OwnPID() int {
	self, err := os.Readlink(fs.Path("self"))
	pid, _ := strconv.Atoi(self)
	if err != nil || pid < 0 {
		return 0
	}
	return pid
}
