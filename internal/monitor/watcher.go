// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package monitor

import (
	"errors"
	"time"

	"github.com/hotprofile/hotprofile/internal/cgroup"
)

// A counter is a growing CPU time.
type counter interface {
	// Read returns it; replaced says that it began anew since the last reading.
	Read() (used time.Duration, replaced bool, err error)
	Close()
}

// recheckEvery is after how many readings it is looked at again whether a unit's
// cgroup is its own: a cgroup made below it would add to its figures.
const recheckEvery = 32

// A Watcher reads the monitors of one unit.
type Watcher struct {
	source        *Source
	kinds         []string
	wantsCapacity bool

	unit       cgroup.Unit // zero for a process
	process    *processClock
	ownCounter bool
	readings   int

	cpu    counter // nil with cpuErr
	cpuErr error

	capacity *cgroup.CPUCapacity // nil until it could be opened
	found    cgroup.Capacity

	baseline bool // whether there was a reading
	last     time.Duration
	lastAt   time.Time
	coresAt  time.Time // of the last capacity

	used        time.Duration // since the first reading; never runs backwards
	elapsed     time.Duration
	coreSeconds float64
}

// Read fills out, which has one element per monitor in the order in which they
// were opened. It allocates nothing while nothing fails, but for the rare look at
// whether the cgroup is still the unit's own. Now is the moment of the call, by a
// monotonic clock.
func (w *Watcher) Read(now time.Time, out []Result) {
	restarted, err := w.readCPUTime(now)
	if err != nil {
		for i := range w.kinds {
			out[i] = Result{Err: err}
		}
		return
	}
	if w.wantsCapacity {
		err = w.readCapacity(now)
	}
	for i, kind := range w.kinds {
		switch kind {
		case CPUUtilization:
			out[i] = Result{Err: err}
			if err == nil {
				out[i] = Result{Reading: Reading{Time: now, Num: w.used.Seconds(), Den: w.coreSeconds}, Restarted: restarted}
			}
		default:
			out[i] = Result{Err: notRead}
		case CPUUsage:
			out[i] = Result{Reading: Reading{Time: now, Num: w.used.Seconds(), Den: w.elapsed.Seconds()}, Restarted: restarted}
		}
	}
}

// readCPUTime adds what was used since the last reading. A span whose end is a
// new baseline adds neither time nor CPU time.
func (w *Watcher) readCPUTime(now time.Time) (restarted bool, err error) {
	switched, err := w.recheck()
	if err != nil {
		return false, err
	}
	if w.cpu == nil {
		return false, w.cpuErr
	}
	used, replaced, err := w.cpu.Read()
	if err != nil {
		if errors.Is(err, cgroup.ErrGone) {
			err = ErrGone
		}
		return false, err
	}
	switch {
	case !w.baseline:
		w.baseline = true
		w.coresAt = now
	case replaced || switched || used < w.last:
		restarted = true
		w.coresAt = now
	default:
		w.used += used - w.last
		w.elapsed += max(0, now.Sub(w.lastAt))
	}
	w.last, w.lastAt = used, now
	return restarted, nil
}

// recheck looks now and then whether the unit's cgroup is still, or by now, its
// own. A container's is, by its name.
func (w *Watcher) recheck() (switched bool, err error) {
	if w.readings++; w.readings%recheckEvery != 0 || w.unit.ProcessOnly() || w.ownCounter && w.unit.ContainerID != "" {
		return false, nil
	}
	before, wasOwn := w.cpu, w.ownCounter
	if err := w.openCPUTime(); err != nil {
		return false, err
	}
	if wasOwn == w.ownCounter && before != nil {
		if w.cpu != nil {
			w.cpu.Close()
		}
		w.cpu = before // it has the baseline
		return false, nil
	}
	if before != nil {
		before.Close()
	}
	return true, nil
}

// readCapacity adds the core seconds since the last capacity. A limit that
// changed holds from this reading on, for the whole span up to it.
func (w *Watcher) readCapacity(now time.Time) error {
	if w.capacity == nil || w.process != nil && w.process.moved {
		if err := w.openCapacity(); err != nil {
			return err
		}
	}
	found, err := w.capacity.Read(now)
	if err != nil {
		return err
	}
	w.found = found
	if span := now.Sub(w.coresAt); span > 0 {
		w.coreSeconds += span.Seconds() * found.Cores
	}
	w.coresAt = now
	return nil
}

// openCapacity opens the limits of where the unit, or by now its process, is.
func (w *Watcher) openCapacity() error {
	if w.capacity != nil {
		w.capacity.Close()
		w.capacity = nil
	}
	paths := w.unit.Paths
	if w.process != nil {
		var err error
		if paths, err = w.source.tree.ParsePaths(w.process.paths); err != nil {
			return err
		}
		w.process.moved = false
	}
	var err error
	w.capacity, err = w.source.reader.OpenCPUCapacity(paths)
	return err
}

const notRead cgroup.Unavailable = "it is not read yet"

// From names the file or the event that the i-th monitor is read from; empty
// while it is unavailable.
func (w *Watcher) From(i int) string { return "" }

// Capacity returns what the last reading found, for those that look at it.
func (w *Watcher) Capacity() cgroup.Capacity { return w.found }

// Close gives up the files.
func (w *Watcher) Close() {
	if w.cpu != nil {
		w.cpu.Close()
		w.cpu = nil
	}
	if w.capacity != nil {
		w.capacity.Close()
		w.capacity = nil
	}
}
