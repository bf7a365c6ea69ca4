// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package monitor

import (
	"bytes"
	"fmt"
	"strconv"
	"time"

	"github.com/hotprofile/hotprofile/internal/cgroup/keptfile"
	"github.com/hotprofile/hotprofile/internal/procfs"
)

// startOf returns when the process that has a pid started, in clock ticks since boot, or
// [ErrGone].
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

// A processClock reads one process's CPU time. Its open /proc/PID/cgroup identifies the
// process: once that is reaped the kernel returns ESRCH there, even if another process
// has the pid. Until then it returns the process's cgroups.
type processClock struct {
	source  *Source
	process procfs.Process
	file    keptfile.File
	paths   []byte // the file's content
	moved   bool   // paths changed since the owner last looked
}

// openProcessClock opens the clock of a process; with a Start of 0, of any that has the
// pid.
func openProcessClock(s *Source, p procfs.Process) (*processClock, error) {
	c := &processClock{source: s, process: p, file: s.files.File(s.procfs.File(p.PID, "cgroup"))}
	if err := c.readPaths(); err != nil {
		c.Close()
		return nil, err
	}
	// The start is read after the file was opened. So it is the same process's, or
	// differs if that one has ended in between.
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

// Read returns the CPU time. It never restarts.
func (c *processClock) Read(time.Time) (time.Duration, bool, error) {
	var (
		used time.Duration
		err  error = ForeignPIDs
	)
	if c.source.clocks != nil {
		used, err = c.source.clocks.process(c.process.PID)
	}
	if err != nil && c.source.clocks != nil {
		return 0, false, err
	}
	// If it still runs after its clock was read, the clock was its own.
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

// A processFile is a file of one process in the procfs.
type processFile struct {
	source *Source
	file   keptfile.File
}

// processFile returns a file of the watched process, not yet opened.
func (w *Watcher) processFile(name string) processFile {
	s := w.source
	return processFile{s, s.files.File(s.procfs.File(w.process.process.PID, name))}
}

// read returns the content, which is valid until the source's next reading.
func (p *processFile) read() ([]byte, error) {
	n, _, err := p.file.Read(p.source.buf)
	if procfs.IsGone(err) {
		return nil, ErrGone
	}
	return p.source.buf[:n], err
}

// From returns the path of the file.
func (p *processFile) From() string { return p.file.Path() }

// Close closes the file.
func (p *processFile) Close() { p.file.Close() }
