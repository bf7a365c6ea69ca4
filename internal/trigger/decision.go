// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package trigger

import (
	"slices"
	"time"

	"github.com/hotprofile/hotprofile/internal/trigger/window"
)

// maxClosed limits the closed openings that are kept per unit. The oldest
// opening is forgotten first.
const maxClosed = 16

// Reading is one reading of a monitor of a unit.
//
// The value between two readings is Scale × ΔNum / ΔDen. For utilization, Num is the CPU
// time used and Den is the capacity integrated over time. A change of capacity therefore
// takes effect at the next reading. The value of a gauge is Num, and Den is ignored. Do not
// pass a failed reading to Observe as zero, because a missing value is not zero.
type Reading struct {
	Time     time.Time
	Num, Den float64
}

// Decision is the engine's state of a unit. It decides when the unit's gate opens.
//
// Invariants:
//   - histories contains one element per monitor, and is nil while the unit is gone
//   - machines contains one element per policy, and only replan reallocates it
//   - byHand contains the machines of openings by hand and by alert in Profiling, at most
//     one by hand and maxAlerts by alert
//   - hot and baselines are the numbers of openings in Profiling, without dry runs
//   - a gone unit has no opening in Profiling
//   - closed contains at most maxClosed openings of dry runs and maxClosed other openings
type Decision struct {
	name      string
	engine    *Engine
	index     int // index in roster.live; undefined while the unit is gone
	gone      bool
	histories []window.History
	machines  []machine
	byHand    []*machine
	started   time.Time // start of the first process; zero if unknown
	added     time.Time // when the unit was first observed or evaluated
	service   string    // empty if the unit has no service
	unnamed   bool      // the service is not known yet
	heat      float64   // at the last evaluation
	over      bool      // a budget kept the gate shut at the last evaluation
	hot       int       // openings that are not baselines
	baselines int
	closed    []*Opening // closed within the last 30 s

	// These fields are used only while the unit is gone. until is the unit's key in
	// roster.gone, and goneIndex is its index in this heap, plus 1.
	until     time.Time
	goneIndex int
}

func newDecision(e *Engine, name string) *Decision {
	u := &Decision{name: name, engine: e, machines: make([]machine, len(e.plan.policies))}
	for i := range u.machines {
		u.machines[i].unit, u.machines[i].policy = u, &e.plan.policies[i]
	}
	return u
}

// expire forgets the parts of a gone unit's state that have expired. It reports whether all
// parts have expired. If the unit is remembered only for its dry runs, all other policies
// begin anew, as if the unit were forgotten. Otherwise a dry run would affect them.
func (u *Decision) expire(now time.Time) bool {
	u.forgetClosed(now)
	last, real := u.memory()
	if !now.Before(real) {
		for i := range u.machines {
			if m := &u.machines[i]; !m.policy.DryRun {
				m.state, m.unheard = Watching, 0
			}
		}
	}
	return !now.Before(last)
}

// comeBack resets the state of a gone unit, except its cooldowns and openings.
func (u *Decision) comeBack() {
	u.started, u.added, u.service, u.unnamed = time.Time{}, time.Time{}, "", false
	for i := range u.machines {
		m := &u.machines[i]
		m.off, m.held, m.logged, m.due = false, false, 0, 0
	}
}

func (u *Decision) evaluate(now time.Time, at int64) {
	u.heat, u.over = 0, false
	if u.added.IsZero() {
		u.added = now
	}
	for i := range u.machines {
		u.machines[i].evaluate(now, at)
	}
	u.expireByHand(now)
	u.forgetClosed(now)
}

func (u *Decision) abort(now time.Time, why Reason) {
	for i := range u.machines {
		if m := &u.machines[i]; m.state == Profiling {
			m.abort(now, why)
		}
	}
	for len(u.byHand) > 0 {
		u.byHand[0].abort(now, why)
	}
}

// Name returns the name under which the unit was added.
func (u *Decision) Name() string { return u.name }

// Gone reports whether the unit was removed. Only the cooldowns and the closed openings
// of a gone unit are still known.
func (u *Decision) Gone() bool { return u.gone }

