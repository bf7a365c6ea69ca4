// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package collect

import (
	"path/filepath"
	"time"

	"github.com/hotprofile/hotprofile/internal/cgroup"
	"github.com/hotprofile/hotprofile/internal/procfs"
	"github.com/hotprofile/hotprofile/processor/cputriggerprocessor/internal/units"
)

// shareOver is the minimum time over which the user share of the CPU time is computed.
// Only the first shares of a unit cover a shorter time. A share covers at most twice
// shareOver.
const shareOver = 30 * time.Second

// ReadTimes reads the user and system CPU time of a unit. The unit of both times is
// either ticks or microseconds. ok is false if the times cannot be read now.
type ReadTimes func() (user, system uint64, ok bool)

// userTimes tracks the user and system CPU time of a unit. The times are read only while
// the unit is warm, because each reading opens a file.
type userTimes struct {
	readNow ReadTimes // nil if no file contains the times
	// older and newer are the starts of two time spans, at least shareOver apart. last is
	// the end of both time spans.
	older, newer, last cpuTimes
}

type cpuTimes struct {
	at           time.Time
	user, system uint64
}

// OpenUserTimes returns a function that reads the user and system time of a unit. It
// returns nil if no file contains these times.
func OpenUserTimes(tree *cgroup.Tree, u *units.Unit) ReadTimes {
	if u.IsProcess() {
		proc := procfs.At(tree.Root())
		return func() (uint64, uint64, bool) {
			s, err := proc.Stat(u.Process.PID)
			return s.User, s.System, err == nil && s.Start == u.Process.Start
		}
	}
	if dir, err := tree.Own(u.Group, cgroup.V2Tree); err == nil {
		file := filepath.Join(dir, "cpu.stat")
		return func() (uint64, uint64, bool) { return readTimes(file, "user_usec", "system_usec") }
	}
	if dir, err := tree.Own(u.Group, cgroup.CPUAcct); err == nil {
		file := filepath.Join(dir, "cpuacct.stat")
		return func() (uint64, uint64, bool) { return readTimes(file, "user", "system") }
	}
	return nil
}

// read reads the CPU times for share. If newer is at least shareOver old, read moves the
// start of the time span that share covers.
func (t *userTimes) read(now time.Time) {
	if t == nil || t.readNow == nil {
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

// share returns the fraction of CPU time that is user time.
// It returns -1 if the fraction is not known.
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

// readTimes reads two values from a file with a name and a number in each line.
func readTimes(file, userKey, systemKey string) (user, system uint64, ok bool) {
	b, err := procfs.ReadFile(file, procfs.MaxStat)
	if err != nil {
		return 0, 0, false
	}
	user, noUser := cgroup.Keyed(b, userKey)
	system, noSystem := cgroup.Keyed(b, systemKey)
	return user, system, noUser == nil && noSystem == nil
}
