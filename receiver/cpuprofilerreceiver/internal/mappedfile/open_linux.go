// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package mappedfile

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/hotprofile/hotprofile/internal/procfs"
	"github.com/hotprofile/hotprofile/internal/samples"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/stuckread"
)

const deletedSuffix = " (deleted)"

// Open opens the file of a mapping. It resolves the path only within the process's root
// directory, which must still be the root of the mapping.
//
// Open checks the file before it opens the file for reading, because opening a device
// or a FIFO has side effects. If the file and the mapping have different inode
// numbers, the pid or the path was reused, and Open returns an error. Open does not
// compare device numbers. On overlayfs and btrfs, the device numbers from stat and from
// the mapping differ.
//
// All these steps run in one call of c.Wait.
func Open(c *stuckread.Call, root string, m *samples.Mapping) (f *os.File, id ID, err error) {
	c.Wait(nil, func() { f, id, err = open(root, m) })
	return f, id, err
}

func open(root string, m *samples.Mapping) (*os.File, ID, error) {
	proc := procfs.At(root)
	f, id, err := openVerified(m, func() (int, error) {
		return unix.Open(proc.File(m.PID, fmt.Sprintf("map_files/%x-%x", m.Start, m.Limit)), unix.O_PATH|unix.O_CLOEXEC, 0)
	})
	if err == nil {
		if id.Layer == "" {
			// Before Linux 6.8, stat may return the device of an overlayfs layer.
			id.Device = device(m.DeviceMajor, m.DeviceMinor)
		}
		return f, id, nil
	}
	if strings.HasSuffix(m.Path, deletedSuffix) || !strings.HasPrefix(m.Path, "/") {
		return nil, ID{}, fmt.Errorf("opening the file mapped at %#x of process %d, %q: %w", m.Start, m.PID, m.Path, err)
	}
	f, id, rootErr := openVerified(m, func() (int, error) { return openBelow(proc, m.PID, m.Root, m.Path) })
	if rootErr != nil {
		return nil, ID{}, fmt.Errorf("opening %q of process %d through map_files (%w) or through its root: %w", m.Path, m.PID, err, rootErr)
	}
	return f, id, nil
}

// openVerified opens the file of a mapping with OpenChecked. It also checks the inode number
// of the mapping.
func openVerified(m *samples.Mapping, open func() (int, error)) (*os.File, ID, error) {
	return OpenChecked(m.Path, open, func(st *unix.Stat_t) error {
		if m.Inode != 0 && st.Ino != m.Inode {
			return fmt.Errorf("it is another file by now: inode %d instead of %d", st.Ino, m.Inode)
		}
		return nil
	})
}

// OpenChecked opens a file for reading if it is a regular file and check returns nil. open
// returns an O_PATH descriptor of the file. name is the file's name in errors.
func OpenChecked(name string, open func() (int, error), check func(*unix.Stat_t) error) (*os.File, ID, error) {
	fd, err := open()
	if err != nil {
		return nil, ID{}, err
	}
	defer func() { _ = unix.Close(fd) }() // an O_PATH descriptor has no data to lose
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, ID{}, err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil, ID{}, errNotRegular
	}
	if err := check(&st); err != nil {
		return nil, ID{}, err
	}
	f, err := procfs.OpenPath(fd, name)
	if err != nil {
		return nil, ID{}, err
	}
	return f, identify(fd, &st), nil
}

var errNotRegular = errors.New("it is not a regular file")

// IsNone reports whether an error of OpenRegular means that the path has no regular file.
// After other errors, the file may exist.
func IsNone(err error) bool {
	none := []error{unix.ENOENT, unix.ENOTDIR, unix.ELOOP, unix.ENAMETOOLONG, errNotRegular}
	return !errors.Is(err, ErrNoRoot) && slices.ContainsFunc(none, func(of error) bool { return errors.Is(err, of) })
}

