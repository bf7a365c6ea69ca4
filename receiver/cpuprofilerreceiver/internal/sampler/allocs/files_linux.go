// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package allocs

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/hotprofile/hotprofile/internal/procfs"
)

// identify returns the identity of the file that a process runs, without opening it.
func (f files) identify(pid int) (fileID, error) {
	var st unix.Stat_t
	if err := unix.Stat(f.File(pid, "exe"), &st); err != nil {
		return fileID{}, &os.PathError{Op: "stat", Path: f.File(pid, "exe"), Err: err}
	}
	return identityOf(&st), nil
}

func identityOf(st *unix.Stat_t) fileID {
	device := uint64(unix.Major(st.Dev))<<32 | uint64(unix.Minor(st.Dev)) // as deadline.Key has it
	return fileID{device: device, inode: st.Ino, size: st.Size, changed: st.Ctim.Nano()}
}

// open opens the file that a process runs, if its id is still the same. It checks
// the file before it opens it for reading.
func (f files) open(pid int, id fileID) (*os.File, error) {
	path := f.File(pid, "exe")
	fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	defer func() { _ = unix.Close(fd) }() // O_PATH: no data can be lost
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, &os.PathError{Op: "stat", Path: path, Err: err}
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil, fmt.Errorf("open %s: it is not a regular file", path)
	}
	if identityOf(&st) != id {
		return nil, fmt.Errorf("open %s: %w: it runs another program by now", path, os.ErrProcessDone)
	}
	name, err := os.Readlink(path)
	if err != nil {
		name = path
	}
	return procfs.OpenPath(fd, name)
}
