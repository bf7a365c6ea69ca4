// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package trigger

import (
	"cmp"
	"slices"
	"strings"
	"time"
)

// Snapshot is what has to survive a restart, as plain data with wall times.
type Snapshot struct {
	// Taken is when it was taken.
	Taken time.Time `json:"taken"`
	// Units and Services are the cooldowns that had not ended. A gate that was
	// open and had let something out counts as closed then.
	Units    []Cooldown `json:"units,omitempty"`
	Services []Cooldown `json:"services,omitempty"`
	// Triggers are the gates opened in the hour before, and ServiceTriggers
	// those of each service or unit without one.
	Triggers        []Spending        `json:"triggers,omitempty"`
	ServiceTriggers []ServiceSpending `json:"service_triggers,omitempty"`
	// Bytes is what was let out in the hour before, by the minute.
	Bytes []Spending `json:"bytes,omitempty"`
}

// Cooldown is one that a unit, or a service, has with a policy.
type Cooldown struct {
	Name   string    `json:"name"`
	Policy string    `json:"policy"`
	Until  time.Time `json:"until"`
}

// Spending is what was spent of a budget at a time.
type Spending struct {
	Time   time.Time `json:"time"`
	Amount int64     `json:"amount"`
}

// ServiceSpending is what a service spent, or a unit without one.
type ServiceSpending struct {
	Name string `json:"name"`
	// Unit says that Name is a unit's.
	Unit  bool       `json:"unit,omitempty"`
	Spent []Spending `json:"spent"`
}

// Snapshot returns what has to survive a restart, ordered by name. Dry runs are
// left out: what one found must not keep the policy shut when it is one no more.
func (e *Engine) Snapshot(now time.Time) Snapshot {
	at := e.at(now)
	w := wall{now: now, read: now.Round(0).UTC(), at: at}
	s := Snapshot{Taken: w.read}
	for _, u := range e.byName {
		for p := range e.policies[:len(e.policies)-1] {
			plan, g := &e.policies[p], &u.gates[p]
			if plan.dryRun {
				continue
			}
			until := g.notBefore
			if g.state == Profiling && !g.opening.Baseline && g.opening.Profiles > 0 {
				until = now.Add(plan.cooldown)
				if a := u.account(); e.byService && !a.unit {
					s.Services = append(s.Services, Cooldown{a.name, plan.name, w.time(until)})
				}
			} else if !g.cooling() {
				continue
			}
			if now.Before(until) {
				s.Units = append(s.Units, Cooldown{u.name, plan.name, w.time(until)})
			}
		}
	}
	for a, service := range e.services.byAccount {
		for _, c := range service.cooling {
			if !a.unit && now.Before(c.until) {
				s.Services = append(s.Services, Cooldown{a.name, e.policies[c.policy].name, w.time(c.until)})
			}
		}
		if spent := w.spent(&service.triggers); len(spent) > 0 {
			s.ServiceTriggers = append(s.ServiceTriggers, ServiceSpending{a.name, a.unit, spent})
		}
	}
	s.Triggers = w.spent(&e.triggers)
	e.bytes.advance(at)
	for n := e.bytes.newest - int64(len(e.bytes.spent)) + 1; n <= e.bytes.newest; n++ {
		if m := e.bytes.slot(n); m.amount > 0 {
			s.Bytes = append(s.Bytes, Spending{w.ago(at - m.last), m.amount})
		}
	}
	s.Units, s.Services = longest(s.Units), longest(s.Services)
	slices.SortFunc(s.ServiceTriggers, func(a, b ServiceSpending) int {
		return account{a.Name, a.Unit}.compare(account{b.Name, b.Unit})
	})
	return s
}

// longest orders cooldowns and keeps the longest of equal names.
func longest(cooldowns []Cooldown) []Cooldown {
	slices.SortFunc(cooldowns, func(a, b Cooldown) int {
		return cmp.Or(strings.Compare(a.Name, b.Name), strings.Compare(a.Policy, b.Policy), b.Until.Compare(a.Until))
	})
	return slices.CompactFunc(cooldowns, func(a, b Cooldown) bool { return a.Name == b.Name && a.Policy == b.Policy })
}

// wall turns the engine's times into wall times.
type wall struct {
	now, read time.Time
	at        int64
}

func (w wall) time(t time.Time) time.Time      { return w.read.Add(t.Sub(w.now)) }
func (w wall) ago(nanoseconds int64) time.Time { return w.read.Add(-time.Duration(nanoseconds)) }

func (w wall) spent(h *hour) (spent []Spending) {
	for _, t := range h.times[h.since(w.at):] {
		when := w.ago(w.at - t)
		if n := len(spent); n > 0 && spent[n-1].Time.Equal(when) {
			spent[n-1].Amount++
			continue
		}
		spent = append(spent, Spending{when, 1})
	}
	return spent
}

