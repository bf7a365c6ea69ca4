// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package symbolizer

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hotprofile/hotprofile/internal/procfs"
	"github.com/hotprofile/hotprofile/internal/samples"
)

const deletedSuffix = " (deleted)"

// openMapping opens the file behind a mapping. It never follows the path outside the
// process's own root.
//
// The file is checked before it is opened for reading, since opening a device or a FIFO
// has effects. It must have the mapping's inode number; else the process, or the file
// at the path, is another one. Device numbers are not compared: stat has another one
// than the kernel's record of the mapping on overlayfs and btrfs.
func openMapping(root string, m *samples.Mapping) (*os.File, identity, error) {
	proc := procfs.At(root)
	f, id, err := openVerified(m, func() (int, error) {
		return unix.Open(proc.File(m.PID, fmt.Sprintf("map_files/%x-%x", m.Start, m.Limit)), unix.O_PATH|unix.O_CLOEXEC, 0)
	})
	if err == nil {
		return f, id, nil
	}
	if strings.HasSuffix(m.Path, deletedSuffix) || !strings.HasPrefix(m.Path, "/") {
		return nil, identity{}, fmt.Errorf("opening the file mapped at %#x of process %d, %q: %w", m.Start, m.PID, m.Path, err)
	}
	f, id, rootErr := openVerified(m, func() (int, error) { return openInRoot(proc.File(m.PID, "root"), m.Path, 0) })
	if rootErr != nil {
		return nil, identity{}, fmt.Errorf("opening %q of process %d through map_files (%w) or through its root: %w", m.Path, m.PID, err, rootErr)
	}
	return f, id, nil
}

// openInRoot opens path with the directory root as its root, for symbolic links too.
// With O_NOFOLLOW in flags it opens the last part of path itself if that is a link.
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

// closeFD closes an O_PATH descriptor, whose errors do not matter.
func closeFD(fd int) { _ = unix.Close(fd) }

// openVerified opens for reading the file that open returns an O_PATH descriptor of, if
// it is a regular file with the mapping's inode.
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
	file, err := procfs.OpenPath(fd, m.Path)
	if err != nil {
		return nil, identity{}, err
	}
	return file, identity{size: st.Size, mtime: st.Mtim.Nano(), ctime: st.Ctim.Nano()}, nil
}

// VDSO copies the object file of the vdso from the collector's own memory. The kernel
// maps the same one into every 64-bit process.
func VDSO() ([]byte, error) {
	const maxImage = 1 << 20
	own := procfs.At("")
	maps, err := procfs.ReadFile(own.File(procfs.Self, "maps"), procfs.MaxMaps)
	if err != nil {
		return nil, err
	}
	for line := range bytes.Lines(maps) {
		m, ok := procfs.ParseExecutable(line)
		if !ok || string(m.Path) != VDSOPath {
			continue
		}
		if m.Limit-m.Start > maxImage {
			return nil, fmt.Errorf("unexpected %q in /proc/self/maps", line)
		}
		mem, err := os.Open(own.File(procfs.Self, "mem"))
		if err != nil {
			return nil, err
		}
		defer mem.Close()
		image := make([]byte, m.Limit-m.Start)
		if _, err := mem.ReadAt(image, int64(m.Start)); err != nil {
			return nil, fmt.Errorf("reading the vdso from /proc/self/mem: %w", err)
		}
		return image, nil
	}
	return nil, errors.New("no vdso in /proc/self/maps")
}

// perfMapSlack is the time by which a perf map may be older than its process: the kernel uses
// different clocks for processes and files.
const perfMapSlack = 2 * time.Second

// openPerfMap opens /tmp/perf-PID.map of a process, in its own root and with its pid in
// its innermost pid namespace. Everybody may write to /tmp, so the file must be a
// regular one of the process's user or of root, and not older than the process.
func openPerfMap(root string, pid int) (perfMapFile, error) {
	var none perfMapFile
	proc := procfs.At(root)
	self, err := proc.Status(pid)
	if err != nil {
		return none, fmt.Errorf("reading the pid and user of process %d: %w", pid, err)
	}
	path := fmt.Sprintf("/tmp/perf-%d.map", self.PID)
	fd, err := openInRoot(proc.File(pid, "root"), path, unix.O_NOFOLLOW)
	if err != nil {
		if errors.Is(err, unix.ENOENT) {
			return none, errNoMap
		}
		return none, fmt.Errorf("opening %s of process %d in its root: %w", path, pid, err)
	}
	defer closeFD(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return none, fmt.Errorf("examining %s of process %d: %w", path, pid, err)
	}
	switch {
	case st.Mode&unix.S_IFMT != unix.S_IFREG:
		return none, fmt.Errorf("%s of process %d is not a regular file", path, pid)
	case st.Uid != 0 && !slices.Contains(self.UIDs[:], st.Uid):
		return none, fmt.Errorf("%s of process %d belongs to user %d, who is not the process's", path, pid, st.Uid)
	}
	if now, err := proc.Process(pid); err == nil &&
		time.Unix(0, st.Mtim.Nano()).Before(procfs.TimeOf(procfs.BootTime(), now.Start).Add(-perfMapSlack)) {
		return none, errNoMap // an earlier process's with that pid
	}
	f, err := procfs.OpenPath(fd, path)
	if err != nil {
		return none, fmt.Errorf("opening %s of process %d: %w", path, pid, err)
	}
	return perfMapFile{file: f, id: mapID{st.Dev, st.Ino}}, nil
}

// openRegular opens a regular file by its path in a process's root.
func openRegular(root string, pid int, path string) (*os.File, int64, error) {
	fd, err := openInRoot(procfs.At(root).File(pid, "root"), path, 0)
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
	f, err := procfs.OpenPath(fd, path)
	return f, st.Size, err
}

// runtimeOf returns the runtime whose file a process has mapped.
func runtimeOf(root string, pid int) samples.FrameType {
	maps, err := procfs.ReadFile(procfs.At(root).File(pid, "maps"), procfs.MaxMaps)
	if err != nil && !errors.Is(err, procfs.ErrTooLarge) {
		return ""
	}
	return runtimeIn(maps)
}
