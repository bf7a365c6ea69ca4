// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package trigger

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/hotprofile/hotprofile/internal/trigger/window"
)

// Engine decides for all units.
type Engine struct {
	monitors   []monitorPlan
	policies   []policy
	preTrigger time.Duration
	minAge     time.Duration
	byService  bool // cooldowns
	maxGone    int
	newID      func() string

	budgets   Budgets
	triggers  hour
	bytes     minutes
	openUnits int        // with an open gate
	baselines []*Opening // open ones, if they may have to give way
	// services are the cooldowns and budgets by service.
	services, dryServices services

	// epoch is the first time seen; times are kept as nanoseconds since then,
	// on the monotonic clock where the caller's times carry it.
	epoch time.Time
	// clock is the latest time at which something was observed or evaluated.
	clock  int64
	byName map[string]*Unit // units and gone ones
	units  []*Unit          // not gone

	// goneUnits is the number of gone units in byName, nextForget a time
	// before which none of them is to be forgotten.
	goneUnits  int
	nextForget time.Time

	openGates  int
	shut       bool // no gate opens any more
	stats      Stats
	out, late  []Transition
	holders    []holder
	candidates candidates // that may open
	kept       candidates // whose gate stays shut, which is to be reported
	due        []dueBaseline
	scratch    []float32
}

// Stats counts what bounds made the engine forget.
type Stats struct {
	// ForgottenUnits are gone units whose cooldown or closed gate was forgotten
	// before its time, ForgottenOpenings closed gates likewise.
	ForgottenUnits, ForgottenOpenings int
	// ForgottenServices are services whose cooldown or hourly budget was
	// forgotten before its time.
	ForgottenServices int
}

// New returns an engine without units. The error names every fault.
func New(c Config) (*Engine, error) {
	if err := c.Validate(); err != nil {
		return nil, fmt.Errorf("trigger configuration: %w", err)
	}
	e := &Engine{
		preTrigger: c.PreTrigger,
		minAge:     c.MinAge,
		byService:  c.CooldownByService,
		budgets:    c.Budgets,
		maxGone:    c.MaxGone,
		newID:      c.NewID,
		byName:     make(map[string]*Unit),
	}
	e.monitors, e.policies = plan(c)
	if e.maxGone == 0 {
		e.maxGone = defaultMaxGone
	}
	for _, book := range []*services{&e.services, &e.dryServices} {
		*book = services{max: e.maxGone, epoch: &e.epoch, byAccount: make(map[account]*service)}
	}
	if e.newID == nil {
		var n int
		e.newID = func() string { n++; return strconv.Itoa(n) }
	}
	return e, nil
}

// Unit returns the unit of a name, added if it was not there. One that was gone
// comes back without readings and with its cooldowns.
func (e *Engine) Unit(name string) *Unit {
	u := e.byName[name]
	switch {
	case u == nil:
		u = &Unit{name: name, engine: e, gates: make([]gate, len(e.policies))}
		e.byName[name] = u
	case u.gone:
		u.gone = false
		u.comeBack()
		e.goneUnits--
	default:
		return u
	}
	u.histories = make([]window.History, len(e.monitors))
	for i := range e.monitors {
		u.histories[i] = e.monitors[i].NewHistory()
	}
	u.index = len(e.units)
	e.units = append(e.units, u)
	return u
}

// Lookup finds a unit, gone ones included: their late profiles still pass.
func (e *Engine) Lookup(name string) (*Unit, bool) {
	u, ok := e.byName[name]
	return u, ok
}

// Units is the number of units, without the gone ones.
func (e *Engine) Units() int { return len(e.units) }

// ActiveOpenings is the number of units and policies in Profiling, but for dry runs.
func (e *Engine) ActiveOpenings() int { return e.openGates }

// Stats returns what has been forgotten so far.
func (e *Engine) Stats() Stats {
	stats := e.stats
	stats.ForgottenServices = e.services.forgotten + e.dryServices.forgotten
	return stats
}

