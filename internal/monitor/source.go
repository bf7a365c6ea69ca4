// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package monitor

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/hotprofile/hotprofile/internal/cgroup"
	"github.com/hotprofile/hotprofile/internal/cgroup/keptfile"
)

// ForeignPIDs is the reason for a collector whose own pids are not those of the
// procfs that it reads, so that it would read the clocks of other processes.
const ForeignPIDs cgroup.Unavailable = "the collector is in a pid namespace of its own: run it with the host's (--pid=host, hostPID)"

// A Source takes readings of units. It belongs to one goroutine.
type Source struct {
	tree   *cgroup.Tree
	files  *keptfile.Set
	reader *cgroup.Reader
	clocks clocks
	buf    []byte
}

// clocks is what the kernel says of processes.
type clocks interface {
	// process returns the CPU time of all threads of a process, ended ones
	// included, without its children.
	process(pid int) (time.Duration, error)
	// ticks is the time since boot in the unit of a process's start.
	ticks() uint64
}

// NewSource returns a source that reads below the tree's root and keeps at most
// maxOpen files open.
func NewSource(tree *cgroup.Tree, maxOpen int) (*Source, error) {
	s := &Source{tree: tree, files: keptfile.NewSet(maxOpen), buf: make([]byte, 4096)}
	s.reader = tree.NewReader(s.files)
	self, err := os.Readlink(s.proc("self"))
	if err == nil && self == strconv.Itoa(os.Getpid()) {
		s.clocks = systemClocks{}
	}
	return s, nil
}

func (s *Source) proc(elem ...string) string {
	return filepath.Join(append([]string{s.tree.Root(), "proc"}, elem...)...)
}

// Kept is how many files are open now.
func (s *Source) Kept() int { return s.files.Kept() }

// Unkept counts the readings that had to open their file because no more may be
// kept open.
func (s *Source) Unkept() uint64 { return s.files.Unkept() }

// Close closes what the source itself keeps open; watchers are closed by whoever
// opened them.
func (s *Source) Close() { s.reader.Close() }

// WatchUnit opens the monitors of a unit that is a cgroup, by their names. A
// monitor that is unavailable is no error here: its results say so.
func (s *Source) WatchUnit(u cgroup.Unit, monitors []string) (*Watcher, error) {
	if u.ProcessOnly() {
		return nil, errors.New("watch a unit: it has no cgroup of its own and must be watched as a process")
	}
	w, err := s.newWatcher(monitors)
	if err != nil {
		return nil, err
	}
	w.unit = u
	if err := w.openCPUTime(); err != nil {
		w.Close()
		return nil, err
	}
	return w, nil
}

// openCPUTime takes the unit's own counter, else its processes' clocks. On an
// error it changes nothing.
func (w *Watcher) openCPUTime() error {
	own, err := w.source.reader.OpenCPUTime(w.unit)
	switch {
	case err == nil:
		w.cpu, w.cpuErr, w.ownCounter = own, nil, true
	case errors.Is(err, cgroup.ErrGone):
		return ErrGone
	case w.source.clocks == nil:
		w.cpu, w.cpuErr, w.ownCounter = nil, ForeignPIDs, false
	default:
		w.cpu, w.cpuErr, w.ownCounter = newUnitClock(w.source, w.unit), nil, false
	}
	return nil
}

// WatchProcess opens the monitors of a unit that is a process. It returns
// [ErrGone] where the pid is no process, or another one by now.
func (s *Source) WatchProcess(p Process, monitors []string) (*Watcher, error) {
	w, err := s.newWatcher(monitors)
	if err != nil {
		return nil, err
	}
	if s.clocks == nil {
		w.cpuErr = ForeignPIDs
		return w, nil
	}
	clock, err := openProcessClock(s, p)
	if err != nil {
		return nil, err
	}
	w.cpu, w.process = clock, clock
	return w, nil
}

func (s *Source) newWatcher(monitors []string) (*Watcher, error) {
	w := &Watcher{source: s}
	for _, name := range monitors {
		k, ok := KindOf(name)
		if !ok {
			return nil, fmt.Errorf("watch a unit: unknown monitor %q", name)
		}
		w.kinds = append(w.kinds, k.Name)
		w.wantsCapacity = w.wantsCapacity || k.Name == CPUUtilization
	}
	return w, nil
}
