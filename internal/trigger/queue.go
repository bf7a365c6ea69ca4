// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package trigger

import (
	"cmp"
	"slices"
	"time"

	"github.com/hotprofile/hotprofile/internal/trigger/budget"
)

// queue collects the machines in Watching that have a condition that holds. It then opens
// the gates of the hottest units. It is empty between evaluations.
type queue struct {
	waiting    []holder
	candidates []candidate // may open
	shut       []candidate // stay shut, to be reported
}

// holder is a machine with the conditions that hold.
type holder struct {
	*machine
	hold conditionSet
}

// candidate is a holder with the value / threshold of its hottest condition.
type candidate struct {
	holder
	ratio float64
}

func (q *queue) add(m *machine, hold conditionSet) {
	q.waiting = append(q.waiting, holder{m, hold})
}

// open opens the gates of candidates without an obstacle, the hottest first. It then
// reports the gates that stay shut. Opening one gate never removes another gate's obstacle.
func (q *queue) open(now time.Time, at int64) {
	for _, h := range q.waiting {
		if why, _, _ := h.obstacle(now, at); why != "" {
			q.keepShut(h, at, why)
		} else {
			_, ratio := h.hottest(h.hold, at)
			q.candidates = append(q.candidates, candidate{h, ratio})
		}
	}
	slices.SortFunc(q.candidates, hotter)
	for left := q.candidates; len(left) > 0; {
		c := left[0]
		left = left[1:]
		why, _, name := c.obstacle(now, at)
		if why == "" {
			cause, _ := c.hottest(c.hold, at)
			c.fire(cause, now)
			continue
		}
		q.keepShut(c.holder, at, why)
		if name != "" && name != budget.MaxTriggersPerServicePerHour {
			left = q.filter(left, now, at) // the budget is used up for most other units too
		}
	}
	slices.SortFunc(q.shut, hotter)
	for _, c := range q.shut {
		c.reportShut(c.hold, now, at)
	}
}

// filter returns the candidates that may still open. It keeps their order.
func (q *queue) filter(all []candidate, now time.Time, at int64) []candidate {
	return slices.DeleteFunc(all, func(c candidate) bool {
		why, _, _ := c.obstacle(now, at)
		if why != "" {
			q.keepShut(c.holder, at, why)
		}
		return why != ""
	})
}

// keepShut leaves a machine in Watching. It queues the obstacle for a report unless the
// obstacle was reported before.
func (q *queue) keepShut(h holder, at int64, why Reason) {
	h.unit.over = h.unit.over || why == OverBudget
	if !h.logged.has(why) {
		_, ratio := h.hottest(h.hold, at)
		q.shut = append(q.shut, candidate{h, ratio})
	}
}

// clear empties the queue but keeps its memory for the next incident. The memory is at
// most a few bytes per unit and policy.
func (q *queue) clear() {
	clear(q.waiting)
	clear(q.candidates)
	clear(q.shut)
	q.waiting, q.candidates, q.shut = q.waiting[:0], q.candidates[:0], q.shut[:0]
}

// hotter orders candidates by descending value / threshold, and then by the
// unit's name and the policy.
func hotter(a, b candidate) int {
	return cmp.Or(cmp.Compare(b.ratio, a.ratio), a.compare(b.machine))
}