// OpenRegular opens a regular file by its path in a process's root directory. want must
// still identify this directory ([procfs.FS.Root]). All steps run in one call of c.Wait.
func OpenRegular(c *stuckread.Call, root string, pid int, want uint64, path string) (f *os.File, id ID, err error) {
	c.Wait(nil, func() {
		f, id, err = OpenChecked(path,
			func() (int, error) { return openBelow(procfs.At(root), pid, want, path) },
			func(*unix.Stat_t) error { return nil })
	})
	if err != nil {
		return nil, ID{}, fmt.Errorf("%s of process %d: %w", path, pid, err)
	}
	return f, id, nil
}

// Program returns the ID of the executable of a process, without opening the file. The ID
// has no Layer.
func Program(root string, pid int) (ID, error) {
	path := procfs.At(root).File(pid, "exe")
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return ID{}, &os.PathError{Op: "stat", Path: path, Err: err}
	}
	return idOf(&st), nil
}

// OpenProgram opens the executable of a process if its ID is still id. It checks the ID
// before it opens the file for reading.
func OpenProgram(root string, pid int, id ID) (*os.File, error) {
	path := procfs.At(root).File(pid, "exe")
	name, err := os.Readlink(path)
	if err != nil {
		name = path
	}
	f, _, err := OpenChecked(name,
		func() (int, error) { return unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0) },
		func(st *unix.Stat_t) error {
			if idOf(st) != id {
				return fmt.Errorf("%w: it runs another program by now", os.ErrProcessDone)
			}
			return nil
		})
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	return f, nil
}

func openBelow(proc procfs.FS, pid int, want uint64, path string) (int, error) {
	if want == 0 { // the path may lead to another file in the current root
		return -1, fmt.Errorf("%w: it is not known which root directory the process had", ErrNoRoot)
	}
	return OpenInRoot(proc, pid, want, path, 0)
}

// OpenInRoot returns an O_PATH descriptor of a path in the root directory of a process.
// Symbolic links in the path are resolved within this directory. If want is not 0, it must
// be the number that identifies the root directory. flags are additional flags of openat2.
func OpenInRoot(proc procfs.FS, pid int, want uint64, path string, flags uint64) (int, error) {
	dir, err := proc.OpenRoot(pid, want)
	if err != nil {
		return -1, fmt.Errorf("%w: %w", ErrNoRoot, err)
	}
	defer func() { _ = unix.Close(dir) }() // an O_PATH descriptor has no data to lose
	return unix.Openat2(dir, path, &unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_CLOEXEC | flags,
		Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS,
	})
}

// identify returns the ID of the file of a descriptor.
func identify(fd int, st *unix.Stat_t) ID {
	const (
		handleFID   = 0x200 // AT_HANDLE_FID, since Linux 6.5
		overlayFile = 0xf8  // OVL_FILEID_V1: the handle contains the UUID of the layer's file system
	)
	id := idOf(st)
	if unix.Major(st.Dev) != 0 {
		return id // the file system is on a disk
	}
	if h, _, err := unix.NameToHandleAt(fd, "", unix.AT_EMPTY_PATH|handleFID); err == nil && h.Type() == overlayFile {
		id.Layer, id.Device, id.Inode = string(h.Bytes()), 0, 0
	}
	return id
}

func idOf(st *unix.Stat_t) ID {
	return ID{Device: device(unix.Major(st.Dev), unix.Minor(st.Dev)), Inode: st.Ino, Size: st.Size, Modified: st.Mtim.Nano(), Changed: st.Ctim.Nano()}
}

// VDSO copies the object file of the vdso from the collector's own memory. The kernel maps
// the same vdso into every 64-bit process.
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
		image := make([]byte, m.Limit-m.Start)
		if err := own.ReadMemory(procfs.Self, image, m.Start); err != nil {
			return nil, fmt.Errorf("reading the vdso from /proc/self/mem: %w", err)
		}
		return image, nil
	}
	return nil, errors.New("no vdso in /proc/self/maps")
}
