// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package trigger

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/hotprofile/hotprofile/internal/trigger/budget"
)

// Snapshot is the state that must survive a restart, as plain data with wall times.
type Snapshot struct {
	Taken time.Time `json:"taken"`
	// Units and Services contain the cooldowns that had not ended. An opening that was
	// open and had exported a profile is treated as closed at Taken.
	Units    []Cooldown `json:"units,omitempty"`
	Services []Cooldown `json:"services,omitempty"`
	// Triggers contains the openings of the last hour. ServiceTriggers contains the same
	// openings by service, or by unit if the unit has no service.
	Triggers        []budget.Spending `json:"triggers,omitempty"`
	ServiceTriggers []ServiceSpending `json:"service_triggers,omitempty"`
	// Bytes contains the number of bytes exported in each minute of the last hour.
	Bytes []budget.Spending `json:"bytes,omitempty"`
}

// Cooldown is the cooldown of a policy for a unit or a service.
type Cooldown struct {
	Name   string    `json:"name"`
	Policy string    `json:"policy"`
	Until  time.Time `json:"until"`
}

// ServiceSpending contains the openings of a service, or of a unit without a service.
type ServiceSpending struct {
	Name string `json:"name"`
	// Unit reports whether Name is a unit's name.
	Unit  bool              `json:"unit,omitempty"`
	Spent []budget.Spending `json:"spent"`
}

// Snapshot returns the state that must survive a restart, ordered by name. Snapshot omits
// the cooldowns of dry runs. A policy that is no longer a dry run after the restart must
// not inherit the cooldown of the dry run.
func (e *Engine) Snapshot(now time.Time) Snapshot {
	w := budget.Wall{Now: now.Round(0).UTC(), At: e.clock.at(now)}
	s := Snapshot{Taken: w.Now}
	wall := func(t time.Time) time.Time { return w.Now.Add(t.Sub(now)) }
	for _, u := range e.roster.byName {
		for i := range u.machines {
			m := &u.machines[i]
			until, ok := m.cooldownAt(now)
			if !ok || m.policy.DryRun {
				continue
			}
			if a := u.account(); m.state == Profiling && !m.opening.Baseline && e.plan.byService && !a.unit {
				s.Services = append(s.Services, Cooldown{a.name, m.policy.Name, wall(until)})
			}
			if now.Before(until) {
				s.Units = append(s.Units, Cooldown{u.name, m.policy.Name, wall(until)})
			}
		}
	}
	for a, service := range e.services.byAccount {
		for _, c := range service.cooldowns {
			if !a.unit && now.Before(c.until) {
				s.Services = append(s.Services, Cooldown{a.name, e.plan.policies[c.policy].Name, wall(c.until)})
			}
		}
		if spent := service.triggers.Spent(w); len(spent) > 0 {
			s.ServiceTriggers = append(s.ServiceTriggers, ServiceSpending{a.name, a.unit, spent})
		}
	}
	for _, c := range e.awaited {
		if now.Before(c.until) {
			of := &s.Units
			if c.service {
				of = &s.Services
			}
			*of = append(*of, Cooldown{c.name, c.policy, wall(c.until)})
		}
	}
	s.Triggers, s.Bytes = e.places.ledger.Spent(w)
	s.Units, s.Services = longest(s.Units), longest(s.Services)
	slices.SortFunc(s.ServiceTriggers, func(a, b ServiceSpending) int {
		return account{a.Name, a.Unit}.compare(account{b.Name, b.Unit})
	})
	return s
}

// cooldownAt returns the end of the cooldown that would apply if the engine stopped now. ok
// is false if there is no cooldown.
func (m *machine) cooldownAt(now time.Time) (until time.Time, ok bool) {
	if m.state == Profiling && !m.opening.Baseline && m.opening.Profiles > 0 {
		return now.Add(m.policy.Cooldown), true
	}
	return m.notBefore, m.cooling()
}

// longest sorts cooldowns and keeps the longest cooldown of each name and policy.
func longest(cooldowns []Cooldown) []Cooldown {
	slices.SortFunc(cooldowns, func(a, b Cooldown) int {
		return cmp.Or(strings.Compare(a.Name, b.Name), strings.Compare(a.Policy, b.Policy), b.Until.Compare(a.Until))
	})
	return slices.CompactFunc(cooldowns, func(a, b Cooldown) bool { return a.Name == b.Name && a.Policy == b.Policy })
}

