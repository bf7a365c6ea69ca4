// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package allocs

import (
	"errors"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// identify tells which file a process runs, without opening it.
func (f files) identify(pid int) (fileID, error) {
	var st unix.Stat_t
	if err := unix.Stat(f.path(pid, "exe"), &st); err != nil {
		return fileID{}, &os.PathError{Op: "stat", Path: f.path(pid, "exe"), Err: err}
	}
	return identityOf(&st), nil
}

func identityOf(st *unix.Stat_t) fileID {
	return fileID{device: st.Dev, inode: st.Ino, size: st.Size, changed: st.Ctim.Nano()}
}

// open opens the file that a process runs, if it is still the one with that id.
// It is looked at before it is opened for reading.
func (f files) open(pid int, id fileID) (*os.File, error) {
	path := f.path(pid, "exe")
	fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	defer func() { _ = unix.Close(fd) }() // O_PATH: nothing to lose
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
	file, err := unix.Open("/proc/self/fd/"+strconv.Itoa(fd), unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	return os.NewFile(uintptr(file), name), nil
}

func gone(err error) bool { return errors.Is(err, unix.ESRCH) }