// SetStarted sets the start time of the unit's first process. Pass the current
// time minus the age of the process, so that jumps of the wall clock have no
// effect. If the time is zero, the start is unknown, and the unit's age counts
// from its first observation or evaluation.
func (u *Decision) SetStarted(t time.Time) { u.started = t }

// grownUp returns the time from which policies may open the unit's gate.
func (u *Decision) grownUp() time.Time {
	if u.started.IsZero() {
		return u.added.Add(u.engine.plan.minAge)
	}
	return u.started.Add(u.engine.plan.minAge)
}

// young reports whether the unit is still too young for policies to open its gate. If the
// start time is in the future, young replaces it with the current time.
func (u *Decision) young(now time.Time) bool {
	if u.engine.plan.minAge == 0 {
		return false
	}
	if now.Before(u.started) {
		u.started = now
	}
	return now.Before(u.grownUp())
}

// SetPolicy sets whether a policy applies to the unit. The policy is an index of
// Config.Policies. By default all policies apply. SetPolicy does not close an opening.
func (u *Decision) SetPolicy(policy int, applies bool) { u.machines[policy].off = !applies }

// Observe stores a reading of a monitor and returns the monitor's value since the
// previous reading. ok is false if there is no such value. A counter has no value at its
// first reading, or if it has run backwards. Observe ignores monitors that no condition
// uses, gone units, and readings that are not later than the last reading.
func (u *Decision) Observe(monitor string, r Reading) (value float64, ok bool) {
	if u.gone {
		return 0, false
	}
	if u.added.IsZero() {
		u.added = r.Time
	}
	if h := u.history(monitor); h != nil {
		return h.Observe(u.engine.clock.see(r.Time), r.Num, r.Den)
	}
	return 0, false
}

// history returns the history of a monitor. It returns nil if no condition uses the
// monitor, or if the unit is gone.
func (u *Decision) history(monitor string) *window.History {
	for i := range u.histories {
		if m := &u.engine.plan.monitors[i]; m.name == monitor && m.Tests() > 0 {
			return &u.histories[i]
		}
	}
	return nil
}

// Restart forgets the readings of a monitor, so the next reading is a new starting point.
// Call it when a counter was replaced without running backwards, for example when a new
// cgroup has the name of an old cgroup.
func (u *Decision) Restart(monitor string) {
	if h := u.history(monitor); h != nil {
		h.Restart()
	}
}

// guarded reports whether the condition has no guard or the guard holds.
func (u *Decision) guarded(c *condition, at int64) bool {
	return c.guard == nil || u.histories[c.guard.monitor].Holds(c.guard.test, at)
}

func (u *Decision) holds(c *condition, at int64) bool {
	return u.histories[c.monitor].Holds(c.test, at) && u.guarded(c, at)
}

// released reports whether the condition is below its ReleaseBelow. A condition with
// ReleaseBelow is also released while its guard fails.
func (u *Decision) released(c *condition, at int64) bool {
	return u.histories[c.monitor].Released(c.test, at) ||
		c.ReleaseBelow != nil && c.guard != nil && u.histories[c.guard.monitor].Fails(c.guard.test, at)
}

// value returns the value that the condition compares with its threshold.
func (u *Decision) value(c *condition, at int64) (value float64, ok bool) {
	return u.histories[c.monitor].Value(c.test, at, &u.engine.scratch)
}

// Hot reports whether the gate is open, by a policy or by hand, or may open soon. The
// gate may open soon if the window of a condition contains a reading above the threshold.
// The condition's policy must be in Watching and must be able to fire by the time that
// the window is full. Dry runs and baselines are ignored.
func (u *Decision) Hot() bool {
	if u.hot > 0 || u.gone {
		return u.hot > 0
	}
	for i := range u.machines {
		if u.machines[i].warm(u.engine.clock.latest) {
			return true
		}
	}
	return false
}

