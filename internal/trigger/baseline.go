// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package trigger

import (
	"cmp"
	"slices"
	"time"
)

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
