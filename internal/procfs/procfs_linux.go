// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package procfs

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// sinceBoot reads the clock on which the start times in /proc/PID/stat are based. This
// clock also runs while the host is suspended.
func sinceBoot() time.Duration {
	var ts unix.Timespec
	if unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts) != nil {
		return 0 // every kernel with perf events has this clock
	}
	return time.Duration(ts.Nano())
}

// File is an open file without the poller of the os package. The poller cannot wait for most
// files of /proc, and would wake up at once for files of cgroups. Trying it takes five system
// calls each time.
type File struct {
	fd   int
	path string
}

// Open opens a file for reading.
func Open(path string) (File, error) {
	fd, err := again(func() (int, error) { return unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0) })
	if err != nil {
		return File{}, &os.PathError{Op: "open", Path: path, Err: err}
	}
	return File{fd, path}, nil
}

// Read implements io.Reader.
func (f File) Read(b []byte) (int, error) {
	n, err := again(func() (int, error) { return unix.Read(f.fd, b) })
	if err != nil {
		return 0, &os.PathError{Op: "read", Path: f.path, Err: err}
	}
	if n == 0 {
		return 0, io.EOF
	}
	return n, nil
}

// Close closes the file.
func (f File) Close() { _ = unix.Close(f.fd) } // a file that was only read cannot lose data

// again repeats a system call that a signal interrupted.
func again(call func() (int, error)) (int, error) {
	for {
		if n, err := call(); !errors.Is(err, unix.EINTR) {
			return n, err
		}
	}
}

// OpenFileLimit returns the number of files that this process may have open. This is its
// soft RLIMIT_NOFILE, but at most 1<<30.
func OpenFileLimit() int {
	var r unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &r) != nil {
		return 1024 // the usual limit; Getrlimit does not fail in practice
	}
	return int(min(r.Cur, 1<<30))
}

// OpenPath opens the file of an O_PATH descriptor of this process for reading. The
// descriptor stays open. The caller must check that the file is a regular file, because
// opening a device or FIFO has side effects. Errors contain name as the path.
func OpenPath(fd int, name string) (*os.File, error) {
	file, err := unix.Open("/proc/self/fd/"+strconv.Itoa(fd), unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: name, Err: err}
	}
	// O_NONBLOCK keeps open from waiting for another process's lease. It would also make
	// reads use the poller, which polls FUSE file systems, and Close would wait for reads.
	_ = unix.SetNonblock(file, false)
	return os.NewFile(uintptr(file), name), nil
}

// OpenRoot opens the root directory of a process as an O_PATH descriptor. If want is not
// 0, it must be the result of [FS.Root] for this directory.
func (fs FS) OpenRoot(pid int, want uint64) (fd int, err error) {
	path := fs.File(pid, "root")
	fd, err = unix.Open(path, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil || want == 0 {
		return fd, err
	}
	// The namespace is read after the directory. A process may return to an earlier
	// directory, but needs privileges to return to an earlier mount namespace.
	if is, err := fs.rootNamedBy(pid, "/proc/self/fd/"+strconv.Itoa(fd)); err != nil || is != want {
		_ = unix.Close(fd) // closing an O_PATH descriptor cannot lose data
		return -1, fmt.Errorf("%s: %w", path, errOtherRoot)
	}
	return fd, nil
}

var errOtherRoot = errors.New("the process has another root directory by now")

// Namespace returns a process's namespace of a kind ("net", "user", …).
func (fs FS) Namespace(pid int, kind string) (Namespace, error) {
	return namespaceAt(fs.File(pid, "ns/"+kind))
}

// ThreadNamespace returns the calling thread's namespace of a kind. It is the namespace of
// this process, unless the goroutine has locked its thread and entered another namespace.
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

// OpenNamespace opens a namespace of a process. kind is the name of a file in
// /proc/PID/ns, such as net.
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

// AddSockets adds the inodes of a process's open sockets. It returns false if the list is
// incomplete. This is the case if the directory was not readable, the deadline has
// passed, or inodes has limit or more entries.
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

// socketInode parses a link target such as socket:[123].
func socketInode(link string) (uint32, bool) {
	rest, ok := strings.CutPrefix(link, "socket:[")
	if !ok {
		return 0, false
	}
	n, err := strconv.ParseUint(strings.TrimSuffix(rest, "]"), 10, 32)
	return uint32(n), err == nil
}
