// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package trigger

import (
	"cmp"
	"slices"
	"strings"
	"time"
)

// dueBaseline is a baseline that is due and may open.
type dueBaseline struct {
	unit   *Unit
	policy int
	due    int64
}

// slot is the first time after another at which a baseline of the policy is due
// for the unit: units are spread over the interval by a hash of their names.
func (u *Unit) slot(policy int, after int64) int64 {
	hash := uint64(14695981039346656037) // FNV-1a
	for i := range len(u.name) {
		hash = (hash ^ uint64(u.name[i])) * 1099511628211
	}
	every := int64(u.engine.policies[policy].baseline.Every)
	offset := int64(hash % uint64(every))
	return after + every - ((after-offset)%every+every)%every
}

// schedule notes a baseline that is due while the unit is cool. While it is hot
// the one that is due is left out; else one waits until there is room.
func (e *Engine) schedule(u *Unit, policy int, g *gate, now time.Time, at int64) {
	hot := g.held || g.state == Profiling || u.hotGates > 0
	switch {
	case g.due == 0 || hot && at >= g.due:
		g.due = u.slot(policy, at)
	case at < g.due, e.shut, u.young(now), u.unnamed:
	case g.state == Watching && now.Before(g.notBefore):
	default:
		e.due = append(e.due, dueBaseline{u, policy, g.due})
	}
}

// openBaselines opens the baselines that are due, where nothing is hot and the
// budgets allow, the longest due first.
func (e *Engine) openBaselines(now time.Time, at int64) {
	slices.SortFunc(e.due, func(a, b dueBaseline) int {
		return cmp.Or(cmp.Compare(a.due, b.due), strings.Compare(a.unit.name, b.unit.name), cmp.Compare(a.policy, b.policy))
	})
	for _, d := range e.due {
		u, p := d.unit, &e.policies[d.policy]
		if u.hotGates > 0 || !p.dryRun && (!e.place(u) || e.overBudget(u, at) != "") {
			continue
		}
		g := &u.gates[d.policy]
		g.due = u.slot(d.policy, at)
		e.open(u, d.policy, now, &Opening{
			Cause: e.nearest(u, d.policy, at), Until: now.Add(p.baseline.Duration), Baseline: true,
		}, BaselineDue)
	}
}

// giveWay closes the baselines of a unit, the longest open, for one that is hot.
func (e *Engine) giveWay(now time.Time) {
	first := slices.MinFunc(e.baselines, func(a, b *Opening) int {
		return cmp.Or(a.FiredAt.Compare(b.FiredAt), strings.Compare(a.Unit, b.Unit))
	})
	e.closeBaselines(first.unit, now)
}

// closeBaselines closes the baselines of a unit, but for dry runs.
func (e *Engine) closeBaselines(u *Unit, now time.Time) {
	for p := range u.gates {
		if u.baselines == 0 {
			return
		}
		if g := &u.gates[p]; g.state == Profiling && g.opening.Baseline && g.opening.real() {
			e.closeEarly(u, g, now, GaveWay)
		}
	}
}

// nearest is the item of a policy that is nearest to its threshold; zero if none
// has readings enough.
func (e *Engine) nearest(u *Unit, policy int, at int64) (nearest Cause) {
	ratio := -1.0
	for i := range e.policies[policy].conditions {
		c := &e.policies[policy].conditions[i]
		if value, ok := u.histories[c.monitor].Value(c.test, at, &e.scratch); ok && c.ratio(value) > ratio {
			nearest, ratio = c.cause(value), c.ratio(value)
		}
	}
	return nearest
}
