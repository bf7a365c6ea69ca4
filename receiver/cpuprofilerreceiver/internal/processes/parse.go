// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package processes

import (
	"bytes"
	"errors"
	"strconv"
	"strings"
	"unicode/utf8"
)

// stat is the part of /proc/PID/stat that is of use here; proc_pid_stat(5) has
// the whole.
type stat struct {
	name    string
	ppid    int
	threads int
	// ticks is when the process was forked, in clock ticks since the host booted.
	ticks uint64
	// kernel says that it is a kernel thread.
	kernel bool
}

// ticksPerSecond is USER_HZ, which every architecture that Go knows has at 100.
const ticksPerSecond = 100

// pfKthread is PF_KTHREAD of the kernel's include/linux/sched.h.
const pfKthread = 0x00200000

var errStat = errors.New("not the content of a stat file of procfs")

// parseStat reads a stat file. The name in it is in parentheses and may hold
// any byte, so what follows is found from the last one.
func parseStat(b []byte) (stat, error) {
	open, end := bytes.IndexByte(b, '('), bytes.LastIndexByte(b, ')')
	if open < 0 || end < open {
		return stat{}, errStat
	}
	s := stat{name: text(b[open+1:end], maxComm)}
	const ppid, flags, threads, start = 4 - 3, 9 - 3, 20 - 3, 22 - 3 // the first one after the name is the third
	i := 0
	for field := range bytes.FieldsSeq(b[end+1:]) {
		var err error
		switch i {
		case ppid:
			s.ppid, err = strconv.Atoi(string(field))
		case flags:
			var f uint64
			f, err = strconv.ParseUint(string(field), 10, 64)
			s.kernel = f&pfKthread != 0
		case threads:
			s.threads, err = strconv.Atoi(string(field))
		case start:
			s.ticks, err = strconv.ParseUint(string(field), 10, 64)
			if err != nil {
				return stat{}, errStat
			}
			return s, nil
		}
		if err != nil {
			return stat{}, errStat
		}
		i++
	}
	return stat{}, errStat
}

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
