// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package trigger

import (
	"cmp"
	"slices"
	"strings"
	"sync/atomic"
	"time"
)

const (
	// retryAfter is the time for which a policy waits after an
	// opening without an accepted profile. The time doubles with
	// each consecutive opening of this kind, up to the cooldown.
	retryAfter = time.Minute

	// closedMemory is the time for which a closed opening admits late profiles. It is
	// shorter than retryAfter, so that a policy does not open again while a late profile of
	// its last opening may still be accepted.
	closedMemory = 30 * time.Second
)

// machine is the state machine of one policy for one unit, or of one opening by hand or by
// alert. [State] lists the transitions.
//
// Invariants:
//   - in Profiling, opening is open: not nil, with a zero ClosedAt
//   - in all other states, opening is nil, or it is the last opening, which is closed
//   - resume is the state before the last opening; only an open baseline uses it
//   - a baseline does not change notBefore
//   - logged is empty if held is false
type machine struct {
	unit    *Decision
	policy  *policy
	opening *Opening
	state   State
	resume  State // the state that a baseline returns to
	off     bool  // the policy does not apply to the unit
	held    bool  // a condition held at the last evaluation
	// logged contains the obstacles that were reported since a condition began to hold.
	logged obstacles
	// notBefore is the end of the cooldown in CoolingDown. In Watching, it is the earliest
	// time at which the policy may fire.
	notBefore time.Time
	due       int64 // time of the next baseline; 0 if not scheduled yet
	unheard   int   // openings in a row without an accepted profile
}

// compare orders machines by unit and policy.
func (m *machine) compare(other *machine) int {
	return cmp.Or(strings.Compare(m.unit.name, other.unit.name), cmp.Compare(m.policy.index, other.policy.index))
}

// cooling reports whether a cooldown is in progress, even while a baseline is open.
func (m *machine) cooling() bool {
	return m.state == CoolingDown || m.state == Profiling && m.opening.Baseline && m.resume == CoolingDown
}

// watching reports whether the policy is in Watching, or will
// return to Watching when an open baseline ends.
func (m *machine) watching() bool {
	return m.state == Watching || m.state == Profiling && m.opening.Baseline && m.resume == Watching
}

// evaluate makes every transition that is due, except transitions to Profiling. The
// hottest unit opens first, so openings must wait until all units are evaluated.
func (m *machine) evaluate(now time.Time, at int64) {
	if m.state == Profiling && !now.Before(m.opening.Until()) {
		m.expire()
	}
	held := m.held
	m.held = m.measure(at)
	switch {
	case m.state != Profiling:
	case m.opening.Baseline:
		if m.held {
			m.giveWay(now)
		}
	case m.opening.held != nil && m.allReleased(at):
		m.release(now)
	}
	if m.state == CoolingDown && !now.Before(m.notBefore) {
		m.endCooldown()
	}
	if m.policy.Baseline.Every > 0 && !m.off {
		m.scheduleBaseline(now, at)
	}
	if !m.held {
		m.logged = 0
		return
	}
	switch {
	case m.state == CoolingDown && !held:
		m.reportShut(RisingEdge, "", now, at)
	case m.state == Watching && !now.Before(m.notBefore):
		q := &m.unit.engine.queue
		q.waiting = append(q.waiting, candidate{machine: m})
	}
}

// measure reports whether a condition holds. It raises the unit's heat to the heat of the
// hottest condition.
func (m *machine) measure(at int64) (held bool) {
	if m.off {
		return false
	}
	u, heat := m.unit, 0.0
	for _, c := range m.policy.conditions {
		holds, ratio := u.histories[c.monitor].Heat(c.test, at)
		if !holds && ratio <= heat || !u.guarded(c, at) {
			continue
		}
		held = held || holds
		heat = max(heat, ratio)
	}
	if heat > u.heat && !m.policy.DryRun {
		u.heat = heat
	}
	return held
}

// hottest returns the condition with the largest value / threshold, and this ratio. The
// ratio is -1 if no condition has enough readings. If holding is true, only conditions that
// hold are considered.
func (m *machine) hottest(holding bool, at int64) (cause Cause, ratio float64) {
	ratio = -1
	for _, c := range m.policy.conditions {
		if holding && !m.unit.holds(c, at) {
			continue
		}
		if value, ok := m.unit.value(c, at); ok && c.ratio(value) > ratio {
			cause, ratio = c.cause(value), c.ratio(value)
		}
	}
	return cause, ratio
}

// noteHeld adds the conditions that hold now to the conditions that held during the
// opening.
func (m *machine) noteHeld(o *Opening, at int64) {
	for n := range o.held {
		o.held[n] = o.held[n] || m.unit.holds(m.policy.conditions[n], at)
	}
}

