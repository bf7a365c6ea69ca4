// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package peers

import (
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hotprofile/hotprofile/internal/procfs"
)

// fileID identifies the namespace of a file such as /proc/PID/ns/net.
func fileID(path string) (nsID, error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return nsID{}, &os.PathError{Op: "stat", Path: path, Err: err}
	}
	return nsID{st.Dev, st.Ino}, nil
}

// statID is fileID of an open file.
func statID(f *os.File) (nsID, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return nsID{}, err
	}
	return nsID{st.Dev, st.Ino}, nil
}

// socketsOf adds the inodes of the sockets that a process has open. It reports false if
// it could not read all of them by the deadline.
func socketsOf(proc procfs.FS, pid int, inodes map[uint32]bool, deadline time.Time) bool {
	d, err := os.Open(proc.File(pid, "fd"))
	if err != nil {
		return procfs.IsGone(err)
	}
	defer d.Close()
	var buf [64]byte
	for {
		names, err := d.Readdirnames(256)
		for _, name := range names {
			n, err := unix.Readlinkat(int(d.Fd()), name, buf[:])
			if err != nil {
				continue
			}
			if inode, ok := socketInode(string(buf[:n])); ok {
				inodes[inode] = true
			}
		}
		switch {
		case err != nil || len(names) == 0:
			return true
		case !time.Now().Before(deadline) || len(inodes) >= maxSockets:
			return false
		}
	}
}

// socketInode reads a link such as socket:[123].
func socketInode(link string) (uint32, bool) {
	rest, ok := strings.CutPrefix(link, "socket:[")
	if !ok {
		return 0, false
	}
	n, err := strconv.ParseUint(strings.TrimSuffix(rest, "]"), 10, 32)
	return uint32(n), err == nil
}
