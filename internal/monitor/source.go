// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package monitor

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"time"

	"github.com/hotprofile/hotprofile/internal/cgroup"
	"github.com/hotprofile/hotprofile/internal/cgroup/openfile"
	"github.com/hotprofile/hotprofile/internal/monitor/bottleneck"
	"github.com/hotprofile/hotprofile/internal/procfs"
)

// ForeignPIDs is returned if the collector reads the procfs of another pid namespace.
// The pids in that procfs would identify the wrong processes.
const ForeignPIDs = bottleneck.ForeignPIDs

// A Source reads monitors of units. Only one goroutine may use it.
type Source struct {
	tree    *cgroup.Tree
	procfs  procfs.FS
	options Options
	now     func() time.Time // the wall clock
	files   *openfile.Set
	reader  *cgroup.Reader
	clocks  clocks
	// foreignPIDs reports whether procfs belongs to another pid namespace.
	foreignPIDs bool
	host        hostFigures
	// busyFrom is the minimum CPU usage, in cores, at which the threads of a
	// unit are read one by one.
	busyFrom float64
	// idleBelow is the CPU usage, in cores, below which throttling counts
	// are read only occasionally.
	idleBelow float64
	// watchers is the number of watchers that were opened so far.
	watchers int
	// switches is nil until a watcher reads cpu_bottleneck.
	switches *bottleneck.Follower
	list     *list // on Windows
	buf      []byte
}

// clocks reads the kernel's clocks of processes.
type clocks interface {
	// process returns the CPU time of all threads of a process. Threads that have ended
	// are included, and child processes are not included.
	process(pid int) (time.Duration, error)
	// ticks returns the time since boot in clock ticks, like the start time of a process.
	ticks() uint64
}

// Options configure a Source. The zero value keeps no file open, and uses the
// defaults for all other options.
type Options struct {
	// MaxOpenFiles is the maximum number of files that are kept open between readings.
	MaxOpenFiles int
	// Least maps each monitor to the lowest threshold in use. The threshold is 0
	// for monitors that are not in the map. A costly monitor is read only for units
	// that can reach its threshold.
	Least map[string]float64
	// TCP returns the values of the TCP connections of a unit, which is a group or a
	// process. TCP is called for each reading. If TCP is nil, connections are not read.
	TCP func(cgroup.Group, procfs.Process) TCPFigures
}

// NewSource returns a source that reads files below the tree's root. Without a tree, the
// source reads the processes of Windows.
func NewSource(tree *cgroup.Tree, o Options) (*Source, error) {
	if tree == nil {
		all, err := newList()
		return &Source{options: o, list: all}, err
	}
	s := &Source{tree: tree, procfs: procfs.At(tree.Root()), options: o, now: time.Now, clocks: systemClocks{}, busyFrom: busyEnough, idleBelow: idleBelow, files: openfile.NewSet(o.MaxOpenFiles), buf: make([]byte, 4096)}
	s.reader = tree.NewReader(s.files)
	s.host = hostFigures{buf: s.buf, load: s.files.File(s.procfs.Path("loadavg")), stat: s.files.File(s.procfs.Path("stat"))}
	s.foreignPIDs = s.procfs.OwnPID() != os.Getpid()
	return s, nil
}

// Close closes the files of the source. It does not close the watchers.
func (s *Source) Close() {
	if s.switches != nil {
		s.switches.Close()
	}
	if s.reader != nil {
		s.host.close()
		s.reader.Close()
	}
}

// Watch opens the named monitors of a unit. The unit is the process p if p has a pid, and
// the cgroup u otherwise. Watch does not fail if a monitor is unavailable, because the
// results of the monitor then contain the error. It returns [ErrGone] if the process has
// ended.
func (s *Source) Watch(u cgroup.Group, p procfs.Process, monitors []string) (*Watcher, error) {
	w := &Watcher{source: s, unit: u, paths: u.Paths}
	if err := w.begin(p, monitors); err != nil {
		w.Close()
		return nil, err
	}
	return w, nil
}

func (w *Watcher) begin(p procfs.Process, monitors []string) (err error) {
	s := w.source
	s.watchers++
	w.readings = s.watchers % recheckEvery // spreads rechecks over the rounds
	w.use.w = w
	switch {
	case p.PID == 0 && w.unit.ProcessOnly():
		return errors.New("watch a unit: it has no cgroup of its own and must be watched as a process")
	case p.PID == 0:
	case s.list != nil:
		w.process = &processClock{process: p}
		w.use.counter, err = s.list.clock(p)
	default:
		if w.process, err = openProcessClock(s, p); err == nil {
			w.use.counter = w.process
		}
	}
	if err == nil {
		err = w.setSlots(monitors)
	}
	if err == nil && w.process == nil && w.use.wanted {
		err = w.use.open()
	}
	return err
}

// SetLeast sets Options.Least.
func (s *Source) SetLeast(least map[string]float64) {
	s.options.Least = least
	if s.switches != nil {
		s.switches.SetLeast(least[CPUBottleneck])
	}
}

// maxAsked is the maximum number of processes of a unit that are read
// to find the oldest process.
const maxAsked = 256

// StartedAt returns the start time of the oldest running process of a unit. It checks only
// the 256 processes with the lowest pids. It is called once per unit. The error is
// [ErrGone] if the unit has no process.
func (s *Source) StartedAt(u cgroup.Group) (time.Time, error) {
	pids, err := s.tree.Processes(u)
	if err != nil {
		return time.Time{}, fmt.Errorf("find when the unit's first process started: %w", err)
	}
	sorted := slices.Sorted(maps.Keys(pids))
	var first uint64
	failed := ErrGone
	for _, pid := range sorted[:min(len(sorted), maxAsked)] {
		start, err := s.startOf(pid)
		if err != nil {
			if !errors.Is(err, ErrGone) {
				failed = err
			}
			continue
		}
		if start > 0 && (first == 0 || start < first) {
			first = start
		}
	}
	if first == 0 {
		return time.Time{}, fmt.Errorf("find when the unit's first process started: %w", failed)
	}
	now := s.clocks.ticks()
	return s.now().Add(-time.Duration(now-min(first, now)) * procfs.Tick), nil
}