// Restore takes over what a snapshot says, before the first Evaluate. A clock
// that was set back since then counts as one that stood still. It never makes a
// cooldown longer than its policy says, spends no more than a budget allows, and
// ignores what no policy knows.
func (e *Engine) Restore(s Snapshot, now time.Time) {
	at := e.at(now)
	r := restored{now: now, at: at, passed: max(0, now.Round(0).Sub(s.Taken)), taken: s.Taken}
	policies := make(map[string]int, len(e.policies))
	for p := range e.policies[:len(e.policies)-1] {
		if !e.policies[p].dryRun {
			policies[e.policies[p].name] = p
		}
	}
	e.restoreUnits(r, s.Units, policies)
	if e.byService {
		for _, c := range s.Services {
			if p, ok := policies[c.Policy]; ok {
				if until, ok := r.until(c, e.policies[p].cooldown); ok {
					sc := e.services.get(account{c.Name, false}, at).with(p)
					if until.After(sc.until) {
						sc.until = until
					}
				}
			}
		}
	}
	if e.budgets.MaxTriggersPerHour > 0 {
		r.spend(&e.triggers, s.Triggers, e.budgets.MaxTriggersPerHour)
	}
	if limit := e.budgets.MaxTriggersPerServicePerHour; limit > 0 {
		for _, st := range s.ServiceTriggers {
			r.spend(&e.services.get(account{st.Name, st.Unit}, at).triggers, st.Spent, limit)
		}
	}
	if limit := e.budgets.MaxBytesPerHour; limit > 0 {
		if e.bytes.sum(at) == 0 {
			e.bytes = minutes{newest: floorDiv(at-int64(time.Hour), int64(time.Minute))}
		}
		for _, b := range r.ordered(s.Bytes) {
			e.bytes.add(b.at, min(b.amount, limit))
		}
	}
}

// restoreUnits has units cool down, those with the longest to go first, so that
// at the bound on gone ones the others need not be looked through for each.
func (e *Engine) restoreUnits(r restored, cooldowns []Cooldown, policies map[string]int) {
	type cooling struct {
		name   string
		policy int
		until  time.Time
	}
	var all []cooling
	for _, c := range cooldowns {
		if p, ok := policies[c.Policy]; ok {
			if until, ok := r.until(c, e.policies[p].cooldown); ok {
				all = append(all, cooling{c.Name, p, until})
			}
		}
	}
	slices.SortFunc(all, func(a, b cooling) int {
		return cmp.Or(b.until.Compare(a.until), strings.Compare(b.name, a.name))
	})
	forgotten := map[string]bool{}
	for _, c := range all {
		if e.byName[c.name] == nil && e.goneUnits >= e.maxGone {
			forgotten[c.name] = true
			continue
		}
		e.restoreUnit(c.name, c.policy, c.until)
	}
	e.stats.ForgottenUnits += len(forgotten)
}

// restoreUnit has a unit cool down, which is a gone one until it is seen.
func (e *Engine) restoreUnit(name string, policy int, until time.Time) {
	u := e.byName[name]
	if u == nil {
		u = &Unit{name: name, engine: e, gates: make([]gate, len(e.policies)), gone: true}
		e.byName[name] = u
		e.goneUnits++
	}
	g := &u.gates[policy]
	if g.state != Profiling && until.After(g.notBefore) {
		g.state, g.notBefore = CoolingDown, until
	}
	if !u.gone {
		return
	}
	if next, _, _ := u.memory(); e.nextForget.IsZero() || next.Before(e.nextForget) {
		e.nextForget = next
	}
}

// restored turns the wall times of a snapshot into the engine's.
type restored struct {
	now    time.Time
	at     int64
	passed time.Duration // since it was taken
	taken  time.Time
}

// until is when a cooldown ends; ok is false if it has.
func (r restored) until(c Cooldown, cooldown time.Duration) (until time.Time, ok bool) {
	left := min(max(0, c.Until.Sub(r.taken)), cooldown) - r.passed
	return r.now.Add(left), left > 0
}

type restoredSpending struct{ at, amount int64 }

// ordered returns what was spent less than an hour ago.
func (r restored) ordered(spent []Spending) (out []restoredSpending) {
	for _, s := range spent {
		ago := min(max(0, r.taken.Sub(s.Time)), time.Hour) + min(r.passed, time.Hour)
		if ago < time.Hour && s.Amount > 0 {
			out = append(out, restoredSpending{r.at - int64(ago), s.Amount})
		}
	}
	slices.SortStableFunc(out, func(a, b restoredSpending) int { return cmp.Compare(a.at, b.at) })
	return out
}

func (r restored) spend(h *hour, spent []Spending, limit int) {
	for _, s := range r.ordered(spent) {
		for range min(s.amount, int64(limit)-int64(h.count(r.at))) {
			h.add(s.at)
		}
	}
}
