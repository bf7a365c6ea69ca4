// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package symbolizer

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hotprofile/hotprofile/internal/procfs"
	"github.com/hotprofile/hotprofile/internal/samples"
)

const deletedSuffix = " (deleted)"

// openMapping opens the file behind a mapping, without ever following its path
// outside of the process's own root.
//
// The file is checked before it is opened for reading, since opening a device
// or a FIFO already does something. It must have the mapping's inode number, or
// the process, or the file at its path, is not the one that was seen. Device
// numbers are not compared: overlayfs and btrfs give stat another one than
// they give the kernel's record of the mapping.
func openMapping(root string, m *samples.Mapping) (*os.File, identity, error) {
	pid := filepath.Join(root, "proc", strconv.Itoa(m.PID))
	f, id, err := openVerified(m, func() (int, error) {
		return unix.Open(fmt.Sprintf("%s/map_files/%x-%x", pid, m.Start, m.Limit), unix.O_PATH|unix.O_CLOEXEC, 0)
	})
	if err == nil {
		return f, id, nil
	}
	if strings.HasSuffix(m.Path, deletedSuffix) || !strings.HasPrefix(m.Path, "/") {
		return nil, identity{}, fmt.Errorf("open the file mapped at %#x of process %d, %q: %w", m.Start, m.PID, m.Path, err)
	}
	f, id, rootErr := openVerified(m, func() (int, error) { return openInRoot(filepath.Join(pid, "root"), m.Path, 0) })
	if rootErr != nil {
		return nil, identity{}, fmt.Errorf("open %q of process %d through map_files (%w) or through its root: %w", m.Path, m.PID, err, rootErr)
	}
	return f, id, nil
}

// openInRoot opens path with the directory root as its root, whatever symbolic
// links it has. flags may add O_NOFOLLOW, for the link itself where the last part
// of path is one.
func openInRoot(root, path string, flags uint64) (int, error) {
	dir, err := unix.Open(root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	defer closeFD(dir)
	return unix.Openat2(dir, path, &unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_CLOEXEC | flags,
		Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS,
	})
}

// closeFD closes an O_PATH descriptor, which cannot fail in a way that matters.
func closeFD(fd int) { _ = unix.Close(fd) }

// openVerified opens for reading what open gives as an O_PATH descriptor, if it
// is a regular file with the mapping's inode.
func openVerified(m *samples.Mapping, open func() (int, error)) (*os.File, identity, error) {
	fd, err := open()
	if err != nil {
		return nil, identity{}, err
	}
	defer closeFD(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, identity{}, err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil, identity{}, errors.New("it is not a regular file")
	}
	if m.Inode != 0 && st.Ino != m.Inode {
		return nil, identity{}, fmt.Errorf("it is another file by now: inode %d instead of %d", st.Ino, m.Inode)
	}
	file, err := reopen(fd, m.Path)
	if err != nil {
		return nil, identity{}, err
	}
	return file, identity{size: st.Size, mtime: st.Mtim.Nano(), ctime: st.Ctim.Nano()}, nil
}

// vdsoImage copies the vdso from the collector's own memory: the kernel maps
// the same one into every 64-bit process.
func vdsoImage() ([]byte, error) {
	const maxImage = 1 << 20
	maps, err := os.Open("/proc/self/maps")
	if err != nil {
		return nil, err
	}
	defer maps.Close()
	lines := bufio.NewScanner(maps)
	for lines.Scan() {
		if !strings.HasSuffix(lines.Text(), vdsoPath) {
			continue
		}
		var start, limit int64
		if _, err := fmt.Sscanf(lines.Text(), "%x-%x ", &start, &limit); err != nil || limit <= start || limit-start > maxImage {
			return nil, fmt.Errorf("unexpected %q in /proc/self/maps", lines.Text())
		}
		mem, err := os.Open("/proc/self/mem")
		if err != nil {
			return nil, err
		}
		defer mem.Close()
		image := make([]byte, limit-start)
		if _, err := mem.ReadAt(image, start); err != nil {
			return nil, fmt.Errorf("read the vdso from /proc/self/mem: %w", err)
		}
		return image, nil
	}
	if err := lines.Err(); err != nil {
		return nil, err
	}
	return nil, errors.New("no vdso in /proc/self/maps")
}

// perfMapSlack is how much older than its process a perf map may be: the
// kernel's clocks of processes and of files differ.
const perfMapSlack = 2 * time.Second

