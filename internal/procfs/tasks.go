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

// PIDs returns the processes that there are, at most [MaxPID].
func (fs FS) PIDs() ([]int, error) { return ids(fs.dir) }

// Threads returns the threads of a process, at most [MaxPID].
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

// NumbersAlike reports whether this procfs gives this process the pid that the
// kernel gives it in system calls. If not, its pids are those of another pid
// namespace.
func (fs FS) NumbersAlike() bool {
	self, err := os.Readlink(fs.Path("self"))
	return err == nil && self == strconv.Itoa(os.Getpid())
}
