// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package trigger

import (
	"cmp"
	"slices"
	"strings"
	"time"
)

// holder is a gate in Watching with an item that holds.
type holder struct {
	unit   *Unit
	policy int
	items  itemSet // that hold
}

// itemSet is a set of a policy's items; those from the 64th on are one.
type itemSet uint64

const allItems = ^itemSet(0)

func (s itemSet) has(item int) bool     { return s>>min(item, 63)&1 != 0 }
func (s itemSet) with(item int) itemSet { return s | 1<<min(item, 63) }

// candidate is one with how hot it is.
type candidate struct {
	holder
	ratio float64
}

// hotter orders candidates: the largest value / threshold first, then by the
// unit's name.
func hotter(a, b candidate) int {
	return cmp.Or(cmp.Compare(b.ratio, a.ratio), strings.Compare(a.unit.name, b.unit.name), cmp.Compare(a.policy, b.policy))
}

// candidates is a heap, the hottest in front: of very many a budget lets in very
// few, and putting all in order would take longer than a decision may.
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

// obstacle is what keeps a policy in Watching from opening the gate though an
// item holds, with its end where that is known, and the budget.
func (e *Engine) obstacle(u *Unit, policy int, now time.Time, at int64) (why Reason, until time.Time, budget string) {
	if u.young(now) {
		return TooYoung, u.grownUp(), ""
	}
	if u.unnamed {
		return ServiceUnknown, time.Time{}, ""
	}
	if e.byService {
		if until, cooling := e.book(policy).cooling(u.account(), policy, now); cooling {
			return ServiceCooling, until, ""
		}
	}
	if !e.policies[policy].dryRun {
		if budget := e.overBudget(u, at); budget != "" {
			return OverBudget, time.Time{}, budget
		}
	}
	return "", time.Time{}, ""
}

// openHottest opens the gates whose items hold, the hottest first, for as long as
// nothing is in the way, and then reports which stay shut. Openings only ever put
// more in the way of others.
func (e *Engine) openHottest(now time.Time, at int64) {
	for _, h := range e.holders {
		if why, _, _ := e.obstacle(h.unit, h.policy, now, at); why != "" {
			e.keepShut(h, at, why)
		} else {
			e.candidates = append(e.candidates, candidate{h, e.ratio(h, at)})
		}
	}
	e.candidates.order()
	for len(e.candidates) > 0 {
		c := e.candidates.pop()
		why, _, budget := e.obstacle(c.unit, c.policy, now, at)
		if why == "" {
			cause, _ := e.cause(c.holder, at)
			e.open(c.unit, c.policy, now, &Opening{
				Cause: cause, Until: now.Add(e.policies[c.policy].duration),
			}, Fired)
			continue
		}
		e.keepShut(c.holder, at, why)
		if budget != "" && budget != MaxTriggersPerServicePerHour {
			e.sift(now, at) // it is in the way of most others too
		}
	}
	slices.SortFunc(e.kept, hotter)
	for _, c := range e.kept {
		e.reportShut(c.holder, now, at)
	}
}

// sift leaves the candidates that may still open.
func (e *Engine) sift(now time.Time, at int64) {
	left := e.candidates[:0]
	for _, c := range e.candidates {
		if why, _, _ := e.obstacle(c.unit, c.policy, now, at); why != "" {
			e.keepShut(c.holder, at, why)
		} else {
			left = append(left, c)
		}
	}
	clear(e.candidates[len(left):])
	e.candidates = left
	e.candidates.order()
}

// keepShut: Watching stays, and what is in the way is to be reported once.
func (e *Engine) keepShut(h holder, at int64, why Reason) {
	h.unit.over = h.unit.over || why == OverBudget
	if told := h.unit.gates[h.policy].told; told&told.of(why) == 0 {
		e.kept = append(e.kept, candidate{h, e.ratio(h, at)})
	}
}

// reportShut says what is in the way of a gate by now.
func (e *Engine) reportShut(h holder, now time.Time, at int64) {
	g := &h.unit.gates[h.policy]
	why, _, budget := e.obstacle(h.unit, h.policy, now, at)
	if g.told&g.told.of(why) != 0 {
		return
	}
	g.told |= g.told.of(why)
	cause, _ := e.cause(h, at)
	e.emit(Transition{
		Time: now, Unit: h.unit, Policy: e.policies[h.policy].name, From: Watching, To: Watching,
		Reason: why, Cause: cause, Budget: budget,
	})
}

func (e *Engine) ratio(h holder, at int64) float64 {
	_, ratio := e.cause(h, at)
	return ratio
}

// cause is the hottest of the items that hold.
func (e *Engine) cause(h holder, at int64) (hottest Cause, ratio float64) {
	u := h.unit
	ratio = -1
	for i := range e.policies[h.policy].conditions {
		c := &e.policies[h.policy].conditions[i]
		if !h.items.has(i) || !u.holds(c, at) {
			continue
		}
		value, _ := u.histories[c.monitor].Value(c.test, at, &e.scratch)
		if r := c.ratio(value); r > ratio {
			hottest, ratio = c.cause(value), r
		}
	}
	return hottest, ratio
}
