// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package procfs reads /proc.
//
// Every read is bounded in bytes or entries, because another process decides about the
// content of most files. The parsers of files that are read often do not allocate, so a
// caller that keeps a file open can use them on its own buffer.
package procfs

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
)

// An FS is the procfs below a root directory. It is safe for concurrent use.
type FS struct{ dir string }

// At returns the procfs of the host that has its root mounted at root. "" means "/".
func At(root string) FS {
	if root == "" {
		root = "/"
	}
	return FS{filepath.Join(root, "proc")}
}

// Path returns the path of a file of the procfs. Without elements it returns the path of
// the procfs.
func (fs FS) Path(elem ...string) string {
	return filepath.Join(append([]string{fs.dir}, elem...)...)
}

// Self stands for this process, regardless of its pid in the procfs.
const Self = 0

// File returns the path of a process's file.
func (fs FS) File(pid int, name string) string {
	if pid == Self {
		return fs.dir + "/self/" + name
	}
	return fs.dir + "/" + strconv.Itoa(pid) + "/" + name
}

// A Process is one process, as opposed to a later one with the same pid.
type Process struct {
	PID int
	// Start is the time of the process's fork, in clock ticks since boot (field 22 of
	// /proc/PID/stat). 0 stands for any process that has the pid.
	Start uint64
}

// Process returns the process that has a pid now.
func (fs FS) Process(pid int) (Process, error) {
	s, err := fs.Stat(pid)
	return Process{PID: pid, Start: s.Start}, err
}

// IsGone reports whether an error means that the process has ended, as opposed
// to a file that may not be read. ESRCH is the kernel's answer for a file that was
// opened before the process ended.
func IsGone(err error) bool { return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH) }

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

// OwnPID returns the pid of this process in the procfs, or 0 if it cannot be read. If it is
// not os.Getpid, the procfs belongs to another pid namespace than this process.
func (fs FS) OwnPID() int {
	self, err := os.Readlink(fs.Path("self"))
	pid, _ := strconv.Atoi(self)
	if err != nil || pid < 0 {
		return 0
	}
	return pid
}
