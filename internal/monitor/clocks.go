// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package monitor

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/hotprofile/hotprofile/internal/cgroup"
	"github.com/hotprofile/hotprofile/internal/cgroup/openfile"
	"github.com/hotprofile/hotprofile/internal/procfs"
)

// startOf returns the start time of the process with a given pid, in clock ticks since
// boot. If there is no such process, it returns [ErrGone].
func (s *Source) startOf(pid int) (uint64, error) {
	p, err := s.procfs.Process(pid)
	switch {
	case err == nil:
		return p.Start, nil
	case procfs.IsGone(err):
		return 0, ErrGone
	}
	return 0, fmt.Errorf("find when a process started: %w", err)
}

// A processClock reads the CPU time of one process. The open file /proc/PID/cgroup
// identifies the process. Reading the file returns the cgroups of the process
// until the process is reaped. After that, reading fails with ESRCH, even if
// another process has the pid.
type processClock struct {
	source  *Source
	process procfs.Process
	file    openfile.File
	paths   []byte // the file's content
	moved   bool   // paths changed since the owner last checked
}

// openProcessClock opens the clock of a process. If Start is 0, it
// accepts any process with the pid.
func openProcessClock(s *Source, p procfs.Process) (*processClock, error) {
	c := &processClock{source: s, process: p, file: s.files.File(s.procfs.File(p.PID, "cgroup"))}
	if err := c.readPaths(); err != nil {
		c.Close()
		return nil, err
	}
	// The start time is read after the file was opened. If the process ended in between, a new
	// process with the same pid has a different start time.
	start, err := s.startOf(p.PID)
	if err == nil && p.Start != 0 && start != p.Start {
		err = ErrGone
	}
	if err != nil {
		c.Close()
		return nil, err
	}
	c.process.Start = start
	return c, nil
}

// Read returns the CPU time. The CPU time never starts over.
func (c *processClock) Read(time.Time) (time.Duration, bool, error) {
	used, err := time.Duration(0), error(ForeignPIDs)
	if !c.source.foreignPIDs {
		if used, err = c.source.clocks.process(c.process.PID); err != nil {
			return 0, false, err
		}
	}
	// If the process still runs after its clock was read, the clock
	// belongs to this process.
	if !c.file.Kept() {
		start, err := c.source.startOf(c.process.PID)
		if err != nil {
			return 0, false, err
		}
		if start != c.process.Start {
			return 0, false, ErrGone
		}
	}
	if gone := c.readPaths(); gone != nil {
		return 0, false, gone
	}
	return used, false, err
}

// From returns the source of the CPU time.
func (c *processClock) From() string {
	return "the CPU clock of process " + strconv.Itoa(c.process.PID)
}

func (c *processClock) readPaths() error {
	n, _, err := c.file.Read(c.source.buf)
	if err != nil {
		if procfs.IsGone(err) {
			return ErrGone
		}
		return fmt.Errorf("find the cgroup of a process: %w", err)
	}
	if b := c.source.buf[:n]; !bytes.Equal(b, c.paths) {
		c.paths = append(c.paths[:0], b...)
		c.moved = true
	}
	return nil
}

// Close closes the file.
func (c *processClock) Close() { c.file.Close() }

// number reads one value of a unit, such as the memory in use.
type number interface {
	Read() (n uint64, replaced bool, err error)
	From() string
	Close()
}

// A processFile is a file of one process in the procfs that contains a number.
type processFile struct {
	source *Source
	file   openfile.File
	parse  func([]byte) (uint64, error)
}

// processFile returns a file of the watched process. The first read opens the file.
func (w *Watcher) processFile(name string, parse func([]byte) (uint64, error)) *processFile {
	s := w.source
	return &processFile{s, s.files.File(s.procfs.File(w.process.process.PID, name)), parse}
}

// Read returns the number in the file. replaced is always false.
func (p *processFile) Read() (n uint64, replaced bool, err error) {
	size, _, err := p.file.Read(p.source.buf)
	switch {
	case procfs.IsGone(err):
		return 0, false, ErrGone
	case err != nil:
		return 0, false, err
	}
	if n, err = p.parse(p.source.buf[:size]); err != nil {
		err = fmt.Errorf("read %s: %w", p.From(), err)
	}
	return n, false, err
}

// From returns the path of the file.
func (p *processFile) From() string { return p.file.Path() }

// Close closes the file.
func (p *processFile) Close() { p.file.Close() }

// A unitClock adds up the CPU clocks of a unit's processes. It is used for units without
// a CPU counter. The CPU time between the last reading of a process and its end is lost.
// The sum is therefore too low if processes are short-lived.
type unitClock struct {
	source *Source
	unit   cgroup.Group
	used   time.Duration // CPU time of all processes while they were followed
	clocks map[int]*follower
	since  uint64 // ticks at the last reading; 0 before the first
	round  uint64
}

type follower struct {
	clock   *processClock
	last    time.Duration
	round   uint64 // the round in which the process was last seen
	foreign bool   // another hierarchy assigns the process to another unit
}

func newUnitClock(s *Source, u cgroup.Group) *unitClock {
	return &unitClock{source: s, unit: u, clocks: map[int]*follower{}}
}

// Read returns the CPU time used since the first reading. The CPU time is never reset.
func (c *unitClock) Read(at time.Time) (time.Duration, bool, error) {
	now := c.source.clocks.ticks()
	pids, err := c.source.tree.Processes(c.unit)
	if err != nil {
		return 0, false, err // cgroup.ErrGone if the unit is gone
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

// follow adds the CPU time that a process has used since the last reading. If the process
// has ended, follow returns false, even if another process has the same pid.
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

// look checks whether the process belongs to the unit. If the process has not moved since
// the last check, look does nothing.
func (c *unitClock) look(f *follower) {
	if !f.clock.moved {
		return
	}
	paths, err := c.source.tree.ParsePaths(f.clock.paths)
	f.foreign = err != nil || c.source.tree.GroupOf(paths).ID != c.unit.ID
	f.clock.moved = false
}

// add starts following a process. If the process started after the last reading, all of
// its CPU time counts. Otherwise, only its future CPU time counts, because the process
// came from another cgroup.
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
