// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package monitor

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/hotprofile/hotprofile/internal/cgroup"
	"github.com/hotprofile/hotprofile/internal/cgroup/keptfile"
	"github.com/hotprofile/hotprofile/internal/procfs"
)

// ForeignPIDs is the reason for a collector whose own pids are not those of the
// procfs that it reads, so that it would read the clocks of other processes.
const ForeignPIDs cgroup.Unavailable = "the collector is in a pid namespace of its own: run it with the host's (--pid=host, hostPID)"

// A Source takes readings of units. It belongs to one goroutine.
type Source struct {
	tree    *cgroup.Tree
	procfs  procfs.FS
	options Options
	files   *keptfile.Set
	reader  *cgroup.Reader
	clocks  clocks
	host    hostFigures
	// busyFrom is the usage, in cores, from which on the threads of a unit are
	// looked at one by one.
	busyFrom float64
	// idleBelow is the usage, in cores, below which the counts of throttling are
	// read now and then only.
	idleBelow float64
	// watchers counts those that were opened.
	watchers int
	// bottlenecks is nil until a watcher asks for cpu_bottleneck.
	bottlenecks *bottlenecks
	buf         []byte
}

// clocks is what the kernel says of processes.
type clocks interface {
	// process returns the CPU time of all threads of a process, ended ones
	// included, without its children.
	process(pid int) (time.Duration, error)
	// ticks is the time since boot in the unit of a process's start.
	ticks() uint64
}

// Options are what a source is to know beside the tree. The zero value keeps no
// file open and has the defaults for the rest.
type Options struct {
	// MaxOpenFiles bounds the files that are kept open between readings.
	MaxOpenFiles int
	// Least is the lowest threshold in use, by monitor: what is costly to read is
	// read only for units that can reach it. A monitor that is missing has 0.
	Least map[string]float64
	// MaxSwitchesPerSecond is from where on cpu_bottleneck is too costly for the
	// host; 0 for the default of 200,000.
	MaxSwitchesPerSecond int
	// CPUWeightFormula says how container runtimes of this host turn a CPU
	// request into a cpu.weight; empty for auto.
	CPUWeightFormula cgroup.WeightFormula
	// Now is the wall clock; nil for the system's.
	Now func() time.Time
}

// NewSource returns a source that reads below the tree's root.
func NewSource(tree *cgroup.Tree, o Options) (*Source, error) {
	if o.CPUWeightFormula != "" && !o.CPUWeightFormula.Valid() {
		return nil, fmt.Errorf("unknown formula %q of cpu.weight", o.CPUWeightFormula)
	}
	s := &Source{tree: tree, procfs: procfs.At(tree.Root()), options: o, busyFrom: busyEnough, idleBelow: idleBelow, files: keptfile.NewSet(o.MaxOpenFiles), buf: make([]byte, 4096)}
	if s.options.Now == nil {
		s.options.Now = time.Now
	}
	s.reader = tree.NewReader(s.files)
	s.host = hostFigures{buf: s.buf, load: s.files.File(s.procfs.Path("loadavg")), stat: s.files.File(s.procfs.Path("stat"))}
	if s.procfs.OwnPID() == os.Getpid() {
		s.clocks = systemClocks{}
	}
	return s, nil
}

// Kept is how many files are open now.
func (s *Source) Kept() int { return s.files.Kept() }

// Unkept counts the readings that had to open their file because no more may be
// kept open.
func (s *Source) Unkept() uint64 { return s.files.Unkept() }

// Close closes what the source itself keeps open; watchers are closed by whoever
// opened them.
func (s *Source) Close() {
	if s.bottlenecks != nil {
		s.bottlenecks.close()
	}
	s.host.close()
	s.reader.Close()
}

// WatchUnit opens the monitors of a unit that is a cgroup, by their names. A
// monitor that is unavailable is no error here: its results say so.
func (s *Source) WatchUnit(u cgroup.Group, monitors []string) (*Watcher, error) {
	if u.ProcessOnly() {
		return nil, errors.New("watch a unit: it has no cgroup of its own and must be watched as a process")
	}
	w, err := s.newWatcher(u, nil, monitors)
	if err != nil {
		return nil, err
	}
	if w.use.wanted {
		err = w.use.open()
	}
	if err != nil {
		w.Close()
		return nil, err
	}
	return w, nil
}

// WatchProcess opens the monitors of a unit that is a process. It returns
// [ErrGone] where the pid is no process, or another one by now.
func (s *Source) WatchProcess(p procfs.Process, monitors []string) (*Watcher, error) {
	clock, err := openProcessClock(s, p)
	if err != nil {
		return nil, err
	}
	w, err := s.newWatcher(cgroup.Group{}, clock, monitors)
	if err != nil {
		clock.Close()
		return nil, err
	}
	w.use.wanted = true // it also says whether the process is still there
	w.use.counter = clock
	return w, nil
}

func (s *Source) newWatcher(u cgroup.Group, p *processClock, monitors []string) (*Watcher, error) {
	w := &Watcher{source: s, unit: u, process: p, paths: u.Paths}
	s.watchers++
	w.readings = s.watchers % recheckEvery // not all in the same round
	w.use.w = w
	for _, name := range monitors {
		k, ok := KindOf(name)
		if !ok {
			return nil, fmt.Errorf("watch a unit: unknown monitor %q", name)
		}
		w.slots = append(w.slots, w.newSlot(k.Name))
		w.use.wanted = w.use.wanted || usesCPUTime(k.Name)
	}
	return w, nil
}

// followSwitches is what all readings of cpu_bottleneck are made from.
func (s *Source) followSwitches() *bottlenecks {
	if s.bottlenecks == nil {
		s.bottlenecks = newBottlenecks(s, bottleneckOptions{
			Least: s.options.Least[CPUBottleneck], MaxSwitches: s.options.MaxSwitchesPerSecond,
		})
	}
	return s.bottlenecks
}
