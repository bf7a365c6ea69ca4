// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package trigger

import (
	"cmp"
	"slices"
	"time"

	"github.com/hotprofile/hotprofile/internal/trigger/budget"
)

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
	baselines []*Opening
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
		p.oldestBaseline().machine.unit.closeBaselines(now)
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

func (p *places) oldestBaseline() *Opening {
	return slices.MinFunc(p.baselines, func(a, b *Opening) int {
		return cmp.Or(a.FiredAt.Compare(b.FiredAt), cmp.Compare(a.Unit, b.Unit))
	})
}

// closeBaselines closes the unit's baselines, except dry runs.
func (u *Decision) closeBaselines(now time.Time) {
	for i := range u.machines {
		if u.baselines == 0 {
			return
		}
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
