// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package watch keeps the set of units up to date: it finds cgroups, takes
// readings of each unit, and publishes which units are hot.
package watch

import (
	"errors"
	"math"
	"slices"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/hotprofile/hotprofile/internal/cgroup"
	"github.com/hotprofile/hotprofile/internal/monitor"
	"github.com/hotprofile/hotprofile/processor/cputriggerprocessor/internal/counters"
	"github.com/hotprofile/hotprofile/processor/cputriggerprocessor/internal/units"
)

const (
	// chunk is the number of units that are read before their readings go to the
	// set at once: its lock is held for moments only.
	chunk = 256

	// maxReasons bounds the reasons of unavailable monitors that are remembered.
	// Further ones are in the debug log only.
	maxReasons = 128
)

// watched is a unit as the collector knows it.
type watched struct {
	*units.Unit
	watcher    Watcher     // nil until it could be opened
	lastOf     []time.Time // last reading of each monitor
	gone       bool
	askedStart bool // when its first process started
	capacity   cgroup.Capacity
	from       []string   // per monitor, what the debug log showed last
	times      *userTimes // while it is warm
	// openLogged and logged are the faults that were logged, each once per unit: of
	// opening it, and of each monitor.
	openLogged bool
	logged     []bool
}

// Monitors lists the quantities to read of each unit.
type Monitors struct {
	Names []string
	Warm  []float64          // per monitor, the value from which on a unit is warm
	Least map[string]float64 // the lowest threshold in use, by monitor
}

// Collector takes the readings. One goroutine uses it and does nothing else: what
// follows from readings is decided and reported by others.
type Collector struct {
	Units    *units.Set
	Source   Source
	Monitors Monitors
	Interval time.Duration
	Now      func() time.Time
	Log      *zap.Logger
	Counters *counters.Counters
	Debug    *DebugUnits
	Hot      *HotList
	Ages     bool   // min_age is set: read when units' processes started
	Mode     string // the host's of control groups, for the debug log
	// UserTimes returns a function that reads a unit's user and system time, or nil
	// where they cannot be read.
	UserTimes func(*units.Unit) ReadTimes

	next     atomic.Pointer[Monitors] // to be read from the next reading on; nil: no others
	watched  []*watched
	results  []monitor.Result    // of one unit
	readings []units.Readings    // of one chunk
	counts   []counters.Readings // per monitor
	late     bool                // readings were late at the last tick
	reasons  map[string]bool     // of unavailable monitors that were logged
}

// SetMonitors replaces the monitors from the next reading on. Those that stay go on
// from their last readings. Unlike all else it may be called by any goroutine.
func (c *Collector) SetMonitors(m Monitors) { c.next.Store(&m) }

// change applies SetMonitors.
func (c *Collector) change(next Monitors) {
	old := c.Monitors.Names
	c.Monitors, c.readings = next, nil
	c.Source.SetLeast(next.Least)
	for _, w := range c.watched {
		before := *w
		w.begin(len(next.Names))
		for m, name := range next.Names {
			if n := slices.Index(old, name); n >= 0 {
				w.lastOf[m], w.logged[m] = before.lastOf[n], before.logged[n]
			}
		}
		if w.watcher == nil {
			continue
		}
		if err := w.watcher.SetMonitors(next.Names); err != nil { // it is opened anew, which reports what is wrong
			w.watcher.Close()
			w.watcher = nil
		}
	}
}

// begin makes room for what is known of each monitor.
func (w *watched) begin(monitors int) {
	w.logged, w.lastOf, w.from = make([]bool, monitors), make([]time.Time, monitors), nil
}