// openPerfMap opens /tmp/perf-PID.map of a process, as the process sees it: in
// its own root, and with its pid in the innermost pid namespace that it is in.
// Everybody may write to /tmp, so the file must be a regular one of the
// process's user or of root, and no older than the process.
func openPerfMap(root string, pid int) (perfMapFile, error) {
	var none perfMapFile
	dir := filepath.Join(root, "proc", strconv.Itoa(pid))
	self, err := readIdentity(dir)
	if err != nil {
		return none, err
	}
	path := fmt.Sprintf("/tmp/perf-%d.map", self.pid)
	fd, err := openInRoot(filepath.Join(dir, "root"), path, unix.O_NOFOLLOW)
	if err != nil {
		if errors.Is(err, unix.ENOENT) {
			return none, errNoMap
		}
		return none, fmt.Errorf("open %s of process %d in its root: %w", path, pid, err)
	}
	defer closeFD(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return none, fmt.Errorf("look at %s of process %d: %w", path, pid, err)
	}
	switch {
	case st.Mode&unix.S_IFMT != unix.S_IFREG:
		return none, fmt.Errorf("%s of process %d is not a regular file", path, pid)
	case st.Uid != 0 && !slices.Contains(self.users, st.Uid):
		return none, fmt.Errorf("%s of process %d belongs to user %d, who is not the process's", path, pid, st.Uid)
	}
	if started, ok := startTime(root, pid); ok && time.Unix(0, st.Mtim.Nano()).Before(started.Add(-perfMapSlack)) {
		return none, errNoMap // an earlier process's with that pid
	}
	f, err := reopen(fd, path)
	if err != nil {
		return none, fmt.Errorf("open %s of process %d: %w", path, pid, err)
	}
	return perfMapFile{file: f, id: mapID{st.Dev, st.Ino}}, nil
}

// openRegular opens a file of a process by its path there, if it is a regular
// one.
func openRegular(root string, pid int, path string) (*os.File, int64, error) {
	fd, err := openInRoot(filepath.Join(root, "proc", strconv.Itoa(pid), "root"), path, 0)
	if err != nil {
		return nil, 0, err
	}
	defer closeFD(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, 0, err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil, 0, fmt.Errorf("%s of process %d is not a regular file", path, pid)
	}
	f, err := reopen(fd, path)
	return f, st.Size, err
}

// reopen opens for reading what an O_PATH descriptor is of.
func reopen(fd int, name string) (*os.File, error) {
	f, err := unix.Open("/proc/self/fd/"+strconv.Itoa(fd), unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(f), name), nil
}

// processIdentity is who a process is to itself.
type processIdentity struct {
	// pid is its number in the innermost pid namespace that it is in.
	pid int
	// users are those whose files it can have made.
	users []uint32
}

// readIdentity reads the status file in a process's directory of procfs.
func readIdentity(dir string) (processIdentity, error) {
	const maxStatus = 64 << 10 // of which the groups are most
	f, err := os.Open(filepath.Join(dir, "status"))
	if err != nil {
		return processIdentity{}, fmt.Errorf("read the pid and user of a process: %w", err)
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxStatus))
	if err != nil {
		return processIdentity{}, fmt.Errorf("read the pid and user of a process: %w", err)
	}
	return parseIdentity(b)
}

func parseIdentity(status []byte) (self processIdentity, err error) {
	for line := range bytes.Lines(status) {
		key, value, _ := bytes.Cut(line, []byte(":"))
		fields := strings.Fields(string(value))
		switch string(key) {
		case "Pid", "NSpid": // in this order; kernels without pid namespaces have no NSpid
			if len(fields) == 0 {
				continue
			}
			if self.pid, err = strconv.Atoi(fields[len(fields)-1]); err != nil || self.pid <= 0 {
				return processIdentity{}, fmt.Errorf("%q in a status file is no pid", line)
			}
		case "Uid":
			for _, field := range fields {
				uid, err := strconv.ParseUint(field, 10, 32)
				if err != nil {
					return processIdentity{}, fmt.Errorf("%q in a status file are no users", line)
				}
				self.users = append(self.users, uint32(uid))
			}
		}
	}
	if self.pid == 0 || len(self.users) == 0 {
		return processIdentity{}, errors.New("a status file has no pid or no user")
	}
	return self, nil
}

// startTicks is when a process was started, in ticks since the host booted.
func startTicks(root string, pid int) (uint64, error) {
	f, err := os.Open(filepath.Join(root, "proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		return 0, err
	}
	defer f.Close()
	var buf [procfs.MaxStat]byte
	n, err := io.ReadFull(f, buf[:])
	if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) {
		return 0, err
	}
	st, err := procfs.ParseStat(buf[:n])
	return st.Start, err
}

// startTime is when a process was started, by the clock that files have.
func startTime(root string, pid int) (time.Time, bool) {
	ticks, err := startTicks(root, pid)
	if err != nil {
		return time.Time{}, false
	}
	var boot unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &boot); err != nil {
		return time.Time{}, false
	}
	age := time.Duration(boot.Nano()) - time.Duration(ticks)*(time.Second/procfs.TicksPerSecond)
	return time.Now().Add(-age), true
}

// runtimeOf is the runtime among the files that a process has mapped.
func runtimeOf(root string, pid int) samples.FrameType {
	maps, err := os.Open(filepath.Join(root, "proc", strconv.Itoa(pid), "maps"))
	if err != nil {
		return ""
	}
	defer maps.Close()
	return runtimeIn(maps)
}
