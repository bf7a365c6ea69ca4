// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build unix

package policyfile

import (
	"fmt"
	"io/fs"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// own sets the owner and the group of a file to the owner and the group of another file.
func own(f *os.File, like fs.FileInfo) error {
	was := like.Sys().(*syscall.Stat_t)
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if is := info.Sys().(*syscall.Stat_t); is.Uid == was.Uid && is.Gid == was.Gid {
		return nil
	}
	return f.Chown(int(was.Uid), int(was.Gid))
}

// writable returns an error if files in the directory cannot be replaced.
func writable(dir string) error {
	if err := unix.Access(dir, unix.W_OK|unix.X_OK); err != nil {
		return fmt.Errorf("the directory %s cannot be written: %w", dir, err)
	}
	return nil
}
