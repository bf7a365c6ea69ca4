// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package allocs

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"github.com/hotprofile/hotprofile/internal/procfs"
)

// fileID tells a program's file from others, and from itself with other content.
type fileID struct {
	device, inode uint64
	size          int64
	changed       int64
}

// files reads about processes below /proc of the host whose root is mounted at
// root. The links and files there lead to the process's own, whatever its paths
// say.
type files struct{ root string }

func (f files) path(pid int, name string) string {
	return filepath.Join(f.root, "proc", strconv.Itoa(pid), name)
}

// start is when a process was forked, in clock ticks since the host booted.
func (f files) start(pid int) (uint64, error) {
	b, err := readBounded(f.path(pid, "stat"), procfs.MaxStat)
	if err != nil {
		return 0, err
	}
	s, err := procfs.ParseStat(b)
	return s.Start, err
}

// maxAuxv is the most that is read of what the kernel told a program at its start.
const maxAuxv = 16 << 10

// entryPoint is the address that a process's program started at, so that its own
// addresses can be told from those in its file.
func (f files) entryPoint(pid int) (uint64, error) {
	b, err := readBounded(f.path(pid, "auxv"), maxAuxv)
	if err != nil {
		return 0, err
	}
	if entry, ok := parseAuxv(b); ok {
		return entry, nil
	}
	return 0, fmt.Errorf("%s does not say where the program starts", f.path(pid, "auxv"))
}

// parseAuxv reads AT_ENTRY from pairs of words.
func parseAuxv(b []byte) (entry uint64, ok bool) {
	const pair, atNull, atEntry = 16, 0, 9
	for ; len(b) >= pair; b = b[pair:] {
		switch binary.NativeEndian.Uint64(b) {
		case atNull:
			return 0, false
		case atEntry:
			return binary.NativeEndian.Uint64(b[8:]), true
		}
	}
	return 0, false
}

// word reads 8 bytes of a process's memory.
func (f files) word(pid int, address uint64) (int64, error) {
	mem, err := os.Open(f.path(pid, "mem"))
	if err != nil {
		return 0, err
	}
	defer mem.Close()
	var b [8]byte
	if _, err := mem.ReadAt(b[:], int64(address)); err != nil {
		return 0, err
	}
	return int64(binary.NativeEndian.Uint64(b[:])), nil
}

func readBounded(path string, limit int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, limit))
}

// isGone says whether a process has ended, as opposed to not letting itself be
// read.
func isGone(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, os.ErrProcessDone) || gone(err)
}
