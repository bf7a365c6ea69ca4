// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build unix

package store

import (
	"errors"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// flock locks a file, unless another process or store has it locked.
func flock(f *os.File) (locked bool, err error) {
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return false, nil
	}
	return err == nil, err
}

// bytesOnDisk returns the bytes that a file takes on disk: bbolt makes its files longer than
// what it has written.
func bytesOnDisk(st os.FileInfo) int64 {
	if sys, ok := st.Sys().(*syscall.Stat_t); ok {
		return sys.Blocks * 512
	}
	return st.Size()
}