// Uses reports whether a policy that applies to the unit has a condition on any of the
// monitors.
func (u *Decision) Uses(monitors []string) bool {
	for i := range u.machines {
		m := &u.machines[i]
		if !m.off && slices.ContainsFunc(m.policy.conditions, func(c *condition) bool { return slices.Contains(monitors, c.monitorName) }) {
			return !u.gone
		}
	}
	return false
}

// Heat returns the largest ratio of value to threshold of all conditions at the last
// Evaluate. It is 0 if no condition of an applicable policy has enough readings. Dry
// runs are ignored.
func (u *Decision) Heat() float64 { return u.heat }

// OverBudget reports whether a condition held at the last Evaluate but a budget kept the
// gate shut.
func (u *Decision) OverBudget() bool { return u.over }

// MayFire reports whether the unit's gate is open, or a policy may open it before the
// given time. If MayFire returns false, profiles of the unit need not be kept until that
// time. Dry runs are ignored. Future openings by hand and baselines cannot be predicted.
func (u *Decision) MayFire(before time.Time) bool {
	if u.gone {
		return false
	}
	for i := range u.machines {
		m := &u.machines[i]
		if m.off || m.policy.DryRun {
			continue
		}
		if m.state == Profiling || m.notBefore.Before(before) {
			return true
		}
	}
	return len(u.byHand) > 0
}

// Admit appends the openings that admit a profile captured in [start, end). If no opening
// is appended, the gate was shut. The opening that fired first comes first and is the
// profile's reason. If several openings fired in one evaluation, the hottest comes first.
// Baselines come last. Dry runs are included, although they do not export profiles.
func (u *Decision) Admit(dst []*Opening, start, end time.Time) []*Opening {
	from := len(dst)
	for _, o := range u.closed {
		if o.admits(start, end) {
			dst = append(dst, o)
		}
	}
	for i := range u.machines {
		if m := &u.machines[i]; m.state == Profiling && m.opening.admits(start, end) {
			dst = append(dst, m.opening)
		}
	}
	for _, m := range u.byHand {
		if m.opening.admits(start, end) {
			dst = append(dst, m.opening)
		}
	}
	if len(dst)-from > 1 {
		slices.SortFunc(dst[from:], (*Opening).before)
	}
	return dst
}

// Openings appends the unit's openings that are not closed yet.
func (u *Decision) Openings(dst []*Opening) []*Opening {
	for i := range u.machines {
		if m := &u.machines[i]; m.state == Profiling {
			dst = append(dst, m.opening)
		}
	}
	for _, m := range u.byHand {
		dst = append(dst, m.opening)
	}
	return dst
}

// remember keeps a closed opening for late profiles. Openings of dry runs have a separate
// limit, so that they never displace an opening of another policy.
func (u *Decision) remember(o *Opening) {
	alike := 0
	for _, c := range u.closed {
		if c.DryRun == o.DryRun {
			alike++
		}
	}
	if alike == maxClosed {
		oldest := slices.IndexFunc(u.closed, func(c *Opening) bool { return c.DryRun == o.DryRun })
		u.closed = slices.Delete(u.closed, oldest, oldest+1)
		u.engine.forgottenOpenings++
	}
	u.closed = append(u.closed, o)
}

// forgetClosed forgets the closed openings that are too old for late profiles.
func (u *Decision) forgetClosed(now time.Time) {
	u.closed = slices.DeleteFunc(u.closed, func(o *Opening) bool { return !now.Before(o.ClosedAt.Add(closedMemory)) })
}

// memory returns the time at which all parts of a gone unit's state have expired, so that
// the unit can be forgotten. real is the same time without the dry runs. If there are too
// many gone units, units that are only kept for dry runs are forgotten first.
func (u *Decision) memory() (last, real time.Time) {
	remember := func(t time.Time, dryRun bool) {
		if t.After(last) {
			last = t
		}
		if !dryRun && t.After(real) {
			real = t
		}
	}
	for i := range u.machines {
		remember(u.machines[i].notBefore, u.machines[i].policy.DryRun)
	}
	for _, o := range u.closed {
		remember(o.ClosedAt.Add(closedMemory), o.DryRun)
	}
	return last, real
}

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
