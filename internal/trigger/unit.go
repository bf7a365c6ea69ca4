// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package trigger

import (
	"slices"
	"time"

	"github.com/hotprofile/hotprofile/internal/trigger/window"
)

// Reading is what a monitor read of a unit at a moment.
//
// The value between two readings is Scale × ΔNum / ΔDen: for utilization Num is
// the CPU time used and Den the capacity integrated over time, so that a change
// of capacity counts from the reading that saw it. A gauge has its value in Num
// and no Den. A reading that failed is not observed at all: a gap is no zero.
type Reading struct {
	Time     time.Time
	Num, Den float64
}

// Unit is what a decision is about: its readings and its gates. A gone unit has
// gates only.
type Unit struct {
	name      string
	engine    *Engine
	index     int // in the engine's units; meaningless when gone
	gone      bool
	histories []window.History // one per monitor
	gates     []gate           // one per policy
	started   time.Time        // of its first process; zero: not known
	added     time.Time        // first observed or evaluated
	service   string           // empty: none
	unnamed   bool             // it is to be said which
	heat      float64          // as of the last evaluation
	over      bool             // likewise: a budget keeps a gate shut
	// hotGates and baselines are the gates that are open, but for dry runs.
	hotGates, baselines int
	closed              []*Opening // closed gates of the last 30 s
	forgetAt            time.Time  // no closed gate is to be forgotten before
}

// comeBack forgets what was said and seen of a unit that was gone: only what it
// did counts.
func (u *Unit) comeBack() {
	u.started, u.added, u.service, u.unnamed = time.Time{}, time.Time{}, "", false
	for p := range u.gates {
		g := &u.gates[p]
		g.off, g.held, g.told, g.due = false, false, 0, 0
	}
}

// Name is what the unit was called when it was added.
func (u *Unit) Name() string { return u.name }

// Gone says that the unit was removed and only its past is remembered.
func (u *Unit) Gone() bool { return u.gone }

// SetStarted says when the unit's first process started, best as the time now
// less its age, so that a wall clock that jumps changes nothing. Zero: not
// known, then it is when the unit was first observed or evaluated.
func (u *Unit) SetStarted(t time.Time) { u.started = t }

// grownUp is when the unit begins to fire.
func (u *Unit) grownUp() time.Time {
	if u.started.IsZero() {
		return u.added.Add(u.engine.minAge)
	}
	return u.started.Add(u.engine.minAge)
}

// young says that the unit does not fire yet. One that is said to start in the
// future starts now.
func (u *Unit) young(now time.Time) bool {
	if u.engine.minAge == 0 {
		return false
	}
	if now.Before(u.started) {
		u.started = now
	}
	return now.Before(u.grownUp())
}

// SetPolicy says whether a policy applies to the unit, by its index in
// Config.Policies; all do until said otherwise. An open gate is not closed by
// it.
func (u *Unit) SetPolicy(policy int, applies bool) { u.gates[policy].off = !applies }

// Hot says that a gate is open, by a policy or by hand, or that one may open
// soon: an item of a policy in Watching has a reading above its threshold in
// its window, and the policy may fire by the time that the window is full. Dry
// runs and baselines do not count.
func (u *Unit) Hot() bool {
	if u.hotGates > 0 || u.gone {
		return u.hotGates > 0
	}
	e := u.engine
	at := e.clock
	for p := range e.policies {
		g, plan := &u.gates[p], &e.policies[p]
		if g.off || plan.dryRun || !g.watching() {
			continue
		}
		for i := range plan.conditions {
			c := &plan.conditions[i]
			if u.histories[c.monitor].Warm(c.test, at) && u.guarded(c, at) && u.firesWithin(int64(c.span), p, at) {
				return true
			}
		}
	}
	return false
}

// firesWithin says that a policy in Watching may fire that soon, as far as time
// alone is in the way.
func (u *Unit) firesWithin(span int64, policy int, at int64) bool {
	e := u.engine
	then := e.epoch.Add(time.Duration(at + span))
	if then.Before(u.gates[policy].notBefore) || e.minAge > 0 && then.Before(u.grownUp()) {
		return false
	}
	if !e.byService {
		return true
	}
	_, cooling := e.book(policy).cooling(u.account(), policy, then)
	return !cooling
}

// Heat is value / threshold of the item nearest to its threshold, or over it by
// most, as of the last Evaluate; 0 if no item of a policy that applies has
// readings enough. Dry runs do not count.
func (u *Unit) Heat() float64 { return u.heat }

// OverBudget says that, as of the last Evaluate, an item of a policy holds and
// a budget keeps its gate shut.
func (u *Unit) OverBudget() bool { return u.over }

// Observe stores a reading of a monitor and returns the value since the one
// before. ok is false if there is none: the first reading and one after a
// counter ran backwards only set the baseline; a monitor that no item uses, a
// gone unit and a reading not later than the last are ignored.
func (u *Unit) Observe(monitor string, r Reading) (value float64, ok bool) {
	if u.gone {
		return 0, false
	}
	if u.added.IsZero() {
		u.added = r.Time
	}
	for i := range u.engine.monitors {
		if m := &u.engine.monitors[i]; m.name == monitor && m.Tests() > 0 {
			at := u.engine.at(r.Time)
			u.engine.clock = max(u.engine.clock, at)
			return u.histories[i].Observe(at, r.Num, r.Den)
		}
	}
	return 0, false
}

// Restart forgets the readings of a monitor: the next one sets a new baseline.
// It is for a counter that was replaced and may not have run backwards, as when
// a cgroup of the same name is another one.
func (u *Unit) Restart(monitor string) {
	if u.gone {
		return
	}
	for i := range u.engine.monitors {
		if u.engine.monitors[i].name == monitor {
			u.histories[i].Restart()
		}
	}
}

