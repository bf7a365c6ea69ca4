// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package trigger

import (
	"cmp"
	"slices"
	"time"

	"github.com/hotprofile/hotprofile/internal/trigger/budget"
)

// queue collects the machines that may open gates in an evaluation. It is empty between
// evaluations.
type queue struct {
	waiting   []candidate // in Watching, with a condition that holds
	baselines []*machine  // with a baseline that is due
}

// candidate is a machine with the value / threshold of its hottest condition.
type candidate struct {
	*machine
	ratio float64
}

// open opens the gates of machines without an obstacle, the hottest first. It then
// reports the gates that stay shut. Opening one gate never removes another gate's obstacle.
func (q *queue) open(now time.Time, at int64) {
	q.waiting = slices.DeleteFunc(q.waiting, func(c candidate) bool {
		why := c.obstructed(now, at)
		return why != "" && c.logged.has(why) // the obstacle was reported before
	})
	for i := range q.waiting {
		_, q.waiting[i].ratio = q.waiting[i].hottest(true, at)
	}
	slices.SortFunc(q.waiting, hotter)
	shut := q.waiting[:0]
	for _, c := range q.waiting {
		if c.obstructed(now, at) != "" {
			shut = append(shut, c)
			continue
		}
		cause, _ := c.hottest(true, at)
		c.fire(cause, now)
	}
	for _, c := range shut {
		why, _, over := c.obstacle(now, at)
		c.reportShut(why, over, now, at)
	}
}

// obstructed returns the obstacle of a machine with a condition that holds. If the obstacle is
// a budget, obstructed marks the unit as over budget.
func (m *machine) obstructed(now time.Time, at int64) (why Reason) {
	why, _, _ = m.obstacle(now, at)
	m.unit.over = m.unit.over || why == OverBudget
	return why
}

// clear empties the queue but keeps its memory for the next incident. The memory is at
// most a few bytes per unit and policy.
func (q *queue) clear() {
	clear(q.waiting)
	clear(q.baselines)
	q.waiting, q.baselines = q.waiting[:0], q.baselines[:0]
}

// hotter orders candidates by descending ratio of value to threshold, then by the unit's
// name, and then by the policy.
func hotter(a, b candidate) int {
	return cmp.Or(cmp.Compare(b.ratio, a.ratio), a.compare(b.machine))
}

// openBaselines opens the due baselines of units that are not hot, if the budgets allow it.
// The baseline that has been due for longest opens first.
func (q *queue) openBaselines(now time.Time, at int64) {
	slices.SortFunc(q.baselines, func(a, b *machine) int {
		return cmp.Or(cmp.Compare(a.due, b.due), a.compare(b))
	})
	for _, m := range q.baselines {
		u := m.unit
		if u.hot > 0 || !m.policy.DryRun && (!u.engine.places.available(u) || u.overBudget(at) != "") {
			continue
		}
		m.due = m.nextBaseline(at)
		m.openBaseline(now, at)
	}
}

// scheduleBaseline adds the machine's baseline to the queue if the baseline is due and the
// unit is cool. A baseline that is due while the unit is hot is skipped. A baseline stays
// due if it cannot open yet, for example because no place is free.
func (m *machine) scheduleBaseline(now time.Time, at int64) {
	e := m.unit.engine
	hot := m.held || m.state == Profiling || m.unit.hot > 0
	switch {
	case m.due == 0 || hot && at >= m.due:
		m.due = m.nextBaseline(at)
	case at < m.due, e.closed, m.unit.young(now), m.unit.unnamed:
	case m.state == Watching && now.Before(m.notBefore):
	default:
		e.queue.baselines = append(e.queue.baselines, m)
	}
}

// nextBaseline returns the time of the next baseline after a given time. A hash of the
// unit's name spreads the baselines of different units over the interval.
func (m *machine) nextBaseline(after int64) int64 {
	hash := uint64(14695981039346656037) // FNV-1a
	for i := range len(m.unit.name) {
		hash = (hash ^ uint64(m.unit.name[i])) * 1099511628211
	}
	every := int64(m.policy.Baseline.Every)
	offset := int64(hash % uint64(every))
	return after + every - ((after-offset)%every+every)%every
}

