// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package monitor

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/hotprofile/hotprofile/internal/cgroup"
	"github.com/hotprofile/hotprofile/internal/procfs"
)

// recheckEvery is the number of readings between two checks of a unit. A check examines
// whether the unit's cgroup still belongs only to the unit. It also looks for new cgroups
// below the unit's cgroup, because their values would be included. Finally, it checks
// whether an unavailable monitor has become available.
const recheckEvery = 32

// recheckInFull is the number of checks per full check. A full check examines the cgroup
// even if no cgroup was created below it, because processes may have moved individually.
const recheckInFull = 8

// A Watcher reads the monitors of one unit. If a monitor fails, the other
// monitors are not affected.
type Watcher struct {
	source *Source
	slots  []slot
	use    cpuUse

	unit     cgroup.Group // zero for a process
	process  *processClock
	paths    cgroup.Paths // paths of the unit, or the current paths of the process
	readings int
	recheck  bool // the current reading also checks the unit's cgroup and unavailable monitors

	capacity cgroup.Capacity
}

// A meter reads one monitor of one unit.
type meter interface {
	// read returns Num and Den of a [Reading]. If restarted is true, no span
	// may include this reading. read reports each restart only once, and
	// never together with an error.
	read(now time.Time) (num, den float64, restarted bool, err error)
	// from returns the name of the file or event that the meter reads.
	from() string
	close()
}

// A slot contains one monitor of a watcher.
type slot struct {
	name        string
	meter       meter
	unavailable bool // at the last reading
}

// Read writes one result per monitor to out, in the order in which the monitors were opened.
// Read does not allocate memory, except for errors and for the occasional check of the unit's
// cgroup. now is the monotonic time of the call.
func (w *Watcher) Read(now time.Time, out []Result) {
	w.recheck = w.isTimeToRecheck()
	w.use.read(now)
	if w.process != nil && errors.Is(w.use.err, ErrGone) {
		for i := range w.slots {
			out[i] = Result{Err: ErrGone} // another process may have the pid now
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

// SetMonitors replaces the monitors of the watcher. Existing monitors whose names are in
// the new list continue from their last reading. Other existing monitors are closed.
// After an error, the watcher must be closed.
func (w *Watcher) SetMonitors(monitors []string) error {
	wanted := w.use.wanted
	if err := w.setSlots(monitors); err != nil {
		return err
	}
	switch {
	case w.process != nil || wanted == w.use.wanted:
	case w.use.wanted:
		return w.use.open()
	default:
		w.use.close()
		w.use = cpuUse{w: w}
	}
	return nil
}

// setSlots opens new monitors and closes monitors that are no longer named.
func (w *Watcher) setSlots(monitors []string) error {
	old := w.slots
	w.slots = make([]slot, 0, len(monitors))
	w.use.wanted = w.process != nil // reading the CPU time also detects the end of the process
	var unknown error
	for _, name := range monitors {
		d, parameters, ok := definitionOf(name)
		if !ok {
			unknown = fmt.Errorf("watch a unit: unknown monitor %q", name)
			continue
		}
		w.use.wanted = w.use.wanted || d.cpuTime
		if n := slices.IndexFunc(old, func(s slot) bool { return s.name == name }); n >= 0 {
			w.slots = append(w.slots, old[n])
			old = slices.Delete(old, n, n+1)
		} else {
			w.slots = append(w.slots, slot{name: name, meter: d.meter(w, parameters)})
		}
	}
	for i := range old {
		old[i].meter.close()
	}
	return unknown
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
	_, s.unavailable = errors.AsType[cgroup.Unavailable](err)
	return Result{Err: err}
}

// move applies the limits of the new cgroup after the process has moved.
func (w *Watcher) move() {
	paths, err := w.source.tree.ParsePaths(w.process.paths)
	if err != nil {
		return // the cgroup is not visible; the next reading retries
	}
	w.process.moved = false
	w.paths = paths
	for i := range w.slots {
		if m, ok := w.slots[i].meter.(interface{ moved() }); ok {
			m.moved()
		}
	}
}

// ownsByName reports whether the name of the cgroup shows that the
// cgroup is the unit's own.
func (w *Watcher) ownsByName() bool { return w.process != nil || w.unit.ContainerID != "" }

// processOf returns the process of a unit that is a process. For a cgroup,
// it returns a zero Process.
func (w *Watcher) processOf() procfs.Process {
	if w.process == nil {
		return procfs.Process{}
	}
	return w.process.process
}

// From returns the file or event that the i-th monitor is read from. While the monitor is
// unavailable, it returns an empty string.
func (w *Watcher) From(i int) string {
	if w.slots[i].unavailable {
		return ""
	}
	return w.slots[i].meter.from()
}

// Capacity returns the capacity that the last reading found. If no monitor
// needs the capacity, it is zero.
func (w *Watcher) Capacity() cgroup.Capacity { return w.capacity }

// Close closes the files.
func (w *Watcher) Close() {
	for i := range w.slots {
		w.slots[i].meter.close()
	}
	w.use.close()
}

// opened is a source of values. It is opened at the first reading and reopened occasionally.
// Reopening shows whether the source still belongs to the unit, and whether an unavailable
// source has become available.
type opened[T interface {
	From() string
	Close()
}] struct {
	w    *Watcher
	open func() (T, error)
	it   T
	ok   bool
	none error // the Unavailable that open returned
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
		it.Close() // o.it keeps the starting point
		return o.it, nil
	}
	o.close()
	if err != nil {
		if none, ok := errors.AsType[cgroup.Unavailable](err); ok {
			o.none = none
		}
		return o.it, err
	}
	o.it, o.ok = it, true
	return it, nil
}

// from returns the name of the open source, or an empty string if no source is open.
func (o *opened[T]) from() string {
	if !o.ok {
		return ""
	}
	return o.it.From()
}

// close closes the source. The next reading opens it again.
func (o *opened[T]) close() {
	o.none = nil
	if o.ok {
		o.it.Close()
		var none T
		o.it, o.ok = none, false
	}
}
