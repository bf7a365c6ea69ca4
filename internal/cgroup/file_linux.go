// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package cgroup

import "golang.org/x/sys/unix"

// inode returns a directory's inode number, which for a cgroup of the v2 tree is
// the kernel's id of it.
func inode(dir string) (uint64, error) {
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		return 0, err
	}
	return st.Ino, nil
}
