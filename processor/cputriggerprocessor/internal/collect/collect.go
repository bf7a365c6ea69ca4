// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package collect keeps the set of units up to date. It finds cgroups, takes readings of
// each unit, and publishes the hot units.
package collect

import (
	"errors"
	"math"
	"slices"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/hotprofile/hotprofile/internal/cgroup"
	"github.com/hotprofile/hotprofile/internal/monitor"
	"github.com/hotprofile/hotprofile/internal/otlpprofiles/reason"
	"github.com/hotprofile/hotprofile/processor/cputriggerprocessor/internal/counters"
	"github.com/hotprofile/hotprofile/processor/cputriggerprocessor/internal/requests"
	"github.com/hotprofile/hotprofile/processor/cputriggerprocessor/internal/units"
)

const (
	// chunk is the number of units whose readings are passed to the set in one call. It is
	// small, so that the set's lock is held only briefly.
	chunk = 256

	// maxReasons limits the remembered reasons why monitors are unavailable. Further
	// reasons are only logged at debug level.
	maxReasons = 128
)

// watched is the collector's state for a unit.
type watched struct {
	*units.Unit
	watcher    Watcher // nil until the unit was opened
	monitors   []watchedMonitor
	gone       bool
	askedStart bool // the start of its first process was read
	capacity   cgroup.Capacity
	from       []string   // per monitor, the source that was last logged
	times      *userTimes // nil while the unit is not warm
	openLogged bool       // a failed opening was logged; a fault is logged once per unit
}

// watchedMonitor is the collector's state for a monitor of a unit.
type watchedMonitor struct {
	last   time.Time // time of the last reading
	logged bool      // a fault was logged
}

// Monitors lists the monitors to read for each unit.
type Monitors struct {
	Names []string           // request monitors come last
	Host  int                // number of monitors that are not request monitors
	Warm  []float64          // per monitor, the minimum value of a warm unit
	Least map[string]float64 // the lowest threshold in use, by monitor
}

// Collector takes the readings. Only one goroutine uses it. Other goroutines evaluate and
// report the readings.
type Collector struct {
	Units    *units.Set
	Source   Source
	Requests *requests.Intake
	Monitors Monitors // of the last reading
	Interval time.Duration
	Now      func() time.Time
	Log      *zap.Logger
	Counters *counters.Counters
	Hot      *HotList
	Ages     bool   // min_age is set, so the start of each unit's first process is read
	Mode     string // cgroup mode of the host, for the debug log
	// UserTimes returns a function that reads a unit's user and system time. It returns
	// nil if these times cannot be read.
	UserTimes func(*units.Unit) ReadTimes

	next     atomic.Pointer[Monitors] // monitors for the next reading; nil: no change
	watched  []*watched
	readings []units.Readings    // of one chunk
	counts   []counters.Readings // per monitor
	late     bool                // readings were late in the last collection
	reasons  map[string]bool     // logged reasons of unavailable monitors
}

// SetMonitors replaces the monitors before the next reading. It must be called before the
// first reading. Monitors that are in both lists continue from their last readings. Unlike
// the other methods, SetMonitors may be called from any goroutine.
func (c *Collector) SetMonitors(m Monitors) { c.next.Store(&m) }

// change applies the monitors that SetMonitors has stored.
func (c *Collector) change(next Monitors) {
	old, n := c.Monitors.Names, len(next.Names)
	c.Monitors, c.readings, c.counts = next, make([]units.Readings, chunk), make([]counters.Readings, n)
	for i := range c.readings {
		c.readings[i].Results, c.readings[i].Values = make([]monitor.Result, n), make([]float64, n)
	}
	c.Source.SetLeast(next.Least)
	for _, w := range c.watched {
		before := w.monitors
		w.monitors, w.from = make([]watchedMonitor, n), nil
		for m, name := range next.Names {
			if n := slices.Index(old, name); n >= 0 {
				w.monitors[m] = before[n]
			}
		}
		if w.watcher == nil {
			continue
		}
		if err := w.watcher.SetMonitors(next.Names[:next.Host]); err != nil { // opening the unit again reports the fault
			w.watcher.Close()
			w.watcher = nil
		}
	}
}

// Collect takes one reading of every unit.
func (c *Collector) Collect() {
	if next := c.next.Swap(nil); next != nil {
		c.change(*next)
	}
	for _, u := range c.Units.TakeAdded() {
		c.watched = append(c.watched, &watched{Unit: u, monitors: make([]watchedMonitor, len(c.Monitors.Names))})
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
		c.Counters.AddReadings(c.Monitors.Names[m], &c.counts[m])
		c.counts[m] = counters.Readings{}
	}
}

// lateness contains the delay of a reading and identifies the reading by its unit and
// monitor.
type lateness struct {
	by      time.Duration
	unit    string
	monitor string
}