// places counts the units with an open gate against the budgets. Dry runs need no place.
//
// Invariants:
//   - units is the number of units whose hot or baselines is above 0
//   - openings is the number of openings in Profiling
//   - byHand is the number of units with an opening by hand or by alert
//   - alerts is the number of openings by alert
//   - baselines contains the open baselines that can give way. It is empty if there is no
//     limit
type places struct {
	ledger    budget.Ledger
	units     int
	openings  int
	byHand    int
	alerts    int
	baselines []*Opening // in the order in which they opened
}

// available reports whether the unit already has a place or a place is free.
func (p *places) available(u *Decision) bool {
	limit := p.ledger.Limits().MaxConcurrentUnits
	return u.hot+u.baselines > 0 || limit == 0 || p.units < limit
}

// take assigns a place to an opening. Baselines of the unit give way to a hot opening. If
// no place is free, the unit with the oldest baseline gives way.
func (p *places) take(o *Opening, now time.Time) {
	u := o.machine.unit
	if o.hot() {
		u.closeBaselines(now)
	}
	if !p.available(u) {
		p.baselines[0].machine.unit.closeBaselines(now)
	}
	if u.hot+u.baselines == 0 {
		p.units++
	}
	if o.Baseline && p.ledger.Limits().MaxConcurrentUnits > 0 {
		p.baselines = append(p.baselines, o)
	}
	p.count(o, 1)
}

// give frees the place of an opening that closes.
func (p *places) give(o *Opening) {
	p.count(o, -1)
	if n := slices.Index(p.baselines, o); n >= 0 {
		p.baselines = slices.Delete(p.baselines, n, n+1)
	}
	if u := o.machine.unit; u.hot+u.baselines == 0 {
		p.units--
	}
}

// count adds 1 or -1 to each count that includes the opening.
func (p *places) count(o *Opening, by int) {
	u := o.machine.unit
	if o.Baseline {
		u.baselines += by
	} else {
		u.hot += by
	}
	p.openings += by
	if o.Manual && len(u.byHand) == 1 { // the unit has no other opening by hand or by alert
		p.byHand += by
	}
	if o.Alert != "" {
		p.alerts += by
	}
}

// closeBaselines closes the unit's baselines, except dry runs.
func (u *Decision) closeBaselines(now time.Time) {
	for i := range u.machines {
		if m := &u.machines[i]; m.state == Profiling && m.opening.Baseline && m.opening.real() {
			m.giveWay(now)
		}
	}
}

// overBudget returns the name of the budget that does not allow the unit
// another opening. The name is empty if all budgets allow the opening. A
// unit with an open gate needs neither a second place nor a second trigger.
// Places of baselines count as free, because baselines give way.
func (u *Decision) overBudget(at int64) string {
	p := &u.engine.places
	switch {
	case !p.available(u) && len(p.baselines) == 0:
		return budget.MaxConcurrentUnits
	case u.hot == 0 && !p.ledger.TriggerLeft(at):
		return budget.MaxTriggersPerHour
	case u.hot == 0 && !u.serviceTriggerLeft(at):
		return budget.MaxTriggersPerServicePerHour
	case !p.ledger.Affords(1, at):
		return budget.MaxBytesPerHour
	}
	return ""
}

// overBudgetByHand is like overBudget, but for openings by hand and by alert. It reserves
// places for policies, even if a policy has already opened the unit's gate.
func (u *Decision) overBudgetByHand(at int64) string {
	p := &u.engine.places
	if limit := p.ledger.Limits().ConcurrentByHand(); limit > 0 && len(u.byHand) == 0 && p.byHand >= limit {
		return budget.MaxConcurrentUnits
	}
	return u.overBudget(at)
}
