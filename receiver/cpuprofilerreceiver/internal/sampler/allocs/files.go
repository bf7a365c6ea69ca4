// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package allocs

import (
	"encoding/binary"
	"errors"
	"os"

	"github.com/hotprofile/hotprofile/internal/procfs"
)

// files reads the data of processes below the /proc of a host. The links in /proc lead to a
// process's own files, whatever its mount namespace is.
type files struct{ procfs.FS }

// word reads 8 bytes of a process's memory.
func (f files) word(pid int, address uint64) (int64, error) {
	var b [8]byte
	if err := f.ReadMemory(pid, b[:], address); err != nil {
		return 0, err
	}
	return int64(binary.NativeEndian.Uint64(b[:])), nil
}

// isGone reports whether the process has ended. It is false for a process that exists but
// cannot be read.
func isGone(err error) bool { return procfs.IsGone(err) || errors.Is(err, os.ErrProcessDone) }
