// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package trigger

import "time"

// State is the state of the machine of one policy for one unit.
type State uint8

// The states. Each names the functions of the machine by which it is left.
const (
	// Watching: no condition holds, or an obstacle keeps the gate shut although a condition
	// holds. The unit is too young, its service is unknown or cools down, a budget is used
	// up, or an opening without an accepted profile closed recently. The wait after such an
	// opening is a minute, doubled for each one in a row up to a cooldown.
	//
	// Left for Profiling by fire, when a condition holds and there is no obstacle, by
	// openByHand, and by openBaseline, when a baseline is due and the unit is cool. Left
	// for CoolingDown by coolDownLate, when a profile of the last opening is accepted only
	// after it closed.
	Watching State = iota
	// Profiling: the policy keeps the unit's gate open.
	//
	// Left by expire, when the opening is past its end, by release, when every condition
	// that held is released, and by closeByHand. Left by abort, when the unit is gone, the
	// policy is removed or the engine closes. The next state is CoolingDown if the next
	// component accepted a profile of the opening or the policy is a dry run. Otherwise it
	// is Watching, so that a failed export costs no cooldown. After an opening by hand it
	// is always Watching. A baseline returns to the state before it, and is also left by
	// giveWay, when a condition holds or its place is needed.
	Profiling
	// CoolingDown: rising edges are reported by reportRisingEdge and do not open
	// the gate.
	//
	// Left for Watching by endCooldown, when the cooldown has passed since the
	// opening closed, and for Profiling by openBaseline, during which the cooldown
	// continues.
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

// Reason identifies why a transition happened.
type Reason string

// The reasons of transitions.
const (
	Fired          Reason = "fired"           // Watching to Profiling: a condition holds
	DurationPassed Reason = "duration"        // Profiling ended as planned
	UnitGone       Reason = "unit gone"       // Profiling ended, the unit was removed
	Shutdown       Reason = "shutdown"        // Profiling ended, the engine closed
	PolicyRemoved  Reason = "policy removed"  // Profiling ended, SetPolicies removed the policy
	PolicyChanged  Reason = "policy changed"  // Profiling ended, the policy became a dry run or is none any more
	LateExport     Reason = "late export"     // Watching to CoolingDown: a profile was accepted after closing
	CooldownPassed Reason = "cooldown passed" // CoolingDown to Watching
	RisingEdge     Reason = "rising edge"     // a condition began to hold in CoolingDown, which stays
	Released       Reason = "released"        // Profiling ended, every condition that held is released
	BaselineDue    Reason = "baseline"        // to Profiling while cool
	GaveWay        Reason = "gave way"        // a baseline ended: its unit is hot or its place is needed
	ByHand         Reason = "manual"          // Watching to Profiling by OpenGate
	ClosedByHand   Reason = "closed by hand"  // Profiling ended by CloseGate
	ByAlert        Reason = "alert"           // Watching to Profiling by OpenGate
	AlertResolved  Reason = "alert resolved"  // Profiling ended by CloseGate

	// A condition holds and the policy stays in Watching. Each reason is reported once
	// while a condition holds. The gate opens when the obstacle is gone.
	OverBudget     Reason = "over budget"     // Transition.Budget names the budget
	ServiceCooling Reason = "service cooling" // another unit of the service is open or cools down
	TooYoung       Reason = "too young"       // the unit's first process started less than MinAge ago
	ServiceUnknown Reason = "service unknown" // the unit's service is not known yet
)

// Transition is one step of the machine of a policy and unit.
type Transition struct {
	// Time is the time at which the transition took effect. For an opening that was due to
	// close it is the due time, which may be before the evaluation that noticed it.
	Time     time.Time
	Unit     *Decision
	Policy   string
	From, To State
	Reason   Reason
	// Cause is the condition behind Fired and RisingEdge, and of the opening that
	// closes.
	Cause Cause
	// Opening is the opening that began or ended. It is nil for other transitions.
	Opening *Opening
	// Budget keeps the gate shut, for OverBudget.
	Budget string
	// Repeated reports that an obstacle was reported before since a condition began to
	// hold.
	Repeated bool

	// NothingExported reports that an opening, which was no dry run, ended without an
	// accepted profile.
	NothingExported bool
}

// journal collects the transitions that the next call returns.
type journal struct {
	out  []Transition
	late []Transition // of calls that return none, for the next one that does
}

// begin discards the transitions that the last call returned and starts with the late ones.
func (j *journal) begin() {
	j.out = append(emptied(j.out), j.late...)
	j.late = emptied(j.late)
}

func (j *journal) add(t Transition)     { j.out = append(j.out, t) }
func (j *journal) addLate(t Transition) { j.late = append(j.late, t) }

// deferring runs a call and leaves its transitions to the next call that returns them.
func (j *journal) deferring(call func()) {
	j.out, j.late = j.late, j.out
	call()
	j.out, j.late = j.late, j.out
}

// emptied returns an empty slice on the same memory, or nil if the memory is large, which
// is rare.
func emptied[T any](s []T) []T {
	const most = 1024
	if cap(s) > most {
		return nil
	}
	clear(s)
	return s[:0]
}
