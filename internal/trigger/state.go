// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package trigger

import (
	"slices"
	"time"
)

// State is where a unit stands with a policy.
type State uint8

// The states of a unit and policy.
const (
	// Watching: no item holds. Left for Profiling when one does, unless a gate
	// that let nothing out closed less than a minute ago, the unit is too young,
	// its service cools down or a budget is used up; and when a baseline is due.
	Watching State = iota
	// Profiling: the gate is open for the unit. Left when the policy's duration
	// has passed, every item that held is released, the unit is gone or the
	// engine closes: for CoolingDown if the next component accepted a profile of
	// this opening, else for Watching, so that a failed export costs no
	// cooldown. A baseline goes back to where it came from, and does so early
	// when an item holds or its place is needed.
	Profiling
	// CoolingDown: rising edges are reported, not acted on. Left for Watching
	// when the cooldown has passed since the gate closed; and for Profiling when
	// a baseline is due, under which the cooldown goes on.
	CoolingDown
)

func (s State) String() string {
	switch s {
	case Watching:
		return "watching"
	case Profiling:
		return "profiling"
	case CoolingDown:
		return "cooling_down"
	}
	return "invalid"
}

// Reason is why a transition happened.
type Reason string

// The reasons of transitions.
const (
	Fired          Reason = "fired"           // Watching to Profiling: an item holds
	DurationPassed Reason = "duration"        // Profiling is over as planned
	UnitGone       Reason = "unit gone"       // Profiling is over, the unit was removed
	Shutdown       Reason = "shutdown"        // Profiling is over, the engine closed
	LateExport     Reason = "late export"     // Watching to CoolingDown: let out after closing after all
	CooldownPassed Reason = "cooldown passed" // CoolingDown to Watching
	RisingEdge     Reason = "rising edge"     // an item began to hold in CoolingDown, which stays
	Released       Reason = "released"        // Profiling is over, every item that held is released
	BaselineDue    Reason = "baseline"        // to Profiling while cool
	GaveWay        Reason = "gave way"        // a baseline is over, since its unit is hot or its place is needed
	ByHand         Reason = "manual"          // Watching to Profiling by OpenByHand

	// An item holds and the policy stays in Watching; each is reported once for
	// as long as an item holds, and the gate opens when the obstacle is gone.
	OverBudget     Reason = "over budget"     // Transition.Budget names the budget
	ServiceCooling Reason = "service cooling" // another unit of the service is open or cools down
	TooYoung       Reason = "too young"       // the unit's first process started less than MinAge ago
	ServiceUnknown Reason = "service unknown" // nothing has said yet of which service the unit is
)

// Transition is one step of the state machine of a unit and policy.
type Transition struct {
	// Time is when it took effect: for a gate that was due to close the time
	// it was due, which may be before the evaluation that saw it.
	Time     time.Time
	Unit     *Unit
	Policy   string
	From, To State
	Reason   Reason
	// Cause is the item behind Fired and RisingEdge, and of the opening that
	// closes.
	Cause Cause
	// Opening is the one that began or ended; nil for other transitions.
	Opening *Opening
	// Budget is the one that keeps the gate shut, for OverBudget.
	Budget string

	nothing bool
}

// NothingExported says that a gate closed and no profile had been accepted. A
// dry run never says so.
func (t Transition) NothingExported() bool { return t.nothing }

// gate is the state machine of one unit and policy.
type gate struct {
	state State
	// resume is the state that a baseline goes back to.
	resume State
	// off: the policy does not apply to the unit.
	off bool
	// held: an item held at the last evaluation.
	held bool
	// told are the obstacles that were reported since an item began to hold.
	told obstacles
	// opening is the current one in Profiling, never nil there, else the last.
	opening *Opening
	// notBefore: in CoolingDown when it ends, in Watching the earliest time to
	// open again.
	notBefore time.Time
	// due is when the next baseline is; 0: not worked out yet.
	due int64
}

