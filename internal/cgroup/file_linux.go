// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package cgroup

import "golang.org/x/sys/unix"

const supported = true

// inode returns a directory's inode number. For a cgroup in the v2 tree, it is the cgroup's
// id in the kernel.
func inode(dir string) (uint64, error) {
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		return 0, err
	}
	return st.Ino, nil
}

// childless reports whether a directory has no subdirectories. It reads the link count,
// because listing the files of a cgroup would take ten times as long.
func childless(dir string) bool {
	var st unix.Stat_t
	return unix.Stat(dir, &st) == nil && st.Nlink == 2
}

// writableByUsers reports whether users other than root may create cgroups in a directory.
func writableByUsers(dir string) bool {
	var st unix.Stat_t
	if unix.Stat(dir, &st) != nil {
		return false
	}
	return st.Uid != 0 || st.Mode&unix.S_IWOTH != 0 || st.Mode&unix.S_IWGRP != 0 && st.Gid != 0
}
