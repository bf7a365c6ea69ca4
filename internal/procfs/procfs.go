// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package procfs reads /proc.
//
// Every read is bounded in bytes or entries, because other processes control the content
// of most files. The parsers of frequently read files do not allocate. A caller that
// keeps a file open can use these parsers on its own buffer.
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

// At returns the procfs of the host whose root is mounted at root. An empty root means "/".
func At(root string) FS {
	if root == "" {
		root = "/"
	}
	return FS{filepath.Join(root, "proc")}
}

// Path returns the path of a file in the procfs. Without elements, it returns
// the path of the procfs itself.
func (fs FS) Path(elem ...string) string {
	return filepath.Join(append([]string{fs.dir}, elem...)...)
}

// Self is a pid that means this process, regardless of its pid in the procfs.
const Self = 0

// File returns the path of a process's file.
func (fs FS) File(pid int, name string) string {
	if pid == Self {
		return fs.dir + "/self/" + name
	}
	return fs.dir + "/" + strconv.Itoa(pid) + "/" + name
}

// A Process identifies one process, even if a later process gets the same pid.
type Process struct {
	PID int
	// Start is the time of the process's fork, in clock ticks since boot (field 22 of
	// /proc/PID/stat). 0 matches any process with the pid.
	Start uint64
}

// A Namespace identifies a namespace of the kernel.
type Namespace struct{ Device, Inode uint64 }

// Process returns the process that currently has a pid.
func (fs FS) Process(pid int) (Process, error) {
	s, err := fs.Stat(pid)
	return Process{PID: pid, Start: s.Start}, err
}

// IsGone reports whether an error means that the process has ended, as opposed to an
// unreadable file. The kernel returns ESRCH for a file that was opened before the process
// ended.
func IsGone(err error) bool { return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH) }

// MaxPID is the kernel's PID_MAX_LIMIT, the maximum number of threads on a host.
const MaxPID = 4 << 20

// Threads returns the thread ids of a process. It returns at most [MaxPID] ids.
func (fs FS) Threads(pid int) ([]int, error) { return ids(fs.File(pid, "task")) }

// ids returns the names in a directory that are positive numbers.
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

// OwnPID returns the pid of this process in the procfs, or 0 if it cannot be read. If
// OwnPID differs from os.Getpid, the procfs belongs to another pid namespace.
func (fs FS) OwnPID() int {
	self, err := os.Readlink(fs.Path("self"))
	pid, _ := strconv.Atoi(self)
	if err != nil || pid < 0 {
		return 0
	}
	return pid
}
