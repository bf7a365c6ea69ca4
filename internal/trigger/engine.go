// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package trigger decides when the gate of a unit opens and closes.
//
// An [Engine] has a [Decision] for each unit. A Decision contains the
// readings of the unit's monitors and one state machine per policy. The
// unit's gate is open while any of these machines is in [Profiling].
// Cooldowns, by unit or by service, and budgets limit the openings.
//
// The package has no clock and no goroutine, and does no I/O. Readings and the time are
// arguments, so every decision can be replayed.
//
// The package is not safe for concurrent use. The caller holds one lock around an Engine,
// its Decisions and its Openings. Every call is short. Evaluate checks each condition once,
// and the cost does not depend on the length of the condition's window.
package trigger

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hotprofile/hotprofile/internal/trigger/budget"
	"github.com/hotprofile/hotprofile/internal/trigger/order"
	"github.com/hotprofile/hotprofile/internal/trigger/window"
)

// Engine decides when the gates of all units open and close.
type Engine struct {
	config Config
	plan   plan
	clock  clock

	roster  roster
	places  places
	queue   queue
	pending []Transition // since the last call that returned transitions
	// services contains the cooldowns and budgets by service. dryServices contains the
	// cooldowns of dry runs.
	services, dryServices services
	// awaited contains restored cooldowns of policies that do not exist yet.
	awaited []awaitedCooldown

	closed            bool // no gate opens any more
	opened            int  // number of openings since the start
	forgottenOpenings int
	scratch           []float32
}

// clock converts times to nanoseconds since the first time that is passed to it. It uses
// the monotonic clock if the caller's times have a monotonic reading.
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

// see converts the time of an observation or evaluation, and updates latest.
func (c *clock) see(t time.Time) int64 {
	at := c.at(t)
	c.latest = max(c.latest, at)
	return at
}

func (c *clock) time(at int64) time.Time { return c.epoch.Add(time.Duration(at)) }

// New returns an engine without units. The error lists all faults of the configuration.
func New(c Config) (*Engine, error) {
	if err := c.Validate(); err != nil {
		return nil, fmt.Errorf("trigger configuration: %w", err)
	}
	if c.NewID == nil {
		var n int
		c.NewID = func() string { n++; return strconv.Itoa(n) }
	}
	e := &Engine{config: c, roster: newRoster(c.MaxGone), places: places{ledger: budget.NewLedger(c.Budgets)}}
	e.services = newServices(e.roster.maxGone, &e.clock)
	e.dryServices = newServices(e.roster.maxGone, &e.clock)
	e.plan = newPlan(c, &e.services, &e.dryServices)
	return e, nil
}

// Decision returns the decision for the named unit. It adds the unit if the unit is new. A
// unit that was gone comes back without readings but with its cooldowns.
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

// Lookup finds a unit. It also finds gone units, because late profiles of gone units still
// pass.
func (e *Engine) Lookup(name string) (*Decision, bool) {
	u, ok := e.roster.byName[name]
	return u, ok
}

// ActiveOpenings returns the number of openings that are not closed yet. Dry runs are not
// counted.
func (e *Engine) ActiveOpenings() int { return e.places.openings }

// Evaluate makes every transition that is due. Openings close before new openings open. The
// opening with the largest value / threshold opens first. Ties are ordered by the unit's
// name. Baselines open last.
func (e *Engine) Evaluate(now time.Time) []Transition {
	at := e.clock.see(now)
	for _, u := range e.roster.live {
		u.evaluate(now, at)
	}
	if !e.closed {
		e.queue.open(now, at)
		e.queue.openBaselines(now, at)
	}
	e.queue.clear()
	e.roster.forgetDue(now)
	e.services.forgetDue(now)
	e.dryServices.forgetDue(now)
	return e.take()
}

// Remove closes the openings of a unit that is gone and forgets its readings. The unit's
// cooldowns and closed openings are kept for as long as they matter.
func (e *Engine) Remove(name string, now time.Time) []Transition {
	e.clock.see(now)
	if u := e.roster.byName[name]; u != nil && !u.gone {
		u.abort(now, UnitGone)
		u.histories, u.heat, u.over = nil, 0, false
		e.roster.retire(u, now)
	}
	return e.take()
}

// Forget forgets a removed unit and its cooldowns.
func (e *Engine) Forget(name string) {
	if u := e.roster.byName[name]; u != nil && u.gone {
		e.roster.forget(u)
	}
}

