// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package trigger

import (
	"time"

	"github.com/hotprofile/hotprofile/internal/trigger/window"
)

// ConditionStatus is the status of one condition of a policy for a unit. Reports use it to
// explain why a gate did not open.
type ConditionStatus struct {
	Cause
	Policy string
	State  State
	// Enough reports whether there are enough readings for the test. Otherwise Value is 0.
	Enough bool
	// Holds reports whether both the test and the monitor's guard hold.
	Holds bool
	// Guard is the guard monitor that keeps the condition from holding. It is empty if the
	// guard holds or the monitor has no guard.
	Guard string
	// Off reports whether the policy does not apply to the unit.
	Off bool
	// DryRun reports whether the policy is a dry run, which exports no profiles.
	DryRun bool
	// Blocked is the obstacle that keeps the policy in Watching even if a condition holds:
	// TooYoung, ServiceUnknown, ServiceCooling or OverBudget. If Blocked is OverBudget, Budget
	// is the name of the budget. Blocked and Budget are empty if there is no obstacle.
	Blocked Reason
	Budget  string
	// NotBefore is the earliest time at which the policy may fire. It is zero if the
	// policy may fire now or the time is unknown.
	NotBefore time.Time
}

// Ratio returns value / threshold. A condition with a ratio above 1 is hot. The ratio is
// 0 if there are too few readings, the guard does not hold or the policy does not apply.
func (s ConditionStatus) Ratio() float64 {
	if !s.Enough || s.Guard != "" || s.Off {
		return 0
	}
	return window.Ratio(s.Value, s.Threshold)
}

// Conditions appends the status of every condition of every policy to dst.
func (u *Decision) Conditions(dst []ConditionStatus, now time.Time) []ConditionStatus {
	for i := range u.machines {
		dst = u.machines[i].conditions(dst, now)
	}
	return dst
}

func (m *machine) conditions(dst []ConditionStatus, now time.Time) []ConditionStatus {
	if m.unit.gone {
		return dst
	}
	at := m.unit.engine.clock.at(now)
	common := ConditionStatus{Policy: m.policy.Name, State: m.state, Off: m.off, DryRun: m.policy.DryRun}
	if m.state == Watching {
		common.Blocked, common.NotBefore, common.Budget = m.obstacle(now, at)
	}
	if m.state != Profiling && now.Before(m.notBefore) && m.notBefore.After(common.NotBefore) {
		common.NotBefore = m.notBefore
	}
	for _, c := range m.policy.conditions {
		s := common
		s.Holds = m.unit.holds(c, at)
		var value float64
		value, s.Enough = m.unit.value(c, at)
		s.Cause = c.cause(value)
		if !m.unit.guarded(c, at) {
			s.Guard = c.guardName
		}
		dst = append(dst, s)
	}
	return dst
}

// Last returns the newest reading of a monitor that a condition uses. ok is false if there
// is no reading.
func (u *Decision) Last(monitor string) (r Reading, ok bool) {
	h := u.history(monitor)
	if h == nil {
		return Reading{}, false
	}
	at, num, den, ok := h.Last()
	return Reading{Time: u.engine.clock.time(at), Num: num, Den: den}, ok
}
