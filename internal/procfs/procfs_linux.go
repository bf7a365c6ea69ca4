// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package procfs

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// sinceBoot reads the clock of start times in /proc/PID/stat, which runs while the
// host is suspended too.
func sinceBoot() time.Duration {
	var ts unix.Timespec
	if unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts) != nil {
		return 0 // no kernel that has perf events lacks it
	}
	return time.Duration(ts.Nano())
}

// OpenFileLimit returns the most files that this process may have open, its soft
// RLIMIT_NOFILE, and at most 1<<30.
func OpenFileLimit() int {
	var r unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &r) != nil {
		return 1024 // the usual one; this does not fail
	}
	return int(min(r.Cur, 1<<30))
}

// OpenPath opens the file of an O_PATH descriptor of this process for reading. The
// descriptor stays open. Check first that it is a regular file, because opening a device or
// a FIFO has side effects. name is for the file's errors.
func OpenPath(fd int, name string) (*os.File, error) {
	file, err := unix.Open("/proc/self/fd/"+strconv.Itoa(fd), unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: name, Err: err}
	}
	// The file is opened without waiting for the end of another process's lease. In
	// non-blocking mode it would also be read through the poller, which polls file systems
	// of FUSE, and Close would wait for reads.
	_ = unix.SetNonblock(file, false)
	return os.NewFile(uintptr(file), name), nil
}

// OpenRoot opens the root directory of a process, as an O_PATH descriptor. If want is
// not 0, it must be that directory ([FS.Root]).
func (fs FS) OpenRoot(pid int, want uint64) (fd int, err error) {
	path := fs.File(pid, "root")
	fd, err = unix.Open(path, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil || want == 0 {
		return fd, err
	}
	// A process may go back to an earlier directory, but not to an earlier mount
	// namespace without a right there: the namespace is read after the directory.
	if is, err := fs.rootNamedBy(pid, "/proc/self/fd/"+strconv.Itoa(fd)); err != nil || is != want {
		_ = unix.Close(fd) // O_PATH: nothing to lose
		return -1, fmt.Errorf("%s: %w", path, errOtherRoot)
	}
	return fd, nil
}

var errOtherRoot = errors.New("the process has another root directory by now")

// Namespace returns the namespace of a kind ("net", "user", …) that a process is in.
func (fs FS) Namespace(pid int, kind string) (Namespace, error) {
	return namespaceAt(fs.File(pid, "ns/"+kind))
}

// ThreadNamespace returns the namespace of a kind that the calling thread is in. It is the
// namespace of this process, unless the goroutine has locked a thread and entered another
// one.
func ThreadNamespace(kind string) (Namespace, error) {
	return namespaceAt(At("").Path("thread-self/ns", kind))
}

func namespaceAt(path string) (Namespace, error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return Namespace{}, &os.PathError{Op: "stat", Path: path, Err: err}
	}
	return Namespace{st.Dev, st.Ino}, nil
}

// OpenNamespace opens the namespace of a kind that a process is in.
func (fs FS) OpenNamespace(pid int, kind string) (*os.File, Namespace, error) {
	f, err := os.Open(fs.File(pid, "ns/"+kind))
	if err != nil {
		return nil, Namespace{}, err
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		_ = f.Close()
		return nil, Namespace{}, &os.PathError{Op: "stat", Path: f.Name(), Err: err}
	}
	return f, Namespace{st.Dev, st.Ino}, nil
}

// AddSockets adds the inodes of the sockets that a process has open. It reports false if
// it stopped early: at the deadline, or when there were limit inodes or more.
func (fs FS) AddSockets(inodes map[uint32]bool, pid, limit int, deadline time.Time) (whole bool) {
	d, err := os.Open(fs.File(pid, "fd"))
	if err != nil {
		return IsGone(err)
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
		case !time.Now().Before(deadline) || len(inodes) >= limit:
			return false
		}
	}
}

// socketInode parses a link such as socket:[123].
func socketInode(link string) (uint32, bool) {
	rest, ok := strings.CutPrefix(link, "socket:[")
	if !ok {
		return 0, false
	}
	n, err := strconv.ParseUint(strings.TrimSuffix(rest, "]"), 10, 32)
	return uint32(n), err == nil
}
