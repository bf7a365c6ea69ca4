// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"errors"

	"golang.org/x/sys/unix"
)

const supported = true

// inode returns a directory's inode number, which for a cgroup of the v2 tree is
// the kernel's id of it.
func inode(dir string) (uint64, error) {
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		return 0, err
	}
	return st.Ino, nil
}

// childless says whether a directory is sure to have no subdirectories, by its
// number of links: a tenth of the cost of listing the files of a cgroup.
func childless(dir string) bool {
	var st unix.Stat_t
	return unix.Stat(dir, &st) == nil && st.Nlink == 2
}

// isVanished says whether an error is what the kernel answers for a file, already
// open, of a process that ended (ESRCH) or a cgroup that was removed (ENODEV).
func isVanished(err error) bool {
	return errors.Is(err, unix.ESRCH) || errors.Is(err, unix.ENODEV)
}

// isThreaded says whether an error is what the kernel answers for the processes
// of a threaded cgroup: they are listed in the domain above.
func isThreaded(err error) bool { return errors.Is(err, unix.EOPNOTSUPP) }

// isUnsupported says whether an error is what the kernel answers for the pressure
// of cgroups where that is off.
func isUnsupported(err error) bool { return errors.Is(err, unix.EOPNOTSUPP) }
