// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package cputriggerprocessor

import (
	"errors"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/hotprofile/hotprofile/internal/cgroup"
	"github.com/hotprofile/hotprofile/internal/monitor"
	"github.com/hotprofile/hotprofile/internal/trigger"
	"github.com/hotprofile/hotprofile/processor/cputriggerprocessor/internal/counters"
)

// chunk is how many units are read before their readings are handed over, so
// that the lock is held for moments only.
const chunk = 256

// watcher reads the monitors of one unit.
type watcher interface {
	Read(now time.Time, out []monitor.Result)
	Capacity() cgroup.Capacity
	// From is the file or event that monitor i is read from; empty while it is
	// unavailable.
	From(i int) string
	Close()
}

// source opens watchers.
type source interface {
	watch(u *unit, monitors []string) (watcher, error)
	// started is when the first process of a cgroup did.
	started(u *unit) (time.Time, error)
	Close()
}

// hostSource is the source of this machine.
type hostSource struct{ *monitor.Source }

func (s hostSource) watch(u *unit, monitors []string) (watcher, error) {
	if u.process.PID != 0 {
		w, err := s.WatchProcess(u.process, monitors)
		if err != nil {
			return nil, err
		}
		return w, nil
	}
	w, err := s.WatchUnit(u.cgroup, monitors)
	if err != nil {
		return nil, err
	}
	return w, nil
}

func (s hostSource) started(u *unit) (time.Time, error) { return s.StartedAt(u.cgroup) }

// watched is a unit as the collector knows it.
type watched struct {
	*unit
	watcher  watcher     // nil until it could be opened
	last     time.Time   // it was read
	lastOf   []time.Time // of each monitor the last reading
	gone     bool
	asked    bool      // when its first process started
	start    time.Time // what was answered, until the decision core is told
	capacity cgroup.Capacity
	from     []string   // per monitor, what the debug log said that it is read from
	times    *userTimes // while it is warm
	// saidOpen and said are the faults that were logged, each once per unit: of
	// opening it, and of each monitor.
	saidOpen bool
	said     []bool
}

// outcome is one monitor's reading of a unit on its way to the decision core.
type outcome struct {
	monitor.Result
	value float64 // since the reading before
	known bool    // whether there is a value
}

// collector takes the readings. It belongs to one goroutine, which does nothing
// else: what follows from them is decided and reported by others.
type collector struct {
	units    *units
	source   source
	monitors []string
	warm     []float64 // per monitor, the value from which on a unit is looked at more closely
	interval time.Duration
	now      func() time.Time
	log      *zap.Logger
	counters *counters.Counters
	debug    *debugUnits
	hot      *hotList
	ages     bool // it matters when units' processes started
	// mode is the host's of control groups, for the debug log.
	mode string
	// openTimes finds where a unit's user and system time are.
	openTimes func(*unit) *userTimes

	watched  []*watched
	results  []monitor.Result // of one unit
	outcomes []outcome        // of one chunk, per unit one per monitor
	counts   []counters.Readings
	behind   bool            // readings were late at the last tick
	why      map[string]bool // of monitors that are unavailable, which reasons were said
}

// maxWhy bounds the reasons that are remembered; what is beyond is in the debug
// log only.
const maxWhy = 128

// collect takes one reading of every unit.
func (c *collector) collect() {
	if c.outcomes == nil {
		c.results = make([]monitor.Result, len(c.monitors))
		c.outcomes = make([]outcome, chunk*len(c.monitors))
		c.counts = make([]counters.Readings, len(c.monitors))
	}
	for _, u := range c.units.takeAdded() {
		c.watched = append(c.watched, &watched{unit: u, said: make([]bool, len(c.monitors)), lastOf: make([]time.Time, len(c.monitors))})
	}
	var worst lateness
	for from := 0; from < len(c.watched); from += chunk {
		some := c.watched[from:min(from+chunk, len(c.watched))]
		for i, w := range some {
			if late := c.read(w, c.of(i)); late.by > worst.by {
				worst = late
			}
		}
		c.observe(some)
		for i, w := range some {
			c.follow(w, c.of(i))
		}
	}
	c.forget()
	c.hot.publish()
	c.sayLate(worst)
	for m := range c.counts {
		c.counters.AddReadings(m, &c.counts[m])
		c.counts[m] = counters.Readings{}
	}
}