// Restore applies a snapshot. Call it before the first Evaluate. If the wall clock was set
// back since the snapshot, Restore assumes that no time has passed. No cooldown becomes longer
// than its policy allows, and no amount spent exceeds its budget. If the policy of a cooldown
// is missing, the cooldown is kept for up to a day.
func (e *Engine) Restore(s Snapshot, now time.Time) {
	r := budget.Restart{Taken: s.Taken, Passed: max(0, now.Round(0).Sub(s.Taken)), At: e.clock.at(now)}
	e.await(r, s.Units, false, now)
	e.await(r, s.Services, true, now)
	e.restoreAwaited(now)
	e.awaited = append([]awaitedCooldown(nil), e.awaited[:min(len(e.awaited), e.roster.maxGone)]...)
	e.places.ledger.Restore(r, s.Triggers, s.Bytes)
	if limit := int64(e.places.ledger.Limits().MaxTriggersPerServicePerHour); limit > 0 {
		for _, st := range s.ServiceTriggers {
			s := e.services.get(account{st.Name, st.Unit})
			s.triggers.Restore(r, st.Spent, limit, limit)
			e.services.keep(s)
		}
	}
}

// maxAwaited is the time for which a restored cooldown waits for its policy. The number
// of awaited cooldowns is at most roster.maxGone.
const maxAwaited = 24 * time.Hour

// awaitedCooldown is a restored cooldown of a missing policy. Policies that are loaded
// after the start are missing at first.
type awaitedCooldown struct {
	name, policy string
	service      bool // name is the name of a service, otherwise of a unit
	until        time.Time
}

// await adds the cooldowns of a snapshot to the awaited cooldowns.
func (e *Engine) await(r budget.Restart, cooldowns []Cooldown, service bool, now time.Time) {
	for _, c := range cooldowns {
		left := max(0, c.Until.Sub(r.Taken))
		if n, known := e.plan.index[c.Policy]; known {
			left = min(left, e.plan.policies[n].Cooldown) - r.Passed
		} else {
			left = min(left-r.Passed, maxAwaited)
		}
		e.awaited = append(e.awaited, awaitedCooldown{c.Name, c.Policy, service, now.Add(left)})
	}
}

// restoreAwaited restores the awaited cooldowns of policies that exist now.
func (e *Engine) restoreAwaited(now time.Time) {
	var units []awaitedCooldown
	e.awaited = slices.DeleteFunc(e.awaited, func(c awaitedCooldown) bool {
		n, known := e.plan.index[c.policy]
		if !known || !now.Before(c.until) {
			return known || !now.Before(c.until)
		}
		p := &e.plan.policies[n]
		c.until = p.longest(c.until, now)
		switch {
		case p.DryRun || !now.Before(c.until):
		case !c.service:
			units = append(units, c)
		case e.plan.byService:
			e.services.cool(account{c.name, false}, n, c.until)
		}
		return true
	})
	e.restoreUnits(units)
}

// restoreUnits restores the cooldowns of units. It begins with the longest cooldowns, so
// that only the shortest cooldowns are dropped if there are too many gone units.
func (e *Engine) restoreUnits(cooldowns []awaitedCooldown) {
	slices.SortFunc(cooldowns, func(a, b awaitedCooldown) int {
		return cmp.Or(b.until.Compare(a.until), strings.Compare(b.name, a.name))
	})
	forgotten := map[string]bool{}
	for _, c := range cooldowns {
		u := e.roster.byName[c.name]
		if u == nil && len(e.roster.gone.Items) >= e.roster.maxGone {
			forgotten[c.name] = true
			continue
		}
		if u == nil {
			u = newDecision(e, c.name)
			u.gone = true // until the unit is seen
		}
		if m := &u.machines[e.plan.index[c.policy]]; m.state != Profiling && c.until.After(m.notBefore) {
			m.state, m.notBefore = CoolingDown, c.until
		}
		if u.gone {
			e.roster.remember(u)
		}
	}
	e.roster.forgotten += len(forgotten)
}
