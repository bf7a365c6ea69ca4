// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package trigger

import (
	"cmp"
	"slices"
	"time"
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
		c.reportShut(now, at)
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
