// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package trigger

import "time"

// State is the state of the machine of one policy for one unit.
type State uint8

// These are the states of a machine. Each comment lists the
// functions of the machine that leave the state.
const (
	// Watching: no condition holds, or an obstacle keeps the gate shut. Obstacles are the
	// unit's age, an unknown service, a cooldown of the service and a used-up budget. After
	// an opening without an accepted profile, the policy also waits for a minute. The wait
	// doubles with each such opening in a row, up to the cooldown.
	//
	// fire and openByHand enter Profiling. fire needs a condition that holds and no
	// obstacle. openBaseline enters Profiling when a baseline is due and the unit is cool.
	// coolDownLate enters CoolingDown when a profile of the last opening is accepted only
	// after the opening closed.
	Watching State = iota
	// Profiling: the policy keeps the unit's gate open.
	//
	// expire closes an opening that is past its end. release closes an opening when every
	// condition that held is released. closeByHand closes openings by hand and by alert.
	// abort closes an opening when the unit is gone, the policy is removed or the engine
	// closes. The next state is CoolingDown if the next component accepted a profile of
	// the opening, or if the policy is a dry run. Otherwise the next state is Watching,
	// so that a failed export does not cause a cooldown. After an opening by hand, the
	// next state is always Watching. A baseline returns to the previous state. giveWay
	// also closes a baseline, when a condition holds or another unit needs its place.
	Profiling
	// CoolingDown: reportShut reports rising edges, but they do not open the gate.
	//
	// endCooldown enters Watching when the cooldown since the last opening is over. expire
	// enters Watching without a transition if a gone unit is remembered only for dry runs.
	// openBaseline enters Profiling, and the cooldown continues during the baseline.
	CoolingDown
)

func (s State) String() string {
	return [...]string{"watching", "profiling", "cooling_down"}[s]
}

// Reason identifies why a transition happened.
type Reason string

// These are the reasons of transitions.
const (
	Fired          Reason = "fired"           // Watching to Profiling: a condition holds
	DurationPassed Reason = "duration"        // Profiling ended as planned
	UnitGone       Reason = "unit gone"       // Profiling ended, the unit was removed
	Shutdown       Reason = "shutdown"        // Profiling ended, the engine closed
	PolicyRemoved  Reason = "policy removed"  // Profiling ended, SetPolicies removed the policy
	PolicyChanged  Reason = "policy changed"  // Profiling ended, SetPolicies changed the policy's DryRun
	LateExport     Reason = "late export"     // Watching to CoolingDown: a profile was accepted after closing
	CooldownPassed Reason = "cooldown passed" // CoolingDown to Watching
	RisingEdge     Reason = "rising edge"     // a condition began to hold in CoolingDown; no change of state
	Released       Reason = "released"        // Profiling ended, every condition that held was released
	BaselineDue    Reason = "baseline"        // to Profiling, while the unit is cool
	GaveWay        Reason = "gave way"        // a baseline ended: the unit is hot, or another unit needs the place
	ByHand         Reason = "manual"          // Watching to Profiling by OpenGate
	ClosedByHand   Reason = "closed by hand"  // Profiling ended by CloseGate
	ByAlert        Reason = "alert"           // Watching to Profiling by OpenGate
	AlertResolved  Reason = "alert resolved"  // Profiling ended by CloseGate

	// A condition holds, but the policy stays in Watching. Each reason is reported once
	// while a condition holds. The gate opens when the obstacle is gone.
	OverBudget     Reason = "over budget"     // Transition.Budget names the budget
	ServiceCooling Reason = "service cooling" // another unit of the service is open or cooling down
	TooYoung       Reason = "too young"       // the unit's first process started less than MinAge ago
	ServiceUnknown Reason = "service unknown" // the unit's service is not known yet
)

// Transition is one transition of a policy's machine for a unit.
type Transition struct {
	// Time is the time at which the transition took effect. An opening that reaches its
	// planned end closes at that time, even if a later evaluation notices it.
	Time     time.Time
	Unit     *Decision
	Policy   string
	From, To State
	Reason   Reason
	// Cause is the condition that caused the transition. For the end of an opening, it is
	// the opening's Cause. For CooldownPassed it is zero.
	Cause Cause
	// Opening is the opening that began or ended. It is nil for other transitions.
	Opening *Opening
	// Budget is the budget that keeps the gate shut. It is set only for OverBudget.
	Budget string
	// Repeated reports whether another obstacle was already reported since a condition began
	// to hold.
	Repeated bool

	// NothingExported reports whether an opening ended without an accepted profile. It is
	// false for dry runs.
	NothingExported bool
}
