// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package procfs

import (
	"bytes"
	"strconv"
)

// MaxMaps is the maximum number of bytes read from a maps file. It is enough for about
// 80,000 mappings. A process may have 65530 mappings unless vm.max_map_count is set.
const MaxMaps = 8 << 20

// A Mapping is one line of /proc/PID/maps.
type Mapping struct {
	Start, Limit uint64 // addresses; Limit is the first address after the mapping
	Offset       uint64 // offset in the file, in bytes
	Major, Minor uint32 // device numbers of the file
	Inode        uint64
	Perms        [4]byte // such as r-xp
	// Path is the file's path as the process sees it, or a name in brackets. It is empty
	// for anonymous memory. Path aliases the parsed line and may contain any byte.
	Path []byte
}

// ParseExecutable is like ParseMapping, but returns false if the mapping is not executable.
func ParseExecutable(line []byte) (m Mapping, ok bool) {
	if _, perms, _ := bytes.Cut(line, []byte{' '}); len(perms) < 3 || perms[2] != 'x' {
		return m, false
	}
	return ParseMapping(line)
}

// ParseMapping parses one line of a maps file without allocating. It returns false if the
// line is malformed.
func ParseMapping(line []byte) (m Mapping, ok bool) {
	line = bytes.TrimSuffix(line, []byte{'\n'})
	bounds, line, _ := bytes.Cut(line, []byte{' '})
	perms, line, _ := bytes.Cut(line, []byte{' '})
	offset, line, _ := bytes.Cut(line, []byte{' '})
	device, line, _ := bytes.Cut(line, []byte{' '})
	inode, line, _ := bytes.Cut(line, []byte{' '})
	if len(perms) != len(m.Perms) {
		return m, false
	}
	start, limit, _ := bytes.Cut(bounds, []byte{'-'})
	major, minor, _ := bytes.Cut(device, []byte{':'})
	var all [6]uint64
	for i, field := range [...]struct {
		text []byte
		base int
		bits int
	}{{start, 16, 64}, {limit, 16, 64}, {offset, 16, 64}, {major, 16, 32}, {minor, 16, 32}, {inode, 10, 64}} {
		n, err := strconv.ParseUint(string(field.text), field.base, field.bits)
		if err != nil {
			return m, false
		}
		all[i] = n
	}
	m = Mapping{
		Start: all[0], Limit: all[1], Offset: all[2],
		Major: uint32(all[3]), Minor: uint32(all[4]), Inode: all[5], Perms: [4]byte(perms),
		Path: bytes.TrimLeft(line, " "),
	}
	return m, m.Start < m.Limit
}
