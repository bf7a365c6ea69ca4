// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package trigger

import "time"

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
	name    string
	engine  *Engine
	index   int // in the engine's units; meaningless when gone
	gone    bool
	series  []series   // one per monitor
	windows [][]window // per monitor, one per item
	gates   []gate     // one per policy
	started time.Time
	service string
	heat    float64
	over    bool
	closed  []*Opening // closed gates of the last 30 s
}

// Name is what the unit was called when it was added.
func (u *Unit) Name() string { return u.name }

// Gone says that the unit was removed and only its past is remembered.
func (u *Unit) Gone() bool { return u.gone }

// SetStarted says when the unit's first process started, best as the time now
// less its age, so that a wall clock that jumps changes nothing. Zero: not
// known, then it is when the unit was first observed or evaluated.
func (u *Unit) SetStarted(t time.Time) { u.started = t }

// SetService says which service the unit is of. Empty: of none, then it stands
// for itself.
func (u *Unit) SetService(name string) { u.service = name }

// SetPolicy says whether a policy applies to the unit, by its index in
// Config.Policies; all do until said otherwise. An open gate is not closed by
// it.
func (u *Unit) SetPolicy(policy int, applies bool) { u.gates[policy].off = !applies }

// Hot says that a gate is open, by a policy or by hand, or that one may open
// soon: an item of a policy in Watching has a reading above its threshold in
// its window, and the policy may fire by the time that the window is full. Dry
// runs and baselines do not count.
func (u *Unit) Hot() bool { return false }

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
	for i := range u.engine.monitors {
		if m := &u.engine.monitors[i]; m.name == monitor && len(m.items) > 0 {
			return u.series[i].observe(m, u.windows[i], u.engine.at(r.Time), r.Num, r.Den)
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
			s := &u.series[i]
			clear(u.windows[i])
			*s = series{ring: s.ring}
		}
	}
}

// Standing is how one item of a policy stands for a unit, for reports of why a
// gate did not open.
type Standing struct {
	Cause
	Policy string
	State  State
	// Enough: there are readings enough to test; else Value is 0.
	Enough bool
	// Holds: the test holds.
	Holds bool
	// NotBefore: the policy does not fire before this time; zero if it may.
	NotBefore time.Time
}

// Ratio is value / threshold: 1 and above is hot.
func (s Standing) Ratio() float64 {
	if !s.Enough {
		return 0
	}
	return s.Value / max(s.Threshold, 1e-9)
}

// Standings appends how every item of every policy stands.
func (u *Unit) Standings(dst []Standing, now time.Time) []Standing {
	for p := range u.gates {
		dst = u.standings(dst, p, now)
	}
	return dst
}

func (u *Unit) standings(dst []Standing, policy int, now time.Time) []Standing {
	if u.gone {
		return dst
	}
	e, g := u.engine, &u.gates[policy]
	at := e.at(now)
	for _, ref := range e.policies[policy].items {
		s := Standing{Policy: e.policies[policy].name, State: g.state}
		s.Monitor = e.monitors[ref.monitor].name
		i, w, series := u.item(ref)
		s.Threshold, s.Window = i.threshold, i.name
		s.Holds = w.holds(i, series, at)
		s.Value, s.Enough = w.value(i, series, at, &e.scratch)
		if g.state != Profiling && now.Before(g.notBefore) {
			s.NotBefore = g.notBefore
		}
		dst = append(dst, s)
	}
	return dst
}

// Nearest is the item nearest to its threshold, or over it by most. ok is false
// if no item has readings enough.
func (u *Unit) Nearest(now time.Time) (nearest Standing, ok bool) {
	var buf [16]Standing
	for p := range u.gates {
		for _, s := range u.standings(buf[:0], p, now) {
			if s.Enough && (!ok || s.Ratio() > nearest.Ratio()) {
				nearest, ok = s, true
			}
		}
	}
	return nearest, ok
}

func (u *Unit) item(ref itemRef) (*itemPlan, *window, *series) {
	return &u.engine.monitors[ref.monitor].items[ref.window], &u.windows[ref.monitor][ref.window], &u.series[ref.monitor]
}

// remember keeps a closed gate for late profiles.
func (u *Unit) remember(o *Opening) {
	if len(u.closed) == maxClosed {
		u.closed = append(u.closed[:0], u.closed[1:]...)
		u.engine.stats.ForgottenGates++
	}
	u.closed = append(u.closed, o)
}

// forgetClosed drops the closed gates that are too old for late profiles.
func (u *Unit) forgetClosed(now time.Time) {
	kept := u.closed[:0]
	for _, o := range u.closed {
		if now.Before(o.ClosedAt.Add(closedMemory)) {
			kept = append(kept, o)
		}
	}
	clear(u.closed[len(kept):])
	u.closed = kept
}

// memory is when a gone unit has something to forget, and when everything.
func (u *Unit) memory() (next, last time.Time) {
	for i := range u.gates {
		if t := u.gates[i].notBefore; t.After(last) {
			last = t
		}
	}
	next = last
	for _, o := range u.closed {
		t := o.ClosedAt.Add(closedMemory)
		if t.After(last) {
			last = t
		}
		if t.Before(next) {
			next = t
		}
	}
	return next, last
}