// cooling says that a cooldown goes on, under a baseline or not.
func (g *gate) cooling() bool {
	return g.state == CoolingDown || g.state == Profiling && g.opening.Baseline && g.resume == CoolingDown
}

// watching says likewise that the policy is in Watching.
func (g *gate) watching() bool {
	return g.state == Watching || g.state == Profiling && g.opening.Baseline && g.resume == Watching
}

// obstacles is a set of what can keep a gate shut while an item holds.
type obstacles uint8

func (o obstacles) of(why Reason) obstacles {
	switch why {
	case OverBudget:
		return 1
	case ServiceCooling:
		return 2
	case TooYoung:
		return 4
	case ServiceUnknown:
		return 8
	}
	return 0
}

// step takes a gate through everything that is due, short of opening it.
func (e *Engine) step(u *Unit, policy int, now time.Time, at int64) {
	g, p := &u.gates[policy], &e.policies[policy]
	if g.state == Profiling && !now.Before(g.opening.Until) {
		e.close(u, g, g.opening.Until, DurationPassed)
	}
	held := g.held
	g.held = false
	var items itemSet
	if !g.off {
		var heat float64
		items, heat = e.measure(u, p, at)
		g.held = items != 0
		if heat > u.heat && !p.dryRun {
			u.heat = heat
		}
	}
	switch {
	case g.state != Profiling:
	case g.opening.Baseline:
		if g.held {
			e.close(u, g, now, GaveWay)
		}
	case g.opening.held != nil && e.released(u, g, at):
		e.close(u, g, now, Released)
	}
	if g.state == CoolingDown && !now.Before(g.notBefore) {
		e.cooled(u, g, policy)
	}
	if p.baseline.Every > 0 && !g.off {
		e.schedule(u, policy, g, now, at)
	}
	if !g.held {
		g.told = 0
		return
	}
	switch {
	case g.state == CoolingDown && !held:
		e.edge(u, policy, now, at)
	case g.state == Watching && !now.Before(g.notBefore):
		e.holders = append(e.holders, holder{u, policy, items})
	}
}

// measure finds the items of a policy that hold, and how hot the hottest is.
func (e *Engine) measure(u *Unit, p *policy, at int64) (hold itemSet, heat float64) {
	for n := range p.conditions {
		c := &p.conditions[n]
		holds, ratio := u.histories[c.monitor].Heat(c.test, at)
		if !holds && ratio <= heat || !u.guarded(c, at) {
			continue
		}
		if holds {
			hold = hold.with(n)
		}
		heat = max(heat, ratio)
	}
	return hold, heat
}

// released says that every item that held since the gate opened is released.
func (e *Engine) released(u *Unit, g *gate, at int64) bool {
	o := g.opening
	all := true
	for n := range e.policies[o.policy].conditions {
		c := &e.policies[o.policy].conditions[n]
		o.held[n] = o.held[n] || u.holds(c, at)
		all = all && (!o.held[n] || u.released(c, at))
	}
	return all
}

// open: to Profiling. What the opening is for is the caller's, the rest is here.
func (e *Engine) open(u *Unit, policy int, now time.Time, o *Opening, why Reason) {
	g, p := &u.gates[policy], &e.policies[policy]
	o.ID, o.Unit, o.Policy, o.FiredAt, o.DryRun = e.newID(), u.name, p.name, now, p.dryRun
	o.unit, o.policy = u, policy
	if !o.Baseline {
		o.preTrigger = e.preTrigger
	}
	if o.real() {
		e.occupy(u, o, now)
	}
	e.holdService(u, o)
	if p.releases && !o.Baseline {
		o.held = make([]bool, len(p.conditions))
		for n := range p.conditions {
			o.held[n] = u.holds(&p.conditions[n], e.at(now))
		}
	}
	from := g.state
	g.opening, g.resume, g.state, g.told = o, from, Profiling, 0
	e.emit(Transition{
		Time: now, Unit: u, Policy: p.name, From: from, To: Profiling,
		Reason: why, Cause: o.Cause, Opening: o,
	})
}