// Collect takes one reading of every unit.
func (c *Collector) Collect() {
	if next := c.next.Swap(nil); next != nil {
		c.change(*next)
	}
	if n := len(c.Monitors.Names); c.readings == nil {
		c.results = make([]monitor.Result, n)
		c.readings = make([]units.Readings, chunk)
		for i := range c.readings {
			c.readings[i].Readings = make([]units.Reading, n)
		}
		c.counts = make([]counters.Readings, n)
		c.Counters.SetMonitors(c.Monitors.Names)
	}
	for _, u := range c.Units.TakeAdded() {
		w := &watched{Unit: u}
		w.begin(len(c.Monitors.Names))
		c.watched = append(c.watched, w)
	}
	var worst lateness
	for from := 0; from < len(c.watched); from += chunk {
		some := c.watched[from:min(from+chunk, len(c.watched))]
		for i, w := range some {
			if late := c.read(w, &c.readings[i]); late.by > worst.by {
				worst = late
			}
		}
		c.Units.Observe(c.Monitors.Names, c.readings[:len(some)])
		for i, w := range some {
			c.follow(w, &c.readings[i])
		}
	}
	c.forget()
	c.Hot.Publish()
	c.logLate(worst)
	for m := range c.counts {
		c.Counters.AddReadings(m, &c.counts[m])
		c.counts[m] = counters.Readings{}
	}
}

// lateness is the delay of the latest reading.
type lateness struct {
	by      time.Duration
	unit    string
	monitor string
}

// read takes the readings of one unit, and returns the latest of those that were
// late.
func (c *Collector) read(w *watched, out *units.Readings) (worst lateness) {
	clear(out.Readings)
	*out = units.Readings{Unit: w.Unit, Readings: out.Readings, UserShare: -1}
	if w.watcher == nil && !c.open(w, out) {
		out.Gone = w.gone
		return lateness{}
	}
	now := c.Now()
	out.Time = now
	w.watcher.Read(now, c.results)
	w.times.read(now)
	out.UserShare = w.times.share()
	restarted := false
	for m, r := range c.results {
		out.Readings[m].Result = r
		if errors.Is(r.Err, monitor.ErrGone) {
			w.gone = true // there is nothing to read, so nothing failed
			continue
		}
		restarted = restarted || r.Err == nil && r.Restarted
		late := w.late(m, now, r, c.Interval)
		if late > worst.by {
			worst = lateness{by: late, unit: w.Name, monitor: c.Monitors.Names[m]}
		}
		if !isGap(r.Err) {
			c.counts[m][c.classify(w, m, r.Err, late > 0)]++
		}
	}
	if c.Ages && !w.gone && !w.IsProcess() && (!w.askedStart || restarted) {
		// Where it fails, the time that the unit was first seen counts.
		w.askedStart = true
		out.Started, _ = c.Source.Started(w.Unit)
	}
	out.Gone = w.gone
	return worst
}

// open opens the watcher of a unit, or counts a reading of each monitor as
// failed.
func (c *Collector) open(w *watched, out *units.Readings) bool {
	opened, err := c.Source.Watch(w.Unit, c.Monitors.Names)
	if err == nil {
		w.watcher = opened
		return true
	}
	w.gone = errors.Is(err, monitor.ErrGone)
	if !w.gone && !w.openLogged {
		w.openLogged = true
		c.Log.Warn("reading failed", zap.String("unit", w.Name), zap.Error(err))
	}
	for m := range out.Readings {
		out.Readings[m].Err = err
		if !w.gone {
			c.counts[m][counters.ReadingFailed]++
		}
	}
	return false
}

// late returns the delay of a reading and records the reading. A failed reading is
// not late; the next one may be.
func (w *watched) late(m int, now time.Time, r monitor.Result, interval time.Duration) time.Duration {
	at := now
	if r.Err == nil {
		at = r.Reading.Time
	}
	since := at.Sub(w.lastOf[m])
	first := w.lastOf[m].IsZero()
	w.lastOf[m] = at
	if first || r.Err != nil || since <= 2*interval {
		return 0
	}
	return since - interval
}

// classify returns the outcome of a reading, and logs a fault once per unit. The
// reason why a monitor is unavailable is often the same for very many units: it
// is logged once for all of them, and for each in the debug log.
func (c *Collector) classify(w *watched, m int, err error, late bool) counters.ReadingOutcome {
	switch {
	case err == nil && late:
		return counters.ReadingLate
	case err == nil:
		return counters.ReadingOK
	}
	var unavailable cgroup.Unavailable // it escapes, so not where nothing failed
	isUnavailable := errors.As(err, &unavailable)
	if !w.logged[m] {
		w.logged[m] = true
		if isUnavailable {
			c.logUnavailable(w.Name, c.Monitors.Names[m], err)
		} else {
			c.Log.Warn("reading failed", zap.String("unit", w.Name), zap.String("monitor", c.Monitors.Names[m]), zap.Error(err))
		}
	}
	if isUnavailable {
		return counters.ReadingUnavailable
	}
	return counters.ReadingFailed
}