// of are the outcomes of a unit by its place in the chunk.
func (c *collector) of(i int) []outcome {
	return c.outcomes[i*len(c.monitors) : (i+1)*len(c.monitors)]
}

// lateness is by how much a reading came too late, and whose.
type lateness struct {
	by      time.Duration
	unit    string
	monitor string
}

// read takes the readings of one unit, and returns which was the latest of those
// that were late.
func (c *collector) read(w *watched, out []outcome) (worst lateness) {
	clear(out)
	if w.watcher == nil {
		opened, err := c.source.watch(w.unit, c.monitors)
		if err != nil {
			w.gone = errors.Is(err, monitor.ErrGone)
			if !w.gone && !w.saidOpen {
				w.saidOpen = true
				c.log.Warn("reading failed", zap.String("unit", w.name), zap.Error(err))
			}
			for m := range out {
				out[m].Err = err
				if !w.gone {
					c.counts[m][counters.ReadingFailed]++
				}
			}
			return lateness{}
		}
		w.watcher = opened
	}
	now := c.now()
	w.last = now
	w.watcher.Read(now, c.results)
	w.times.read(now)
	restarted := false
	for m, r := range c.results {
		out[m].Result = r
		if errors.Is(r.Err, monitor.ErrGone) {
			w.gone = true // there is nothing to read, so nothing failed
			continue
		}
		restarted = restarted || r.Err == nil && r.Restarted
		late := w.late(m, now, r, c.interval)
		if late > worst.by {
			worst = lateness{by: late, unit: w.name, monitor: c.monitors[m]}
		}
		if !isGap(r.Err) {
			c.counts[m][c.classify(w, m, r.Err, late > 0)]++
		}
	}
	if c.ages && !w.gone && w.process.PID == 0 && (!w.asked || restarted) {
		// What cannot be known now is taken from when the unit was first seen.
		w.asked = true
		w.start, _ = c.source.started(w.unit)
	}
	return worst
}

// late is by how much a reading of a monitor is, and notes it. One that failed
// is no reading, and not late either; it is another that comes next.
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

// classify counts a reading once, and says once per unit what is wrong with it.
// Why a monitor is unavailable is often the same for very many units: it is said
// once for all of them, and for each in the debug log.
func (c *collector) classify(w *watched, m int, err error, late bool) counters.ReadingOutcome {
	switch {
	case err == nil && late:
		return counters.ReadingLate
	case err == nil:
		return counters.ReadingOK
	}
	var unavailable cgroup.Unavailable // it escapes, so not where nothing failed
	if errors.As(err, &unavailable) {
		if !w.said[m] {
			w.said[m] = true
			c.sayUnavailable(w.name, c.monitors[m], err)
		}
		return counters.ReadingUnavailable
	}
	if !w.said[m] {
		w.said[m] = true
		c.log.Warn("reading failed", zap.String("unit", w.name), zap.String("monitor", c.monitors[m]), zap.Error(err))
	}
	return counters.ReadingFailed
}

// isGap says whether a reading was left out on purpose, so that nothing failed.
func isGap(err error) bool {
	if err == nil {
		return false
	}
	var gap monitor.Gap
	return errors.As(err, &gap)
}

func (c *collector) sayUnavailable(unit, monitor string, err error) {
	say := c.log.Debug
	if key := monitor + ": " + err.Error(); !c.why[key] && len(c.why) < maxWhy {
		if c.why == nil {
			c.why = map[string]bool{}
		}
		c.why[key] = true
		say = c.log.Info
	}
	say("monitor unavailable", zap.String("unit", unit), zap.String("monitor", monitor), zap.Error(err))
}