// occupy takes what an opening needs of the budgets.
func (e *Engine) occupy(u *Unit, o *Opening, now time.Time) {
	if o.hot() {
		e.closeBaselines(u, now)
	}
	if !e.place(u) {
		e.giveWay(now)
	}
	if u.hotGates+u.baselines == 0 {
		e.openUnits++
	}
	if o.Baseline {
		u.baselines++
		if e.budgets.MaxConcurrentUnits > 0 { // else none has to give way
			e.baselines = append(e.baselines, o)
		}
	} else {
		u.hotGates++
	}
	e.openGates++
	e.spendTrigger(u, e.at(now))
}

// vacate gives back the place of an opening.
func (e *Engine) vacate(u *Unit, o *Opening) {
	if o.Baseline {
		u.baselines--
		if n := slices.Index(e.baselines, o); n >= 0 {
			e.baselines = slices.Delete(e.baselines, n, n+1)
		}
	} else {
		u.hotGates--
	}
	if u.hotGates+u.baselines == 0 {
		e.openUnits--
	}
	e.openGates--
}

// closeEarly closes a gate now, or when it was due if that is over.
func (e *Engine) closeEarly(u *Unit, g *gate, now time.Time, why Reason) {
	if now.Before(g.opening.Until) {
		e.close(u, g, now, why)
	} else {
		e.close(u, g, g.opening.Until, DurationPassed)
	}
}

// close: Profiling to CoolingDown, or to Watching if nothing was let out. A
// baseline goes back to where it came from, and nothing follows an opening by
// hand.
func (e *Engine) close(u *Unit, g *gate, at time.Time, why Reason) {
	o := g.opening
	o.ClosedAt = at
	switch {
	case o.Baseline:
		g.state = g.resume
	case o.Manual:
		g.state = Watching
	case o.Profiles > 0 || o.DryRun:
		g.state, g.notBefore = CoolingDown, at.Add(e.policies[o.policy].cooldown)
	default:
		g.state, g.notBefore = Watching, at.Add(retryAfter)
	}
	if o.real() {
		e.vacate(u, o)
	}
	e.letServiceGo(o)
	if o.cools() {
		e.coolService(u, o.policy, g.notBefore)
	}
	u.remember(o)
	e.emit(Transition{
		Time: at, Unit: u, Policy: o.Policy, From: Profiling, To: g.state,
		Reason: why, Cause: o.Cause, Opening: o, nothing: o.Profiles == 0 && o.real(),
	})
}

// cooled: CoolingDown to Watching.
func (e *Engine) cooled(u *Unit, g *gate, policy int) {
	when := g.notBefore
	if o := g.opening; o != nil && o.ClosedAt.After(when) {
		when = o.ClosedAt // of a baseline that went on for longer
	}
	g.state = Watching
	e.emit(Transition{
		Time: when, Unit: u, Policy: e.policies[policy].name,
		From: CoolingDown, To: Watching, Reason: CooldownPassed,
	})
}

// edge: an item began to hold in CoolingDown.
func (e *Engine) edge(u *Unit, policy int, now time.Time, at int64) {
	cause, _ := e.cause(holder{u, policy, allItems}, at)
	e.emit(Transition{
		Time: now, Unit: u, Policy: e.policies[policy].name,
		From: CoolingDown, To: CoolingDown, Reason: RisingEdge, Cause: cause,
	})
}

// coolAfterAll: Watching to CoolingDown, for a profile let out only after its
// gate had closed. Else a policy whose duration is shorter than the way of a
// profile would let something out every minute and never cool down.
func (e *Engine) coolAfterAll(u *Unit, g *gate) {
	o := g.opening
	g.state, g.notBefore = CoolingDown, o.ClosedAt.Add(e.policies[o.policy].cooldown)
	e.coolService(u, o.policy, g.notBefore)
	e.late = append(e.late, Transition{
		Time: o.ClosedAt, Unit: u, Policy: o.Policy, From: Watching, To: CoolingDown,
		Reason: LateExport, Cause: o.Cause, Opening: o,
	})
}