// allReleased reports whether every condition that held during the opening is released.
func (m *machine) allReleased(at int64) bool {
	m.noteHeld(m.opening, at)
	for n, held := range m.opening.held {
		if held && !m.unit.released(m.policy.conditions[n], at) {
			return false
		}
	}
	return true
}

// warm reports whether the window of a condition contains a reading above the threshold.
// The policy must also be able to fire by the time that the window is full.
func (m *machine) warm(at int64) bool {
	if m.off || m.policy.DryRun || !m.watching() {
		return false
	}
	return slices.ContainsFunc(m.policy.conditions, func(c *condition) bool {
		return m.unit.histories[c.monitor].Warm(c.test, at) && m.unit.guarded(c, at) &&
			m.mayFireAt(m.unit.engine.clock.time(at+int64(c.Span())))
	})
}

// mayFireAt reports whether a policy in Watching may fire at a time. It ignores obstacles
// that do not end by themselves.
func (m *machine) mayFireAt(then time.Time) bool {
	plan := &m.unit.engine.plan
	if then.Before(m.notBefore) || plan.minAge > 0 && then.Before(m.unit.grownUp()) {
		return false
	}
	if !plan.byService {
		return true
	}
	_, cooling := m.policy.services.cooling(m.unit.account(), m.policy.index, then)
	return !cooling
}

// The following methods enter Profiling.

// fire opens the gate because a condition holds.
func (m *machine) fire(cause Cause, now time.Time) {
	m.open(&Opening{Cause: cause, length: int64(m.policy.Duration)}, now, Fired)
}

func (m *machine) openBaseline(now time.Time, at int64) {
	nearest, _ := m.hottest(false, at)
	m.open(&Opening{Cause: nearest, length: int64(m.policy.Baseline.Duration), Baseline: true}, now, BaselineDue)
}

// openByHand opens the gate by hand or by an alert, regardless of the conditions.
func (m *machine) openByHand(alert string, duration time.Duration, now time.Time) {
	why, lost := ByHand, (*atomic.Bool)(nil)
	if alert != "" {
		why, lost = ByAlert, new(atomic.Bool)
	}
	m.open(&Opening{Cause: Cause{Monitor: m.policy.Name}, length: int64(duration), Manual: true, Alert: alert, LostUnit: lost}, now, why)
}

// open enters Profiling. The caller sets the opening's cause, end and kind.
func (m *machine) open(o *Opening, now time.Time, why Reason) {
	e, from := m.unit.engine, m.state
	o.ID, o.Unit, o.Policy, o.FiredAt, o.DryRun = e.config.NewID(), m.unit.name, m.policy.Name, now, m.policy.DryRun
	o.Types, o.machine = m.policy.Types, m
	e.opened++
	o.number = e.opened
	if !o.Baseline {
		o.preTrigger = e.plan.preTrigger
	}
	if o.real() {
		if m.unit.hot == 0 { // otherwise the gate is already open
			e.places.ledger.SpendTrigger(e.clock.at(now))
			m.unit.spendServiceTrigger(e.clock.at(now))
		}
		e.places.take(o, now)
	}
	o.holdService()
	if m.policy.releases && !o.Baseline {
		o.held = make([]bool, len(m.policy.conditions))
		m.noteHeld(o, e.clock.at(now))
	}
	m.opening, m.resume, m.state, m.logged = o, from, Profiling, 0
	m.report(Transition{Time: now, From: from, Reason: why, Cause: o.Cause, Opening: o})
}

// The following methods leave Profiling.

// expire closes an opening that is past its planned end. The planned end is
// also the recorded closing time.
func (m *machine) expire() { m.close(m.opening.Until(), DurationPassed) }

// release closes an opening because all conditions that held during the opening have been
// released.
func (m *machine) release(now time.Time) { m.close(now, Released) }

// closeByHand closes an opening by hand or by an alert.
func (m *machine) closeByHand(now time.Time) {
	if m.opening.Alert != "" {
		m.close(now, AlertResolved)
	} else {
		m.close(now, ClosedByHand)
	}
}

// giveWay closes a baseline because the unit is hot or
// because another unit needs the place.
func (m *machine) giveWay(now time.Time) { m.abort(now, GaveWay) }

// abort closes an opening before its planned end. If the end has passed, the opening
// expires.
func (m *machine) abort(now time.Time, why Reason) {
	if now.Before(m.opening.Until()) {
		m.close(now, why)
	} else {
		m.expire()
	}
}

