// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package cputriggerprocessor

import (
	"bytes"
	"path/filepath"
	"strconv"
	"time"

	"github.com/hotprofile/hotprofile/internal/cgroup"
	"github.com/hotprofile/hotprofile/internal/procfs"
)

// shareOver is how far back the user share of CPU time reaches at least, once
// there is so much, and at most twice.
const shareOver = 30 * time.Second

// userTimes follows how the CPU time of a unit divides into user and system. It
// is read only while a unit is warm, since it costs a file opened each time.
type userTimes struct {
	readNow func() (user, system uint64, ok bool)
	// older and newer are where spans begin, shareOver apart; last is the end.
	older, newer, last cpuTimes
}

// cpuTimes are in whichever unit their file has.
type cpuTimes struct {
	at           time.Time
	user, system uint64
}

// openUserTimes finds where the times of a unit are, and nil if nowhere.
func openUserTimes(tree *cgroup.Tree, u *unit) *userTimes {
	if u.process.PID != 0 {
		stat := filepath.Join(tree.Root(), "proc", strconv.Itoa(u.process.PID), "stat")
		return &userTimes{readNow: func() (uint64, uint64, bool) { return readProcessTimes(stat, u.process.Start) }}
	}
	if dir, err := tree.Own(u.cgroup, cgroup.V2Tree); err == nil {
		file := filepath.Join(dir, "cpu.stat")
		return &userTimes{readNow: func() (uint64, uint64, bool) { return readTimes(file, "user_usec", "system_usec") }}
	}
	if dir, err := tree.Own(u.cgroup, cgroup.CPUAcct); err == nil {
		file := filepath.Join(dir, "cpuacct.stat")
		return &userTimes{readNow: func() (uint64, uint64, bool) { return readTimes(file, "user", "system") }}
	}
	return nil
}

// read takes a reading.
func (t *userTimes) read(now time.Time) {
	if t == nil {
		return
	}
	user, system, ok := t.readNow()
	if !ok {
		return
	}
	t.last = cpuTimes{at: now, user: user, system: system}
	switch {
	case t.older.at.IsZero():
		t.older, t.newer = t.last, t.last
	case now.Sub(t.newer.at) >= shareOver:
		t.older, t.newer = t.newer, t.last
	}
}

// share is the part of user time, and below 0 if it is not known.
func (t *userTimes) share() float64 {
	if t == nil || t.last.user < t.older.user || t.last.system < t.older.system {
		return -1
	}
	user, system := t.last.user-t.older.user, t.last.system-t.older.system
	if user+system == 0 {
		return -1
	}
	return float64(user) / float64(user+system)
}

// readTimes reads a file of a name and a number per line.
func readTimes(file, userKey, systemKey string) (user, system uint64, ok bool) {
	b, err := procfs.ReadFile(file, procfs.MaxStat)
	if err != nil {
		return 0, 0, false
	}
	found := 0
	for line := range bytes.Lines(b) {
		key, value, _ := bytes.Cut(bytes.TrimSpace(line), []byte(" "))
		n, err := strconv.ParseUint(string(value), 10, 64)
		if err != nil {
			continue
		}
		switch string(key) {
		case userKey:
			user, found = n, found+1
		case systemKey:
			system, found = n, found+1
		}
	}
	return user, system, found == 2
}

func readProcessTimes(file string, start uint64) (user, system uint64, ok bool) {
	b, err := procfs.ReadFile(file, procfs.MaxStat)
	if err != nil {
		return 0, 0, false
	}
	s, err := procfs.ParseStat(b)
	return s.User, s.System, err == nil && s.Start == start
}