// ConditionStatus is how one item of a policy stands for a unit, for reports of why a
// gate did not open.
type ConditionStatus struct {
	Cause
	Policy string
	State  State
	// Enough: there are readings enough to test; else Value is 0.
	Enough bool
	// Holds: the test holds, and that of its monitor's guard.
	Holds bool
	// Guard is the monitor whose mean is too low for the item to hold; empty if
	// it is not.
	Guard string
	// Off: the policy does not apply to the unit.
	Off bool
	// DryRun: the policy lets nothing out.
	DryRun bool
	// Blocked is what would keep the policy in Watching with an item that
	// holds: TooYoung, ServiceUnknown, ServiceCooling or OverBudget, with its
	// Budget. Empty:
	// nothing.
	Blocked Reason
	Budget  string
	// NotBefore: the policy does not fire before this time; zero if it may, or
	// if when is not known.
	NotBefore time.Time
}

// Ratio is value / threshold: 1 and above is hot. It is 0 where the value does
// not count: of too few readings, under a guard, of a policy that does not apply.
func (s ConditionStatus) Ratio() float64 {
	if !s.Enough || s.Guard != "" || s.Off {
		return 0
	}
	return window.Ratio(s.Value, s.Threshold)
}

// Conditions appends how every item of every policy stands.
func (u *Unit) Conditions(dst []ConditionStatus, now time.Time) []ConditionStatus {
	for p := range u.gates {
		dst = u.standings(dst, p, now)
	}
	return dst
}

func (u *Unit) standings(dst []ConditionStatus, policy int, now time.Time) []ConditionStatus {
	if u.gone {
		return dst
	}
	e, g := u.engine, &u.gates[policy]
	at := e.at(now)
	common := ConditionStatus{Policy: e.policies[policy].name, State: g.state, Off: g.off, DryRun: e.policies[policy].dryRun}
	if g.state == Watching {
		common.Blocked, common.NotBefore, common.Budget = e.obstacle(u, policy, now, at)
	}
	if g.state != Profiling && now.Before(g.notBefore) && g.notBefore.After(common.NotBefore) {
		common.NotBefore = g.notBefore
	}
	for i := range e.policies[policy].conditions {
		c, s := &e.policies[policy].conditions[i], common
		s.Holds = u.holds(c, at)
		var value float64
		value, s.Enough = u.histories[c.monitor].Value(c.test, at, &e.scratch)
		s.Cause = c.cause(value)
		if !u.guarded(c, at) {
			s.Guard = c.guardName
		}
		dst = append(dst, s)
	}
	return dst
}

// Nearest is the item nearest to its threshold, or over it by most. ok is false
// if no item has readings enough.
func (u *Unit) Nearest(now time.Time) (nearest ConditionStatus, ok bool) {
	var buf [16]ConditionStatus
	for p := range u.gates {
		for _, s := range u.standings(buf[:0], p, now) {
			if s.Enough && (!ok || s.Ratio() > nearest.Ratio()) {
				nearest, ok = s, true
			}
		}
	}
	return nearest, ok
}

// guarded reports whether the condition's guard, if it has one, holds.
func (u *Unit) guarded(c *condition, at int64) bool {
	return c.guard == nil || u.histories[c.guard.monitor].Holds(c.guard.test, at)
}

func (u *Unit) holds(c *condition, at int64) bool {
	return u.histories[c.monitor].Holds(c.test, at) && u.guarded(c, at)
}

// released reports whether the condition is below its ReleaseBelow, or has one and
// does not count for the unit any more.
func (u *Unit) released(c *condition, at int64) bool {
	return u.histories[c.monitor].Released(c.test, at) ||
		c.releases && c.guard != nil && u.histories[c.guard.monitor].Fails(c.guard.test, at)
}

// remember keeps a closed gate for late profiles. Dry runs have a bound of their
// own, so that they push none of another policy out.
func (u *Unit) remember(o *Opening) {
	alike, oldest := 0, -1
	for n, c := range u.closed {
		if c.DryRun == o.DryRun {
			if alike++; oldest < 0 {
				oldest = n
			}
		}
	}
	if alike == maxClosed {
		u.closed = slices.Delete(u.closed, oldest, oldest+1)
		u.engine.stats.ForgottenOpenings++
	}
	u.closed = append(u.closed, o)
	if t := o.ClosedAt.Add(closedMemory); len(u.closed) == 1 || t.Before(u.forgetAt) {
		u.forgetAt = t
	}
}

// forgetClosed drops the closed gates that are too old for late profiles.
func (u *Unit) forgetClosed(now time.Time) {
	if now.Before(u.forgetAt) {
		return
	}
	kept := u.closed[:0]
	for _, o := range u.closed {
		t := o.ClosedAt.Add(closedMemory)
		if !now.Before(t) {
			continue
		}
		if kept = append(kept, o); len(kept) == 1 || t.Before(u.forgetAt) {
			u.forgetAt = t
		}
	}
	clear(u.closed[len(kept):])
	u.closed = kept
}

// memory is when a gone unit has something to forget, and when everything. What
// only dry runs remember is kept as long, but goes first at the bound: real is
// when all else is forgotten.
func (u *Unit) memory() (next, last, real time.Time) {
	remember := func(t time.Time, dryRun bool) {
		if t.After(last) {
			last = t
		}
		if !dryRun && t.After(real) {
			real = t
		}
	}
	for i := range u.gates {
		remember(u.gates[i].notBefore, u.engine.policies[i].dryRun)
	}
	next = last
	for _, o := range u.closed {
		t := o.ClosedAt.Add(closedMemory)
		remember(t, o.DryRun)
		if t.Before(next) {
			next = t
		}
	}
	return next, last, real
}
