// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package symbolizer

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

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
	f, id, rootErr := openVerified(m, func() (int, error) { return openInRoot(filepath.Join(pid, "root"), m.Path) })
	if rootErr != nil {
		return nil, identity{}, fmt.Errorf("open %q of process %d through map_files (%w) or through its root: %w", m.Path, m.PID, err, rootErr)
	}
	return f, id, nil
}

// openInRoot opens path with the directory root as its root, whatever symbolic
// links it has.
func openInRoot(root, path string) (int, error) {
	dir, err := unix.Open(root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	defer closeFD(dir)
	return unix.Openat2(dir, path, &unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_CLOEXEC,
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
	file, err := unix.Open("/proc/self/fd/"+strconv.Itoa(fd), unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, identity{}, err
	}
	return os.NewFile(uintptr(file), m.Path), identity{size: st.Size, mtime: st.Mtim.Nano(), ctime: st.Ctim.Nano()}, nil
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