// isGap reports whether a reading was left out on purpose.
func isGap(err error) bool {
	if err == nil {
		return false
	}
	var gap monitor.Gap
	return errors.As(err, &gap)
}

func (c *Collector) logUnavailable(unit, monitor string, err error) {
	log := c.Log.Debug
	if key := monitor + ": " + err.Error(); !c.reasons[key] && len(c.reasons) < maxReasons {
		if c.reasons == nil {
			c.reasons = map[string]bool{}
		}
		c.reasons[key] = true
		log = c.Log.Info
	}
	log("monitor unavailable", zap.String("unit", unit), zap.String("monitor", monitor), zap.Error(err))
}

// follow reads the user share of a warm unit from the next tick on, and logs the
// readings of a unit that the debug log shows.
func (c *Collector) follow(w *watched, out *units.Readings) {
	w.gone = out.Gone
	if w.gone {
		return
	}
	warm := false
	for m, r := range out.Readings {
		warm = warm || r.Known && r.Value >= c.Monitors.Warm[m]
	}
	switch {
	case !warm:
		w.times = nil
	case w.times == nil:
		w.times = newUserTimes(c.UserTimes(w.Unit))
		w.times.read(out.Time)
	}
	if w.watcher == nil || !c.Debug.Has(w.Name) {
		return
	}
	if found := w.watcher.Capacity(); found != w.capacity {
		w.capacity = found
		c.Log.Debug("capacity found", zap.String("unit", w.Name), zap.Float64("cores", found.Cores),
			zap.String("by", string(found.By)), zap.String("path", found.Path))
	}
	c.logFrom(w)
	for m, r := range out.Readings {
		if r.Known {
			c.Log.Debug("cpu reading", zap.String("unit", w.Name), zap.String("monitor", c.Monitors.Names[m]), zap.Float64("value", math.Round(r.Value*1000)/1000))
		}
	}
}

// logFrom logs what the monitors of a unit are read from when it changes.
func (c *Collector) logFrom(w *watched) {
	if w.from == nil {
		w.from = make([]string, len(c.Monitors.Names))
	}
	for m := range c.Monitors.Names {
		if from := w.watcher.From(m); from != w.from[m] {
			w.from[m] = from
			c.Log.Debug("monitor found", zap.String("unit", w.Name), zap.String("monitor", c.Monitors.Names[m]), zap.String("from", from), zap.String("mode", c.Mode))
		}
	}
}

// forget removes the units that are gone.
func (c *Collector) forget() {
	kept := c.watched[:0]
	for _, w := range c.watched {
		if !w.gone {
			kept = append(kept, w)
			continue
		}
		if w.watcher != nil {
			w.watcher.Close()
		}
		c.Units.Remove(w.Unit, c.Now())
	}
	clear(c.watched[len(kept):])
	c.watched = kept
}

// logLate logs once an episode that readings are late.
func (c *Collector) logLate(worst lateness) {
	if worst.by > 0 && !c.late {
		c.Log.Warn("readings are late", zap.Duration("by", worst.by), zap.String("unit", worst.unit), zap.String("monitor", worst.monitor),
			zap.Duration("collection_interval", c.Interval), zap.Int("units", len(c.watched)))
	}
	c.late = worst.by > 0
}

// Count returns the number of units, and of those that were read and have no CPU
// limit. The latter is below 0 if no policy uses limits.
func (c *Collector) Count() (all, unlimited int) {
	if !slices.Contains(c.Monitors.Names, monitor.CPUUtilization) {
		return len(c.watched), -1
	}
	for _, w := range c.watched {
		if w.watcher != nil && w.watcher.Capacity().By == cgroup.ByOnline {
			unlimited++
		}
	}
	return len(c.watched), unlimited
}

// Close closes all watchers and the source.
func (c *Collector) Close() {
	for _, w := range c.watched {
		if w.watcher != nil {
			w.watcher.Close()
		}
	}
	c.watched = nil
	c.Source.Close()
}