// observe hands the readings of a chunk to the decision core.
func (c *collector) observe(some []*watched) {
	c.units.mu.Lock()
	defer c.units.mu.Unlock()
	for i, w := range some {
		w.gone = w.gone || w.forgotten
		if w.gone {
			continue
		}
		out := c.of(i)
		for m := range out {
			o := &out[m]
			if o.Err != nil {
				continue
			}
			if o.Restarted {
				w.gate.Restart(c.monitors[m])
			}
			o.value, o.known = w.gate.Observe(c.monitors[m], trigger.Reading{Time: o.Reading.Time, Num: o.Reading.Num, Den: o.Reading.Den})
			if w.process.PID != 0 {
				w.seen = w.last // it runs, however seldom a profile shows it
			}
		}
		w.userShare = w.times.share()
		if !w.start.IsZero() {
			w.gate.SetStarted(w.start)
			w.start = time.Time{}
		}
	}
}

// follow looks more closely at a unit that is warm or in the debug log.
func (c *collector) follow(w *watched, out []outcome) {
	if w.gone {
		return
	}
	warm := false
	for m, o := range out {
		warm = warm || o.known && o.value >= c.warm[m]
	}
	switch {
	case !warm:
		w.times = nil
	case w.times == nil:
		w.times = c.openTimes(w.unit)
		w.times.read(w.last)
	}
	if !c.debug.has(w.name) {
		return
	}
	if found := w.watcher.Capacity(); found != w.capacity {
		w.capacity = found
		c.log.Debug("capacity found", zap.String("unit", w.name), zap.Float64("cores", found.Cores),
			zap.String("by", string(found.By)), zap.String("path", found.Path))
	}
	c.sayFrom(w)
	for m, o := range out {
		if o.known {
			c.log.Debug("cpu reading", zap.String("unit", w.name), zap.String("monitor", c.monitors[m]), zap.Float64("value", round(o.value)))
		}
	}
}

// sayFrom says what the monitors of a unit are read from, when it changes.
func (c *collector) sayFrom(w *watched) {
	if w.from == nil {
		w.from = make([]string, len(c.monitors))
	}
	for m := range c.monitors {
		if from := w.watcher.From(m); from != w.from[m] {
			w.from[m] = from
			c.log.Debug("monitor found", zap.String("unit", w.name), zap.String("monitor", c.monitors[m]), zap.String("from", from), zap.String("mode", c.mode))
		}
	}
}

// forget lets go of the units that are gone.
func (c *collector) forget() {
	kept := c.watched[:0]
	for _, w := range c.watched {
		if !w.gone {
			kept = append(kept, w)
			continue
		}
		if w.watcher != nil {
			w.watcher.Close()
		}
		c.units.Remove(w.unit, c.now())
	}
	clear(c.watched[len(kept):])
	c.watched = kept
}

// sayLate says once an episode that readings are late.
func (c *collector) sayLate(worst lateness) {
	if worst.by > 0 && !c.behind {
		c.log.Warn("readings are late", zap.Duration("by", worst.by), zap.String("unit", worst.unit), zap.String("monitor", worst.monitor),
			zap.Duration("collection_interval", c.interval), zap.Int("units", len(c.watched)))
	}
	c.behind = worst.by > 0
}

// unlimited is how many units have no CPU limit, of those that were read; below
// 0 if no policy asks for limits.
func (c *collector) unlimited() (n int) {
	if !slices.Contains(c.monitors, monitor.CPUUtilization) {
		return -1
	}
	for _, w := range c.watched {
		if w.watcher != nil && w.watcher.Capacity().By == cgroup.ByOnline {
			n++
		}
	}
	return n
}

func (c *collector) close() {
	for _, w := range c.watched {
		if w.watcher != nil {
			w.watcher.Close()
		}
	}
	c.watched = nil
	c.source.Close()
}
