// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package trigger

import (
	"time"

	"github.com/hotprofile/hotprofile/internal/trigger/window"
)

// ConditionStatus is the status of one condition of a policy for a unit, for reports
// of why a gate did not open.
type ConditionStatus struct {
	Cause
	Policy string
	State  State
	// Enough reports whether there are enough readings to test. Otherwise Value is 0.
	Enough bool
	// Holds reports whether the test and its monitor's guard hold.
	Holds bool
	// Guard is the monitor with a mean that is too low for the condition to hold. It is
	// empty if the mean is high enough or there is no guard.
	Guard string
	// Off reports that the policy does not apply to the unit.
	Off bool
	// DryRun reports that the policy exports no profiles.
	DryRun bool
	// Blocked is the reason that would keep the policy in Watching with a condition that
	// holds: TooYoung, ServiceUnknown, ServiceCooling or OverBudget, with its Budget. It is
	// empty if the policy is not blocked.
	Blocked Reason
	Budget  string
	// NotBefore is the time before which the policy does not fire. It is zero if the policy
	// may fire, or if the time is not known.
	NotBefore time.Time
}

// Ratio returns value / threshold: 1 and above is hot. It is 0 if the value does not
// count: too few readings, below its guard, or of a policy that does not apply.
func (s ConditionStatus) Ratio() float64 {
	if !s.Enough || s.Guard != "" || s.Off {
		return 0
	}
	return window.Ratio(s.Value, s.Threshold)
}

// Conditions appends the status of every condition of every policy.
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
	for n := range m.policy.conditions {
		c, s := &m.policy.conditions[n], common
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
	for i := range u.histories {
		if u.engine.plan.monitors[i].name == monitor {
			at, num, den, ok := u.histories[i].Last()
			return Reading{Time: u.engine.clock.time(at), Num: num, Den: den}, ok
		}
	}
	return Reading{}, false
}

// Nearest returns the condition nearest to its threshold, or over it by most. ok is
// false if no condition has enough readings.
func (u *Decision) Nearest(now time.Time) (nearest ConditionStatus, ok bool) {
	var buf [16]ConditionStatus
	for i := range u.machines {
		for _, s := range u.machines[i].conditions(buf[:0], now) {
			if s.Enough && (!ok || s.Ratio() > nearest.Ratio()) {
				nearest, ok = s, true
			}
		}
	}
	return nearest, ok
}