// close leaves Profiling.
func (m *machine) close(at time.Time, why Reason) {
	o := m.opening
	o.ClosedAt = at
	if why == UnitGone && o.LostUnit != nil {
		o.LostUnit.Store(true)
	}
	switch {
	case o.Baseline:
		m.state = m.resume
	case o.Manual:
		m.state = Watching
	case o.Profiles > 0 || o.DryRun:
		m.coolDown()
	default:
		// The wait doubles with each consecutive opening that has no accepted profile.
		again := min(retryAfter<<min(m.unheard, 16), max(retryAfter, m.policy.Cooldown))
		m.state, m.notBefore = Watching, at.Add(again)
		m.unheard++
	}
	if o.real() {
		m.unit.engine.places.give(o)
	}
	if o.Manual {
		m.unit.byHand = slices.DeleteFunc(m.unit.byHand, func(other *machine) bool { return other == m })
	}
	o.freeService()
	if o.cools() {
		m.coolService()
	}
	m.unit.remember(o)
	m.report(Transition{
		Time: at, From: Profiling, Reason: why, Cause: o.Cause, Opening: o, NothingExported: o.Profiles == 0 && o.real(),
	})
}

// The following methods enter and leave CoolingDown.

// coolDown starts the cooldown of the last opening.
func (m *machine) coolDown() {
	m.unheard = 0
	m.state, m.notBefore = CoolingDown, m.opening.ClosedAt.Add(m.policy.Cooldown)
}

// coolDownLate starts the cooldown when the first profile of an opening is accepted after
// the opening closed. Otherwise a policy whose Duration is shorter than the delay of
// profiles would export a profile every minute and never cool down. The cooldown may end
// earlier than the wait that began when the opening closed.
func (m *machine) coolDownLate() {
	o := m.opening
	m.coolDown()
	m.coolService()
	m.unit.engine.roster.update(m.unit)
	m.report(Transition{Time: o.ClosedAt, From: Watching, Reason: LateExport, Cause: o.Cause, Opening: o})
}

// endCooldown returns to Watching.
func (m *machine) endCooldown() {
	when := m.notBefore
	if o := m.opening; o != nil && o.ClosedAt.After(when) {
		when = o.ClosedAt // a baseline was open for longer than the cooldown
	}
	m.state = Watching
	m.report(Transition{Time: when, From: CoolingDown, Reason: CooldownPassed})
}

// The following methods report without a change of state.

// reportShut reports why the gate stays shut in Watching or CoolingDown although a
// condition holds. It reports each reason once. budget is set for OverBudget.
func (m *machine) reportShut(why Reason, budget string, now time.Time, at int64) {
	if m.logged.has(why) {
		return
	}
	again := m.logged != 0
	m.logged = m.logged.with(why)
	cause, _ := m.hottest(true, at)
	m.report(Transition{Time: now, From: m.state, Reason: why, Cause: cause, Budget: budget, Repeated: again})
}

// report sets the transition's unit, policy and new state. The next call that returns
// transitions returns it.
func (m *machine) report(t Transition) {
	t.Unit, t.Policy, t.To = m.unit, m.policy.Name, m.state
	m.unit.engine.pending = append(m.unit.engine.pending, t)
}

// obstacle returns the reason why a policy in Watching does not open the gate although a
// condition holds. until is the end of the obstacle, or zero if the end is unknown.
// budget is set for OverBudget. The reason is empty if there is no obstacle.
func (m *machine) obstacle(now time.Time, at int64) (why Reason, until time.Time, budget string) {
	u := m.unit
	if u.young(now) || m.logged.has(TooYoung) && !m.stillAbove(at) {
		return TooYoung, u.grownUp(), ""
	}
	if u.unnamed {
		return ServiceUnknown, time.Time{}, ""
	}
	if u.engine.plan.byService {
		if until, cooling := m.policy.services.cooling(u.account(), m.policy.index, now); cooling {
			return ServiceCooling, until, ""
		}
	}
	if !m.policy.DryRun {
		if budget := u.overBudget(at); budget != "" {
			return OverBudget, time.Time{}, budget
		}
	}
	return "", time.Time{}, ""
}

// stillAbove reports whether the newest reading of a condition is above its threshold. A
// burst that ended while the unit was young must not open the gate later, because the
// recorder may no longer have the profiles of the burst.
func (m *machine) stillAbove(at int64) bool {
	return slices.ContainsFunc(m.policy.conditions, func(c *condition) bool {
		return m.unit.histories[c.monitor].Above(c.test, at) && m.unit.guarded(c, at)
	})
}

// obstacles is a set of reasons that can keep a gate shut.
type obstacles uint8

func (o obstacles) has(why Reason) bool       { return o&bitOf(why) != 0 }
func (o obstacles) with(why Reason) obstacles { return o | bitOf(why) }

// bitOf returns the bit of a reason, or 0 if the reason is not an obstacle.
func bitOf(why Reason) obstacles {
	return 1 << (1 + slices.Index([]Reason{OverBudget, ServiceCooling, TooYoung, ServiceUnknown, RisingEdge}, why)) >> 1
}
