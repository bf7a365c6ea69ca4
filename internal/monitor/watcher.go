// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package monitor

import (
	"errors"
	"time"

	"github.com/hotprofile/hotprofile/internal/cgroup"
)

// recheckEvery is after how many readings it is looked at again whether a unit's
// cgroup is its own, since one made below it would add to its figures, and
// whether what was unavailable still is.
const recheckEvery = 32

// recheckInFull is after how many of these it is looked at in full, though no
// cgroup was made below the unit's: processes may have been moved one by one.
const recheckInFull = 8

// A Watcher reads the monitors of one unit. What one of them cannot read does not
// keep the others from being read.
type Watcher struct {
	source *Source
	slots  []slot
	use    cpuUse

	unit     cgroup.Group // zero for a process
	process  *processClock
	paths    cgroup.Paths // the unit's, or where the process is by now
	readings int
	recheck  bool // whether this reading looks again at what seldom changes

	capacity cgroup.Capacity
}

// A meter reads one monitor of one unit. Its figures are those of a [Reading].
type meter interface {
	// read returns the figures. Restarted says that no span may reach across
	// this reading; it is said once, at a reading without an error.
	read(now time.Time) (num, den float64, restarted bool, err error)
	// from names the file or event that is read.
	from() string
	close()
}

// A slot is one monitor of a watcher.
type slot struct {
	meter       meter
	unavailable bool // as of the last reading
}

func (w *Watcher) newSlot(kind string) slot {
	switch kind {
	case CPUUsage:
		return slot{meter: &usage{w: w}}
	case CPUUtilization:
		return slot{meter: &share{w: w, of: &capacity{w: w}}}
	case CPURequestUtilization:
		return slot{meter: &share{w: w, of: newRequest(w)}}
	case CPUHostShare:
		return slot{meter: &share{w: w, of: online{w.source}}}
	case CPUBusiestThread:
		return slot{meter: newBusiest(w)}
	case CPUBottleneck:
		return slot{meter: newOnCPU(w)}
	case CPUThrottling:
		return slot{meter: newThrottling(w)}
	case CPUPressure:
		return slot{meter: newPressure(w)}
	case HostCPUUtilization:
		return slot{meter: &hostCPU{host: &w.source.host}}
	case SystemLoad:
		return slot{meter: hostLoad{&w.source.host}}
	case MemoryUtilization:
		return slot{meter: newMemory(w)}
	case ThreadCount:
		return slot{meter: newThreadCount(w)}
	}
	panic("monitor: no meter of " + kind) // a kind that Kinds names
}

// usesCPUTime says whether a monitor is made from the unit's CPU time.
func usesCPUTime(kind string) bool {
	switch kind {
	case CPUUsage, CPUUtilization, CPURequestUtilization, CPUHostShare, CPUBusiestThread, CPUBottleneck:
		return true
	}
	return false
}

// Read fills out, which has one element per monitor in the order in which they
// were opened. It allocates nothing while nothing fails, but for the rare look at
// whether the cgroup is still the unit's own. Now is the moment of the call, by a
// monotonic clock.
func (w *Watcher) Read(now time.Time, out []Result) {
	w.recheck = w.isTimeToRecheck()
	w.use.read(now)
	if w.process != nil && w.use.gone() {
		for i := range w.slots {
			out[i] = Result{Err: ErrGone} // whoever has its pid by now is another
		}
		return
	}
	if w.process != nil && w.process.moved {
		w.move()
	}
	for i := range w.slots {
		out[i] = w.slots[i].read(now)
	}
}

func (w *Watcher) isTimeToRecheck() bool {
	w.readings++
	switch {
	case w.readings%recheckEvery != 0:
		return false
	case w.ownsByName() || w.use.wanted && !w.use.own || w.readings%(recheckEvery*recheckInFull) == 0:
		return true
	}
	return !w.source.tree.Childless(w.unit)
}

func (s *slot) read(now time.Time) Result {
	num, den, restarted, err := s.meter.read(now)
	if err == nil {
		s.unavailable = false
		return Result{Reading: Reading{Time: now, Num: num, Den: den}, Restarted: restarted}
	}
	if errors.Is(err, cgroup.ErrGone) {
		err = ErrGone
	}
	var unavailable cgroup.Unavailable
	s.unavailable = errors.As(err, &unavailable)
	return Result{Err: err}
}

// move follows the process to another cgroup: its limits are those from there on.
func (w *Watcher) move() {
	paths, err := w.source.tree.ParsePaths(w.process.paths)
	if err != nil {
		return // out of sight; it is asked again when it moves again
	}
	w.process.moved = false
	w.paths = paths
	for i := range w.slots {
		if m, ok := w.slots[i].meter.(interface{ moved() }); ok {
			m.moved()
		}
	}
}

// ownsByName says that nothing else can be in the unit's cgroup.
func (w *Watcher) ownsByName() bool { return w.process != nil || w.unit.ContainerID != "" }

// From names the file or the event that the i-th monitor is read from; empty
// while it is unavailable.
func (w *Watcher) From(i int) string {
	if w.slots[i].unavailable {
		return ""
	}
	return w.slots[i].meter.from()
}

// Capacity returns what the last reading found, for those that look at it.
func (w *Watcher) Capacity() cgroup.Capacity { return w.capacity }

// Close gives up the files.
func (w *Watcher) Close() {
	for i := range w.slots {
		w.slots[i].meter.close()
	}
	w.use.close()
}

// An opened figure is opened at its first reading, and looked at again from time
// to time: where it may stop being the unit's own, and where there was none.
type opened[T interface{ Close() }] struct {
	w    *Watcher
	open func() (T, error)
	it   T
	ok   bool
	none error // why there is none, an Unavailable
}

func (o *opened[T]) get() (T, error) {
	look := o.w.recheck && (!o.ok || !o.w.ownsByName())
	if o.ok && !look {
		return o.it, nil
	}
	if o.none != nil && !look {
		return o.it, o.none
	}
	it, err := o.open()
	if err == nil && o.ok {
		it.Close() // the one that is open has the baseline
		return o.it, nil
	}
	o.close()
	if err != nil {
		var none cgroup.Unavailable
		if errors.As(err, &none) {
			o.none = none
		}
		return o.it, err
	}
	o.it, o.ok = it, true
	return it, nil
}

// close gives up the figure, so that the next reading opens it anew.
func (o *opened[T]) close() {
	o.none = nil
	if o.ok {
		o.it.Close()
		var none T
		o.it, o.ok = none, false
	}
}
