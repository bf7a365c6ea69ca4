// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package trigger decides when the gate of a unit opens and closes.
//
// An [Engine] holds a [Decision] about each unit: the readings of its monitors, and a state
// machine per policy. The unit's gate is open while any of its machines is in [Profiling].
// Cooldowns, by unit or by service, and budgets bound all units.
//
// The package has no clock, no goroutine and does no I/O: readings and the time are
// arguments, so every decision can be replayed.
//
// The package is not safe for concurrent use: the caller holds one lock around an Engine,
// its Decisions and its Openings. Every call is short. Evaluate looks at each condition
// once, regardless of the length of its window.
package trigger

import (
	"fmt"
	"strconv"
	"time"

	"github.com/hotprofile/hotprofile/internal/trigger/budget"
	"github.com/hotprofile/hotprofile/internal/trigger/window"
)

// Engine decides for all units.
type Engine struct {
	config Config
	plan   plan
	newID  func() string
	clock  clock

	roster    roster
	places    places
	queue     queue
	baselines baselines
	journal   journal
	// services are the cooldowns and budgets by service. dryServices are the cooldowns of
	// dry runs.
	services, dryServices services
	// awaited are restored cooldowns of policies that do not exist now.
	awaited []awaitedCooldown

	closed            bool // no gate opens any more
	opened            int  // openings ever
	forgottenOpenings int
	scratch           []float32
}

// clock keeps times as nanoseconds since the first time seen, on the monotonic clock
// if the caller's times carry it.
type clock struct {
	epoch  time.Time
	latest int64 // the latest time at which something was observed or evaluated
}

func (c *clock) at(t time.Time) int64 {
	if c.epoch.IsZero() {
		c.epoch = t
	}
	return int64(t.Sub(c.epoch))
}

// see is at for a time at which a unit was observed or evaluated.
func (c *clock) see(t time.Time) int64 {
	at := c.at(t)
	c.latest = max(c.latest, at)
	return at
}

func (c *clock) time(at int64) time.Time { return c.epoch.Add(time.Duration(at)) }

// New returns an engine without units. The error names every fault.
func New(c Config) (*Engine, error) {
	if err := c.Validate(); err != nil {
		return nil, fmt.Errorf("trigger configuration: %w", err)
	}
	e := &Engine{config: c, newID: c.NewID, roster: newRoster(c.MaxGone), places: places{ledger: budget.NewLedger(c.Budgets)}}
	e.services = newServices(e.roster.maxGone, &e.clock)
	e.dryServices = newServices(e.roster.maxGone, &e.clock)
	e.plan = newPlan(c, &e.services, &e.dryServices)
	if e.newID == nil {
		var n int
		e.newID = func() string { n++; return strconv.Itoa(n) }
	}
	return e, nil
}

// Decision returns the decision about the unit with a name, and adds a new unit. A unit
// that was gone comes back without readings and with its cooldowns.
func (e *Engine) Decision(name string) *Decision {
	u := e.roster.byName[name]
	switch {
	case u == nil:
		u = newDecision(e, name)
	case u.gone:
		u.comeBack()
	default:
		return u
	}
	u.histories = make([]window.History, len(e.plan.monitors))
	for i := range e.plan.monitors {
		u.histories[i] = e.plan.monitors[i].NewHistory()
	}
	e.roster.enlist(u)
	return u
}

// Lookup finds a unit. It also finds gone units, because their late profiles still pass.
func (e *Engine) Lookup(name string) (*Decision, bool) {
	u, ok := e.roster.byName[name]
	return u, ok
}

// ActiveOpenings returns the number of openings that are open, without dry runs.
func (e *Engine) ActiveOpenings() int { return e.places.openings }

// Evaluate makes every transition that is due. Openings close before others open. The
// hottest openings come first: the largest value / threshold, then by the name of the unit.
// Baselines come last. The next call of Evaluate, Remove, SetPolicies or Close reuses the
// slice.
func (e *Engine) Evaluate(now time.Time) []Transition {
	e.journal.begin()
	at := e.clock.see(now)
	for _, u := range e.roster.live {
		u.evaluate(now, at)
	}
	if !e.closed {
		e.queue.open(now, at)
		e.baselines.open(now, at)
	}
	e.queue.clear()
	e.baselines.clear()
	e.roster.forgetDue(now)
	e.services.sweep(now, at)
	e.dryServices.sweep(now, at)
	return e.journal.out
}

// Remove closes the openings of a unit that is gone and forgets its readings. Its
// cooldowns and the openings just closed are remembered for as long as they matter.
func (e *Engine) Remove(name string, now time.Time) []Transition {
	e.journal.begin()
	e.clock.see(now)
	if u := e.roster.byName[name]; u != nil && !u.gone {
		u.abort(now, UnitGone)
		u.histories, u.heat, u.over = nil, 0, false
		e.roster.retire(u, now)
	}
	return e.journal.out
}

// Forget forgets a unit that was removed, with its cooldowns.
func (e *Engine) Forget(name string) {
	if u := e.roster.byName[name]; u != nil && u.gone {
		e.roster.forget(u)
	}
}

// Forgotten counts the records that were forgotten at a bound before their time.
type Forgotten struct {
	Units    int // that are gone, with their cooldowns and hourly budgets
	Services int // likewise
	Openings int // that were closed: profiles that arrive late are not admitted
}

// Forgotten returns the counts of records that were forgotten so far.
func (e *Engine) Forgotten() Forgotten {
	return Forgotten{Units: e.roster.forgotten, Services: e.services.forgotten + e.dryServices.forgotten, Openings: e.forgottenOpenings}
}

// Close closes every opening. No gate opens after it.
func (e *Engine) Close(now time.Time) []Transition {
	e.journal.begin()
	e.clock.see(now)
	e.closed = true
	for _, u := range e.roster.live {
		u.abort(now, Shutdown)
	}
	return e.journal.out
}

// Affords reports whether max_bytes_per_hour allows that many bytes more.
func (e *Engine) Affords(bytes int, now time.Time) bool {
	return e.places.ledger.Affords(bytes, e.clock.at(now))
}

// SpendBytes counts bytes that were exported and accepted, once per profile.
func (e *Engine) SpendBytes(bytes int, now time.Time) {
	e.places.ledger.SpendBytes(bytes, e.clock.at(now))
}
