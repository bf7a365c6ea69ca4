// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package procfs

import (
	"encoding/binary"
	"fmt"
)

// maxAuxv is the most that is read of an auxv file, in bytes; it has some 350.
const maxAuxv = 16 << 10

// EntryPoint returns the address at which a process's program started, AT_ENTRY in
// /proc/PID/auxv.
func (fs FS) EntryPoint(pid int) (uint64, error) {
	path := fs.File(pid, "auxv")
	b, err := ReadFile(path, maxAuxv)
	if err != nil {
		return 0, err
	}
	if entry, ok := parseAuxv(b); ok {
		return entry, nil
	}
	return 0, fmt.Errorf("%s has no entry point", path)
}

// parseAuxv returns AT_ENTRY of a 64-bit process.
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
