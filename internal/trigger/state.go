// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package trigger

import "time"

// State is where a unit stands with a policy.
type State uint8

// The states of a unit and policy.
const (
	// Watching: no item holds. Left for Profiling when one does, unless a gate
	// that let nothing out closed less than a minute ago.
	Watching State = iota
	// Profiling: the gate is open for the unit. Left when the policy's duration
	// has passed, the unit is gone or the engine closes: for CoolingDown if the
	// next component accepted a profile of this opening, else for Watching, so
	// that a failed export costs no cooldown.
	Profiling
	// CoolingDown: rising edges are reported, not acted on. Left for Watching
	// when the cooldown has passed since the gate closed.
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
	ByHand         Reason = "manual"          // Watching to Profiling by Fire

	// An item holds and the policy stays in Watching; each is reported once for
	// as long as an item holds, and the gate opens when the obstacle is gone.
	OverBudget     Reason = "over budget"     // Transition.Budget names the budget
	ServiceCooling Reason = "service cooling" // another unit of the service is open or cools down
	TooYoung       Reason = "too young"       // the unit's first process started less than MinAge ago
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
	// off: the policy does not apply to the unit.
	off bool
	// held: an item held at the last evaluation.
	held bool
	// opening is the current one in Profiling, never nil there, else the last.
	opening *Opening
	// notBefore: in CoolingDown when it ends, in Watching the earliest time to
	// open again.
	notBefore time.Time
}

// candidate is a gate that may open.
type candidate struct {
	unit   *Unit
	policy int
	cause  Cause
	ratio  float64
}

// step takes a gate through everything that is due, short of opening it.
func (e *Engine) step(u *Unit, policy int, now time.Time, at int64) {
	g := &u.gates[policy]
	if g.state == Profiling && !now.Before(g.opening.Until) {
		e.close(u, g, g.opening.Until, DurationPassed)
	}
	if g.state == CoolingDown && !now.Before(g.notBefore) {
		e.cooled(u, g, policy)
	}
	held := g.held
	g.held = e.holds(u, policy, at)
	if !g.held {
		return
	}
	switch {
	case g.state == CoolingDown && !held:
		e.edge(u, policy, now, at)
	case g.state == Watching && !now.Before(g.notBefore):
		cause, ratio := e.cause(u, policy, at)
		e.candidates = append(e.candidates, candidate{u, policy, cause, ratio})
	}
}

// open: Watching to Profiling.
func (e *Engine) open(c candidate, now time.Time) {
	g, p := &c.unit.gates[c.policy], &e.policies[c.policy]
	g.opening = &Opening{
		Cause: c.cause, ID: e.newID(), Unit: c.unit.name, Policy: p.name,
		FiredAt: now, Until: now.Add(p.duration),
		preTrigger: e.preTrigger, unit: c.unit, policy: c.policy,
	}
	g.state = Profiling
	e.openGates++
	e.emit(Transition{
		Time: now, Unit: c.unit, Policy: p.name, From: Watching, To: Profiling,
		Reason: Fired, Cause: c.cause, Opening: g.opening,
	})
}

// close: Profiling to CoolingDown, or to Watching if nothing was let out.
func (e *Engine) close(u *Unit, g *gate, at time.Time, why Reason) {
	o := g.opening
	o.ClosedAt = at
	if o.Profiles > 0 {
		g.state, g.notBefore = CoolingDown, at.Add(e.policies[o.policy].cooldown)
	} else {
		g.state, g.notBefore = Watching, at.Add(retryAfter)
	}
	e.openGates--
	u.remember(o)
	e.emit(Transition{
		Time: at, Unit: u, Policy: o.Policy, From: Profiling, To: g.state,
		Reason: why, Cause: o.Cause, Opening: o, nothing: o.Profiles == 0,
	})
}

// cooled: CoolingDown to Watching.
func (e *Engine) cooled(u *Unit, g *gate, policy int) {
	g.state = Watching
	e.emit(Transition{
		Time: g.notBefore, Unit: u, Policy: e.policies[policy].name,
		From: CoolingDown, To: Watching, Reason: CooldownPassed,
	})
}

// edge: an item began to hold in CoolingDown.
func (e *Engine) edge(u *Unit, policy int, now time.Time, at int64) {
	cause, _ := e.cause(u, policy, at)
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
	e.late = append(e.late, Transition{
		Time: o.ClosedAt, Unit: u, Policy: o.Policy, From: Watching, To: CoolingDown,
		Reason: LateExport, Cause: o.Cause, Opening: o,
	})
}
