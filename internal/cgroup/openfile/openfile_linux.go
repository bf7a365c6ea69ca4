// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package openfile

import (
	"errors"

	"golang.org/x/sys/unix"
)

// Read reads the file from its start into buf with one system call. This suits files that
// the kernel writes in one piece, which are all files except lists of processes. If the
// file fills buf, the error is [ErrTooLarge]. replaced reports whether the path leads to a
// different file than at the last Read, because the cgroup was removed and created again.
func (f *File) Read(buf []byte) (n int, replaced bool, err error) {
	if f.isSet {
		n, err := pread(f.fd, buf, 0)
		if err == nil {
			return f.fits(n, buf, false)
		}
		if !errors.Is(err, unix.ENODEV) { // ENODEV: the cgroup was removed
			return 0, false, f.fail("read", err)
		}
		f.Close()
	}
	if replaced, err = f.openNow(); err != nil {
		return 0, false, err
	}
	n, err = pread(f.fd, buf, 0)
	if f.set.open > f.set.max {
		f.Close()
	}
	if err != nil {
		return 0, replaced, f.fail("read", err)
	}
	return f.fits(n, buf, replaced)
}

// ReadHead reads the start of the file into buf. Unlike Read, it returns no error if
// the file is larger than buf.
func (f *File) ReadHead(buf []byte) (n int, err error) {
	n, _, err = f.Read(buf)
	if errors.Is(err, ErrTooLarge) {
		return len(buf), nil
	}
	return n, err
}

func (f *File) fits(n int, buf []byte, replaced bool) (int, bool, error) {
	if n == len(buf) {
		return 0, replaced, f.fail("read", ErrTooLarge)
	}
	return n, replaced, nil
}

func (f *File) openNow() (replaced bool, err error) {
	for {
		f.fd, err = unix.Open(f.path, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if err != nil {
		return false, f.fail("open", err)
	}
	f.isSet = true
	f.set.open++
	var st unix.Stat_t
	if err := unix.Fstat(f.fd, &st); err != nil {
		f.Close()
		return false, f.fail("stat", err)
	}
	replaced = f.inode != 0 && f.inode != st.Ino
	f.inode = st.Ino
	return replaced, nil
}

// Close closes the file. A later Read opens it again.
func (f *File) Close() {
	if f.isSet {
		_ = unix.Close(f.fd)
		f.isSet = false
		f.set.open--
	}
}

func pread(fd int, buf []byte, offset int64) (int, error) {
	for {
		n, err := unix.Pread(fd, buf, offset)
		if err != unix.EINTR { //nolint:errorlint // the hot path; unix returns the bare number
			return n, err
		}
	}
}