// Evaluate takes every unit and policy through the transitions that are due.
// Gates close before others open; of those that open, the hottest comes first:
// the largest value / threshold, then by the unit's name; and baselines last. The
// slice is used again by the next call of Evaluate, Remove or Close.
func (e *Engine) Evaluate(now time.Time) []Transition {
	at := e.begin(now)
	for _, u := range e.units {
		u.heat, u.over = 0, false
		if u.added.IsZero() {
			u.added = now
		}
		for p := range u.gates {
			e.step(u, p, now, at)
		}
		if len(u.closed) > 0 {
			u.forgetClosed(now)
		}
	}
	if !e.shut {
		e.openHottest(now, at)
		e.openBaselines(now, at)
	}
	// Kept for the next incident, a few bytes per unit and policy at most.
	clear(e.holders)
	clear(e.kept)
	clear(e.due)
	e.holders, e.kept, e.due = e.holders[:0], e.kept[:0], e.due[:0]
	e.forgetGone(now)
	e.services.sweep(now, at)
	e.dryServices.sweep(now, at)
	return e.out
}

// emptied returns an empty slice, to be used again unless it is one of the rare
// that are large.
func emptied[T any](s []T) []T {
	const most = 1024
	if cap(s) > most {
		return nil
	}
	clear(s)
	return s[:0]
}

// Remove closes the gates of a unit that is gone and forgets its readings. What
// it still needs to know of the past, cooldowns and gates just closed, is
// remembered for as long as it matters.
func (e *Engine) Remove(name string, now time.Time) []Transition {
	e.begin(now)
	u := e.byName[name]
	if u == nil || u.gone {
		return e.out
	}
	e.closeGates(u, now, UnitGone)
	last := len(e.units) - 1
	e.units[u.index] = e.units[last]
	e.units[u.index].index = u.index
	e.units[last] = nil
	e.units = e.units[:last]
	u.histories = nil
	u.gone, u.heat, u.over = true, 0, false
	next, until, _ := u.memory()
	if !now.Before(until) { // most units have nothing to be remembered
		delete(e.byName, name)
		return e.out
	}
	if e.goneUnits == 0 || next.Before(e.nextForget) {
		e.nextForget = next
	}
	e.goneUnits++
	e.forgetGone(now)
	if e.goneUnits > e.maxGone {
		e.forgetFirst()
	}
	return e.out
}

// Close closes every gate, and none opens any more.
func (e *Engine) Close(now time.Time) []Transition {
	e.begin(now)
	e.shut = true
	for _, u := range e.units {
		e.closeGates(u, now, Shutdown)
	}
	return e.out
}

func (e *Engine) closeGates(u *Unit, now time.Time, why Reason) {
	for i := range u.gates {
		if g := &u.gates[i]; g.state == Profiling {
			e.closeEarly(u, g, now, why)
		}
	}
}

// begin empties what the last call returned and reports late exports first.
func (e *Engine) begin(now time.Time) (at int64) {
	e.out = append(emptied(e.out), e.late...)
	e.late = emptied(e.late)
	at = e.at(now)
	e.clock = max(e.clock, at)
	return at
}

func (e *Engine) emit(t Transition) { e.out = append(e.out, t) }

// at is a time on the engine's own scale.
func (e *Engine) at(t time.Time) int64 {
	if e.epoch.IsZero() {
		e.epoch = t
	}
	return int64(t.Sub(e.epoch))
}

// forgetGone drops what is not to be remembered of gone units any more.
func (e *Engine) forgetGone(now time.Time) {
	if e.goneUnits == 0 || now.Before(e.nextForget) {
		return
	}
	e.nextForget = time.Time{}
	for name, u := range e.byName {
		if !u.gone {
			continue
		}
		u.forgetClosed(now)
		next, last, _ := u.memory()
		if !now.Before(last) {
			delete(e.byName, name)
			e.goneUnits--
		} else if e.nextForget.IsZero() || next.Before(e.nextForget) {
			e.nextForget = next
		}
	}
}

// forgetFirst drops the gone unit that would be forgotten first, ties by name.
func (e *Engine) forgetFirst() {
	var first *Unit
	var when time.Time
	for _, u := range e.byName {
		if !u.gone {
			continue
		}
		_, _, last := u.memory()
		if first == nil || cmp.Or(last.Compare(when), strings.Compare(u.name, first.name)) < 0 {
			first, when = u, last
		}
	}
	delete(e.byName, first.name)
	e.goneUnits--
	e.stats.ForgottenUnits++
}
