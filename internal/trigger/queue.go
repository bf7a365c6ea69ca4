// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package trigger

import (
	"cmp"
	"slices"
	"time"

	"github.com/hotprofile/hotprofile/internal/trigger/budget"
)

// queue collects, during an evaluation, the machines in Watching with a condition
// that holds, and opens the gates of the hottest. It is empty between evaluations.
type queue struct {
	waiting    []holder
	candidates candidates // may open
	shut       candidates // stay shut, to be reported
}

// holder is a machine with the conditions that hold.
type holder struct {
	*machine
	hold conditionSet
}

// candidate is a holder with its value / threshold.
type candidate struct {
	holder
	ratio float64
}

func (q *queue) add(m *machine, hold conditionSet) {
	q.waiting = append(q.waiting, holder{m, hold})
}

// open opens gates, the hottest first, as long as nothing is in the way, and then
// reports which stay shut. An opening never removes an obstacle of another one.
func (q *queue) open(now time.Time, at int64) {
	for _, h := range q.waiting {
		if why, _, _ := h.obstacle(now, at); why != "" {
			q.keepShut(h, at, why)
		} else {
			_, ratio := h.hottest(h.hold, at)
			q.candidates = append(q.candidates, candidate{h, ratio})
		}
	}
	q.candidates.order()
	for len(q.candidates) > 0 {
		c := q.candidates.pop()
		why, _, name := c.obstacle(now, at)
		if why == "" {
			cause, _ := c.hottest(c.hold, at)
			c.fire(cause, now)
			continue
		}
		q.keepShut(c.holder, at, why)
		if name != "" && name != budget.MaxTriggersPerServicePerHour {
			q.filter(now, at) // it is in the way of most others too
		}
	}
	slices.SortFunc(q.shut, hotter)
	for _, c := range q.shut {
		c.reportShut(c.hold, now, at)
	}
}

// filter keeps the candidates that may still open.
func (q *queue) filter(now time.Time, at int64) {
	left := q.candidates[:0]
	for _, c := range q.candidates {
		if why, _, _ := c.obstacle(now, at); why != "" {
			q.keepShut(c.holder, at, why)
		} else {
			left = append(left, c)
		}
	}
	clear(q.candidates[len(left):])
	q.candidates = left
	q.candidates.order()
}

// keepShut leaves a machine in Watching. The obstacle is reported unless it was
// already.
func (q *queue) keepShut(h holder, at int64, why Reason) {
	h.unit.over = h.unit.over || why == OverBudget
	if !h.logged.has(why) {
		_, ratio := h.hottest(h.hold, at)
		q.shut = append(q.shut, candidate{h, ratio})
	}
}

// clear empties the queue. It keeps the memory for the next incident: a few bytes
// per unit and policy at most.
func (q *queue) clear() {
	clear(q.waiting)
	clear(q.shut)
	q.waiting, q.shut = q.waiting[:0], q.shut[:0]
}

// hotter orders candidates: the largest value / threshold first, then by the name of
// the unit.
func hotter(a, b candidate) int {
	return cmp.Or(cmp.Compare(b.ratio, a.ratio), a.compare(b.machine))
}

// candidates is a heap with the hottest in front. A budget allows few of very many,
// and sorting all would take too long.
type candidates []candidate

func (c candidates) order() {
	for i := len(c)/2 - 1; i >= 0; i-- {
		c.down(i)
	}
}

func (c *candidates) pop() candidate {
	all := *c
	last := len(all) - 1
	hottest := all[0]
	all[0], all[last] = all[last], candidate{}
	*c = all[:last]
	c.down(0)
	return hottest
}

func (c candidates) down(i int) {
	for {
		child := 2*i + 1
		if child >= len(c) {
			return
		}
		if right := child + 1; right < len(c) && hotter(c[right], c[child]) < 0 {
			child = right
		}
		if hotter(c[i], c[child]) < 0 {
			return
		}
		c[i], c[child] = c[child], c[i]
		i = child
	}
}