// read takes the readings of one unit. It returns the reading with the longest delay.
func (c *Collector) read(w *watched, out *units.Readings) (worst lateness) {
	clear(out.Results)
	*out = units.Readings{Unit: w.Unit, Results: out.Results, Values: out.Values, UserShare: -1}
	if w.watcher == nil && !c.open(w, out) {
		out.Gone = w.gone
		return lateness{}
	}
	now := c.Now()
	out.Time = now
	w.watcher.Read(now, out.Results[:c.Monitors.Host])
	c.Requests.Read(w.Name, c.Monitors.Names[c.Monitors.Host:], now, c.Interval, out.Results[c.Monitors.Host:])
	w.times.read(now)
	out.UserShare = w.times.share()
	restarted := false
	for m, r := range out.Results {
		if errors.Is(r.Err, monitor.ErrGone) {
			w.gone = true // the unit is gone, so the reading did not fail
			continue
		}
		restarted = restarted || r.Err == nil && r.Restarted
		late := w.monitors[m].late(now, r, c.Interval)
		if late > worst.by {
			worst = lateness{by: late, unit: w.Name, monitor: c.Monitors.Names[m]}
		}
		if !isGap(r.Err) {
			c.counts[m][c.classify(w, m, r.Err, late > 0)]++
		}
	}
	if c.Ages && !w.gone && !w.IsProcess() && (!w.askedStart || restarted) {
		// If the start time cannot be read, the time at which the unit was first seen is
		// used.
		w.askedStart = true
		out.Started, _ = c.Source.Started(w.Unit)
	}
	out.Gone = w.gone
	return worst
}

// open opens the watcher of a unit. After an error it counts a failed reading for each
// monitor.
func (c *Collector) open(w *watched, out *units.Readings) bool {
	opened, err := c.Source.Watch(w.Unit, c.Monitors.Names[:c.Monitors.Host])
	if err == nil {
		w.watcher = opened
		return true
	}
	w.gone = errors.Is(err, monitor.ErrGone)
	if !w.gone && !w.openLogged {
		w.openLogged = true
		c.Log.Warn("reading failed", zap.String("unit", w.Name), zap.Error(err))
	}
	for m := range out.Results {
		out.Results[m].Err = err
		if !w.gone {
			c.counts[m][counters.ReadingFailed]++
		}
	}
	return false
}

// late returns the delay of a reading, and records the reading's time. A failed reading is
// never late.
func (w *watchedMonitor) late(now time.Time, r monitor.Result, interval time.Duration) time.Duration {
	at := now
	if r.Err == nil {
		at = r.Reading.Time
	}
	since, first := at.Sub(w.last), w.last.IsZero()
	w.last = at
	if first || r.Err != nil || since <= 2*interval {
		return 0
	}
	return since - interval
}

// classify returns the outcome of a reading, and logs a fault once per unit. A monitor is
// often unavailable for many units for the same reason. Such a reason is logged once at
// info level, and then at debug level for each further unit.
func (c *Collector) classify(w *watched, m int, err error, late bool) counters.ReadingOutcome {
	switch {
	case err == nil && late:
		return counters.ReadingLate
	case err == nil:
		return counters.ReadingOK
	}
	_, isUnavailable := errors.AsType[cgroup.Unavailable](err)
	if !w.monitors[m].logged {
		w.monitors[m].logged = true
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

// isGap reports whether a reading was intentionally omitted.
func isGap(err error) bool {
	_, gap := errors.AsType[monitor.Gap](err)
	return gap
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

// follow starts or stops reading the user share of a unit that became warm or cool. It also
// logs the readings of the units that the debug log shows.
func (c *Collector) follow(w *watched, out *units.Readings) {
	w.gone = out.Gone
	if w.gone {
		return
	}
	warm := false
	for m, value := range out.Values {
		warm = warm || value >= c.Monitors.Warm[m]
	}
	switch {
	case !warm:
		w.times = nil
	case w.times == nil:
		w.times = &userTimes{readNow: c.UserTimes(w.Unit)}
		w.times.read(out.Time)
	}
	if w.watcher == nil || !out.Shown {
		return
	}
	if found := w.watcher.Capacity(); found != w.capacity {
		w.capacity = found
		c.Log.Debug("capacity found", zap.String("unit", w.Name), zap.Float64("cores", found.Cores),
			zap.String("by", string(found.By)), zap.String("path", found.Path))
	}
	c.logFrom(w)
	for m, value := range out.Values {
		if !math.IsNaN(value) {
			c.Log.Debug("cpu reading", zap.String("unit", w.Name), zap.String("monitor", c.Monitors.Names[m]), zap.Float64("value", reason.Round(value)))
		}
	}
}

// logFrom logs the source of each monitor of a unit when the source changes.
func (c *Collector) logFrom(w *watched) {
	if w.from == nil {
		w.from = make([]string, len(c.Monitors.Names))
	}
	for m := range c.Monitors.Names {
		from := "spans and metrics"
		if m < c.Monitors.Host {
			from = w.watcher.From(m)
		}
		if from != w.from[m] {
			w.from[m] = from
			c.Log.Debug("monitor found", zap.String("unit", w.Name), zap.String("monitor", c.Monitors.Names[m]), zap.String("from", from), zap.String("mode", c.Mode))
		}
	}
}

// forget removes units that are gone.
func (c *Collector) forget() {
	c.watched = slices.DeleteFunc(c.watched, func(w *watched) bool {
		if !w.gone {
			return false
		}
		if w.watcher != nil {
			w.watcher.Close()
		}
		c.Units.Remove(w.Unit, c.Now())
		return true
	})
}

// logLate logs once per episode that readings are late.
func (c *Collector) logLate(worst lateness) {
	if worst.by > 0 && !c.late {
		c.Log.Warn("readings are late", zap.Duration("by", worst.by), zap.String("unit", worst.unit), zap.String("monitor", worst.monitor),
			zap.Duration("collection_interval", c.Interval), zap.Int("units", len(c.watched)))
	}
	c.late = worst.by > 0
}

// Count returns the number of units, and the number of open units without a CPU limit.
// unlimited is -1 if no policy uses CPU limits.
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
