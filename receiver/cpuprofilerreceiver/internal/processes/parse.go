// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package processes

import (
	"bytes"
	"strconv"
	"strings"
	"unicode/utf8"
)

// ids are a process's user ids.
type ids struct{ real, effective, saved int }

// parseStatus reads the user ids from a status file.
func parseStatus(b []byte) (ids, bool) {
	for line := range bytes.Lines(b) {
		rest, ok := bytes.CutPrefix(line, []byte("Uid:"))
		if !ok {
			continue
		}
		var u ids
		f := bytes.Fields(rest)
		if len(f) < 3 {
			return ids{}, false
		}
		for i, to := range []*int{&u.real, &u.effective, &u.saved} {
			id, err := strconv.Atoi(string(f[i]))
			if err != nil {
				return ids{}, false
			}
			*to = id
		}
		return u, true
	}
	return ids{}, false
}

// region is one line of a maps file.
type region struct {
	start, limit, offset uint64
	major, minor         uint32
	inode                uint64
	path                 []byte
}

// parseMap reads a line of a maps file; ok is false for one that is malformed
// or not executable. The path is valid as long as the line is.
func parseMap(line []byte) (r region, ok bool) {
	line = trimNewline(line)
	bounds, line, _ := bytes.Cut(line, []byte{' '})
	perms, line, _ := bytes.Cut(line, []byte{' '})
	offset, line, _ := bytes.Cut(line, []byte{' '})
	device, line, _ := bytes.Cut(line, []byte{' '})
	inode, line, _ := bytes.Cut(line, []byte{' '})
	if len(perms) < 4 || perms[2] != 'x' {
		return r, false
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
			return r, false
		}
		all[i] = n
	}
	r = region{
		start: all[0], limit: all[1], offset: all[2],
		major: uint32(all[3]), minor: uint32(all[4]), inode: all[5],
		path: bytes.TrimLeft(line, " "),
	}
	return r, r.start < r.limit
}

// text makes outside bytes a string that may go into a profile: valid UTF-8, at
// most limit bytes.
func text(b []byte, limit int) string {
	if len(b) > limit {
		b = b[:limit]
		for len(b) > 0 && !utf8.RuneStart(b[len(b)-1]) {
			b = b[:len(b)-1]
		}
		if len(b) > 0 && b[len(b)-1] >= utf8.RuneSelf { // the start of what was cut off
			b = b[:len(b)-1]
		}
	}
	return strings.ToValidUTF8(string(b), "\uFFFD")
}

func trimNewline(b []byte) []byte { return bytes.TrimSuffix(b, []byte{'\n'}) }
