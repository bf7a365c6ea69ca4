// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package procfs

import (
	"bytes"
	"strconv"
	"time"
)

// MaxStat is the maximum number of bytes read from a stat file. A stat file is usually
// about 300 bytes long.
const MaxStat = 4 << 10

// A Stat holds the fields of /proc/PID/stat, or of a thread's stat file, that callers need.
// See proc_pid_stat(5). Times are in clock ticks.
type Stat struct {
	// Comm is the name of the thread. For a process, it is the name of the main thread. Comm
	// aliases the parsed file, and may contain any byte except zero. The kernel writes at
	// most 64 bytes.
	Comm         []byte
	PPID         int
	Kernel       bool   // a kernel thread
	Ending       bool   // the thread is exiting
	Starting     bool   // the kernel has not copied the program's arguments and environment yet
	User, System uint64 // CPU time
	Threads      int
	Start        uint64 // start time since the host booted
}

// ThreadStat reads the stat file of a thread, at most [MaxStat] bytes.
func (fs FS) ThreadStat(pid, tid int) (Stat, error) {
	return ParseFile(fs.File(pid, "task/"+strconv.Itoa(tid)+"/stat"), MaxStat, ParseStat)
}

// ParseStat parses the content of a stat file without allocating. The second field, the
// name in parentheses, may contain parentheses and newlines. The last parenthesis therefore
// ends the name.
func ParseStat(b []byte) (s Stat, err error) {
	open, end := bytes.IndexByte(b, '('), bytes.LastIndexByte(b, ')')
	if open < 0 || end < open {
		return Stat{}, ErrMalformed
	}
	s.Comm = b[open+1 : end]
	// These are the numbers of the fields in proc_pid_stat(5). The first field after the name
	// has number 3.
	const ppid, flags, user, system, threads, start, code = 4, 9, 14, 15, 20, 22, 26
	const exiting, kthread = 0x4, 0x00200000 // PF_EXITING and PF_KTHREAD of the kernel's sched.h
	var at [start + 1]uint64
	field, starting := 3, false
fields:
	for f := range bytes.FieldsSeq(b[end+1:]) {
		switch field {
		case ppid, flags, user, system, threads, start:
			if at[field], err = strconv.ParseUint(string(f), 10, 64); err != nil {
				return Stat{}, ErrMalformed
			}
		case code:
			// The kernel sets the code address after it has copied the environment. It
			// shows 1 to readers without the right to see the address. Kernel threads have
			// no code address.
			starting = string(f) == "0"
			break fields
		}
		field++
	}
	if field <= start {
		return Stat{}, ErrMalformed
	}
	s.PPID, s.Threads, s.User, s.System, s.Start = int(at[ppid]), int(at[threads]), at[user], at[system], at[start]
	s.Kernel, s.Ending = at[flags]&kthread != 0, at[flags]&exiting != 0
	s.Starting = starting && !s.Kernel && !s.Ending
	return s, nil
}

// ParseStatm returns the second field of /proc/PID/statm, which is the number of the
// process's pages in RAM. It does not allocate.
func ParseStatm(b []byte) (resident uint64, err error) {
	_, b, _ = bytes.Cut(b, []byte(" "))
	second, _, ok := bytes.Cut(b, []byte(" "))
	pages, err := strconv.ParseUint(string(second), 10, 64)
	if !ok || err != nil || pages > 1<<40 { // more than 4 PiB
		return 0, ErrMalformed
	}
	return pages, nil
}

// ParseSchedstat returns the first field of /proc/PID/task/TID/schedstat, which is the
// time that the thread spent on a CPU. It does not allocate.
func ParseSchedstat(b []byte) (onCPU time.Duration, err error) {
	first, _, ok := bytes.Cut(b, []byte(" "))
	ns, err := strconv.ParseUint(string(first), 10, 63)
	if !ok || err != nil {
		return 0, ErrMalformed
	}
	return time.Duration(ns), nil
}
