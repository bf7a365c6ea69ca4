// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package procfs reads what the kernel says of a process in /proc/PID/stat, the
// one file of it that the receiver, the monitors and the gate all ask.
package procfs

import (
	"bytes"
	"errors"
	"strconv"
)

const (
	// TicksPerSecond is USER_HZ, the unit of times in a stat file. It is the
	// same on every architecture of Linux that Go runs on.
	TicksPerSecond = 100

	// MaxStat is more than any stat file has, for bounded reads.
	MaxStat = 4 << 10
)

// A Stat is the part of a stat file that is of use here; proc_pid_stat(5) has
// the whole. Times are in clock ticks.
type Stat struct {
	// Comm is the name of the main thread, a part of what was parsed. It may
	// hold any byte.
	Comm         []byte
	PPID         int
	Kernel       bool // a kernel thread
	Ending       bool // the thread is exiting
	User, System uint64
	Threads      int
	Start        uint64 // since the host booted
}

// ErrStat says that something is no stat file.
var ErrStat = errors.New("not the content of a /proc/PID/stat")

// ParseStat reads the content of a stat file, without allocating. The second
// field, the name in parentheses, may hold anything, so its end is the last
// parenthesis.
func ParseStat(b []byte) (s Stat, err error) {
	open, end := bytes.IndexByte(b, '('), bytes.LastIndexByte(b, ')')
	if open < 0 || end < open {
		return Stat{}, ErrStat
	}
	s.Comm = b[open+1 : end]
	// The fields' numbers in proc_pid_stat(5); the first after the name is 3.
	const ppid, flags, user, system, threads, start = 4, 9, 14, 15, 20, 22
	const exiting, kthread = 0x4, 0x00200000 // PF_EXITING and PF_KTHREAD of the kernel's sched.h
	field := 3
	for f := range bytes.FieldsSeq(b[end+1:]) {
		switch field {
		case ppid:
			s.PPID, err = strconv.Atoi(string(f))
		case threads:
			s.Threads, err = strconv.Atoi(string(f))
		case flags, user, system, start:
			var n uint64
			n, err = strconv.ParseUint(string(f), 10, 64)
			switch field {
			case flags:
				s.Kernel, s.Ending = n&kthread != 0, n&exiting != 0
			case user:
				s.User = n
			case system:
				s.System = n
			case start:
				s.Start = n
				if err == nil {
					return s, nil
				}
			}
		}
		if err != nil {
			return Stat{}, ErrStat
		}
		field++
	}
	return Stat{}, ErrStat
}
