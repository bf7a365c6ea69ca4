// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package monitor

import (
	"errors"
	"time"

	"github.com/hotprofile/hotprofile/internal/cgroup"
	"github.com/hotprofile/hotprofile/internal/procfs"
)

// A unitClock adds up the clocks of a unit's processes, for units without a CPU counter
// of their own. The CPU time between the last reading of a process and its end is lost,
// so the sum is a lower bound if processes are short-lived.
type unitClock struct {
	source *Source
	unit   cgroup.Group
	used   time.Duration // by all processes while they were followed
	clocks map[int]*follower
	since  uint64 // ticks at the last reading; 0 before the first
	round  uint64
}

type follower struct {
	clock   *processClock
	last    time.Duration
	round   uint64 // in which it was last seen
	foreign bool   // of another unit, by another hierarchy
}

func newUnitClock(s *Source, u cgroup.Group) *unitClock {
	return &unitClock{source: s, unit: u, clocks: map[int]*follower{}}
}

// Read returns the CPU time used since the first reading. It never restarts.
func (c *unitClock) Read(at time.Time) (time.Duration, bool, error) {
	now := c.source.clocks.ticks()
	pids, err := c.source.tree.Processes(c.unit)
	if err != nil {
		return 0, false, err // possibly cgroup.ErrGone
	}
	c.round++
	for pid := range pids {
		f := c.clocks[pid]
		if f != nil && c.follow(pid, f, at) {
			continue
		}
		if err := c.add(pid, at); err != nil && !errors.Is(err, ErrGone) {
			return 0, false, err
		}
	}
	for pid, f := range c.clocks {
		if f.round != c.round {
			f.clock.Close()
			delete(c.clocks, pid)
		}
	}
	c.since = now
	return c.used, false, nil
}

// follow adds the CPU time of a process since the last reading. It returns false if the
// process has ended, although its pid is in use.
func (c *unitClock) follow(pid int, f *follower, at time.Time) bool {
	used, _, err := f.clock.Read(at)
	if err != nil {
		f.clock.Close()
		delete(c.clocks, pid)
		return false
	}
	if c.look(f); !f.foreign {
		c.used += max(0, used-f.last)
	}
	f.last, f.round = used, c.round
	return true
}

// look finds out whether the process is the unit's, when it is new or has moved.
func (c *unitClock) look(f *follower) {
	if !f.clock.moved {
		return
	}
	paths, err := c.source.tree.ParsePaths(f.clock.paths)
	f.foreign = err != nil || c.source.tree.GroupOf(paths).ID != c.unit.ID
	f.clock.moved = false
}

// add begins to follow a process. All its CPU time counts if it started since the last
// reading. If it came from another cgroup, only its CPU time from now on does.
func (c *unitClock) add(pid int, at time.Time) error {
	clock, err := openProcessClock(c.source, procfs.Process{PID: pid})
	if err != nil {
		return err
	}
	used, _, err := clock.Read(at)
	if err != nil {
		clock.Close()
		return err
	}
	f := &follower{clock: clock, last: used, round: c.round}
	if c.look(f); !f.foreign && c.since != 0 && clock.process.Start >= c.since {
		c.used += used
	}
	c.clocks[pid] = f
	return nil
}

// From returns the source of the CPU time.
func (c *unitClock) From() string { return "the CPU clocks of its processes" }

// Close closes the files.
func (c *unitClock) Close() {
	for pid, f := range c.clocks {
		f.clock.Close()
		delete(c.clocks, pid)
	}
}
