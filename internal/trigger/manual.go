// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package trigger

import (
	"fmt"
	"time"
)

// OpenByHand opens the gate of the unit: within the budgets, whatever the
// cooldown and the unit's age. Again while it is open it prolongs that opening,
// which keeps its ID. The next call of Evaluate, Remove or Close reports what
// happened. The error is an *OverBudgetError where a budget allows no more.
func (u *Unit) OpenByHand(duration time.Duration, now time.Time) (*Opening, error) {
	e := u.engine
	switch {
	case duration <= 0:
		return nil, fmt.Errorf("opening the gate of %s: duration %v is not allowed: must be above 0", u.name, duration)
	case e.shut:
		return nil, fmt.Errorf("opening the gate of %s: the trigger is shut down: no gate opens any more", u.name)
	case u.gone:
		return nil, fmt.Errorf("opening the gate of %s: the unit is gone: name one that is running", u.name)
	}
	at := e.at(now)
	manual := len(e.policies) - 1
	g := &u.gates[manual]
	if g.state == Profiling && now.Before(g.opening.Until) {
		if until := now.Add(duration); until.After(g.opening.Until) {
			g.opening.Until = until
		}
		return g.opening, nil
	}
	var budget string
	e.later(func() {
		e.closeDue(u, now) // what is overdue holds no place
		if budget = e.overBudget(u, at); budget == "" {
			e.open(u, manual, now, &Opening{Cause: Cause{Monitor: Manual}, Until: now.Add(duration), Manual: true}, ByHand)
		}
	})
	if budget != "" {
		return nil, &OverBudgetError{budget}
	}
	return g.opening, nil
}

// later has the transitions of a call reported by the next one that returns
// any.
func (e *Engine) later(call func()) {
	e.out, e.late = e.late, e.out
	call()
	e.out, e.late = e.late, e.out
}

// closeDue closes the gates of a unit whose time is over.
func (e *Engine) closeDue(u *Unit, now time.Time) {
	for p := range u.gates {
		if g := &u.gates[p]; g.state == Profiling && !now.Before(g.opening.Until) {
			e.close(u, g, g.opening.Until, DurationPassed)
		}
	}
}