// Forgotten counts the records that were forgotten early because a limit was reached.
type Forgotten struct {
	Units    int // gone units, with their cooldowns and hourly budgets
	Services int // services, with their cooldowns and hourly budgets
	Openings int // closed openings, which no longer admit late profiles
}

// Forgotten returns the numbers of records that have been forgotten early so far.
func (e *Engine) Forgotten() Forgotten {
	return Forgotten{Units: e.roster.forgotten, Services: e.services.forgotten + e.dryServices.forgotten, Openings: e.forgottenOpenings}
}

// Close closes every opening. Afterwards no gate opens.
func (e *Engine) Close(now time.Time) []Transition {
	e.clock.see(now)
	e.closed = true
	for _, u := range e.roster.live {
		u.abort(now, Shutdown)
	}
	return e.take()
}

// take returns the transitions since its last call.
func (e *Engine) take() []Transition {
	taken := e.pending
	e.pending = nil
	return taken
}

// Affords reports whether max_bytes_per_hour leaves room for the given number of bytes.
func (e *Engine) Affords(bytes int, now time.Time) bool {
	return e.places.ledger.Affords(bytes, e.clock.at(now))
}

// SpendBytes counts the bytes of a profile that was exported and accepted.
// Call it once per profile.
func (e *Engine) SpendBytes(bytes int, now time.Time) {
	e.places.ledger.SpendBytes(bytes, e.clock.at(now))
}

// defaultMaxGone is the default of Config.MaxGone.
const defaultMaxGone = 10_000

// roster contains the live units. It also contains gone units whose cooldown or closed
// opening still matters.
//
// Invariants:
//   - byName contains every unit; live[u.index] is u for each live unit
//   - gone contains exactly the gone units, and at most maxGone units
//   - gone is ordered by the field until of its units; until is the time that memory
//     returns without the dry runs, unless until has passed
type roster struct {
	byName    map[string]*Decision
	live      []*Decision
	gone      order.Heap[*Decision] // in the order in which units are forgotten if there are too many
	maxGone   int
	forgotten int // gone units that were forgotten because there were too many
}

func newRoster(maxGone int) roster {
	return roster{
		byName: make(map[string]*Decision), maxGone: cmp.Or(maxGone, defaultMaxGone),
		gone: order.Heap[*Decision]{
			Compare: func(a, b *Decision) int { return cmp.Or(a.until.Compare(b.until), strings.Compare(a.name, b.name)) },
			Index:   func(u *Decision) *int { return &u.goneIndex },
		},
	}
}

// enlist adds a unit to the live units.
func (r *roster) enlist(u *Decision) {
	r.gone.Remove(u)
	u.gone = false
	r.byName[u.name] = u
	u.index = len(r.live)
	r.live = append(r.live, u)
}

// retire removes a unit from the live units. If the unit's state still matters, which is
// rare, the unit is kept as a gone unit.
func (r *roster) retire(u *Decision, now time.Time) {
	last := len(r.live) - 1
	r.live[u.index] = r.live[last]
	r.live[u.index].index = u.index
	r.live[last] = nil
	r.live = r.live[:last]
	u.gone = true
	if u.expire(now) {
		delete(r.byName, u.name)
		return
	}
	r.remember(u)
	if len(r.gone.Items) > r.maxGone {
		r.forgetFirst(now)
	}
}

// remember adds a unit to the gone units, or updates the time at which the state of a gone
// unit expires.
func (r *roster) remember(u *Decision) {
	u.gone = true
	r.byName[u.name] = u
	_, u.until = u.memory()
	r.gone.Fix(u)
}

// update updates the time at which the state of a unit expires, if the unit is one of the
// gone units.
func (r *roster) update(u *Decision) {
	if u.goneIndex > 0 {
		r.remember(u)
	}
}

// forget removes a gone unit for good.
func (r *roster) forget(u *Decision) {
	delete(r.byName, u.name)
	r.gone.Remove(u)
}

// forgetDue forgets the gone units whose cooldowns and openings no longer matter. For all
// other gone units, it forgets only the closed openings that are too old.
func (r *roster) forgetDue(now time.Time) {
	for _, u := range slices.Clone(r.gone.Items) {
		if u.expire(now) {
			r.forget(u)
		}
	}
}

// forgetFirst forgets the gone unit whose memory expires first. Ties are ordered by name.
func (r *roster) forgetFirst(now time.Time) {
	u := r.gone.Items[0]
	r.forget(u)
	if last, _ := u.memory(); now.Before(last) {
		r.forgotten++
	}
}
