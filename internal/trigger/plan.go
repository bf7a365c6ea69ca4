// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package trigger

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hotprofile/hotprofile/internal/trigger/window"
)

// plan is a compiled Config.
type plan struct {
	monitors   []monitorPlan
	policies   []policy
	index      map[string]int // indices of the policies by name
	preTrigger time.Duration
	minAge     time.Duration
	byService  bool // Config.CooldownByService
}

type monitorPlan struct {
	name string
	*window.Monitor
}

// policy is a compiled Policy.
type policy struct {
	Policy
	index      int // in plan.policies and Decision.machines
	conditions []*condition
	releases   bool // a condition has ReleaseBelow
	// services contains the cooldowns by service. Dry runs have their own services, so that
	// they never push out the cooldown of another policy.
	services *services
}

// condition is a compiled Condition.
type condition struct {
	testRef
	Condition
	monitorName string   // without parameters
	window      string   // the window's name in reports
	guard       *testRef // a test that must also hold, or nil
	guardName   string   // the guard's monitor
}

// testRef identifies a test in a unit's histories.
type testRef struct {
	monitor int // index in plan.monitors and Decision.histories
	test    int // number of the test in the monitor
}

// ratio returns value / threshold. The condition with the largest ratio is the hottest.
func (c *condition) ratio(value float64) float64 { return window.Ratio(value, c.Threshold) }

// cause returns a Cause for the condition and the given value.
func (c *condition) cause(value float64) Cause {
	return Cause{c.monitorName, value, c.Threshold, c.window, c.Monitor}
}

// newPlan compiles a valid configuration.
func newPlan(c Config, real, dryRuns *services) plan {
	p := plan{preTrigger: c.PreTrigger, minAge: c.MinAge, byService: c.CooldownByService, index: make(map[string]int)}
	index := make(map[string]int)
	for i, m := range c.Monitors {
		index[m.Name] = i
		p.monitors = append(p.monitors, monitorPlan{m.Name, window.NewMonitor(m.Kind, c.CollectionInterval)})
	}
	for _, configured := range c.Policies {
		planned := policy{Policy: configured, index: len(p.policies), services: real}
		if planned.DryRun {
			planned.services = dryRuns
		}
		for _, cond := range configured.Conditions {
			planned.conditions = append(planned.conditions, p.condition(c.Monitors, index, cond))
			planned.releases = planned.releases || cond.ReleaseBelow != nil
		}
		p.index[planned.Name] = planned.index
		p.policies = append(p.policies, planned)
	}
	return p
}

func (p *plan) condition(configured []Monitor, index map[string]int, c Condition) *condition {
	n := index[c.Monitor]
	planned := &condition{testRef: testRef{n, p.monitors[n].Add(c.Test)}, Condition: c, monitorName: plain(c.Monitor), window: c.String()}
	if m := configured[n]; m.Guard != "" {
		g := index[m.Guard]
		planned.guard, planned.guardName = &testRef{g, p.monitors[g].AddAtLeast(m.GuardAtLeast, c.Span())}, m.Guard
	}
	return planned
}

// plain returns the name of a monitor without its parameters.
func plain(monitor string) string {
	name, _, _ := strings.Cut(monitor, "(")
	return name
}

// SetPolicies replaces the policies and the monitors that the policies may use. On an
// error, the policies and the monitors stay the same.
//
// A policy continues a previous policy that has the same name and the same DryRun. It
// keeps the state, the cooldowns, the openings and the readings, even if other settings
// changed. For such a policy,
//   - an open gate closes at its planned end, or earlier if all conditions that held
//     during the opening are released. New and changed conditions count as having held;
//   - a running cooldown ends at most one new Cooldown from now;
//   - a changed baseline gets a new schedule.
//
// A monitor keeps its readings if its name and kind are unchanged. Openings by hand
// and by alert are not affected.
//
// All other previous policies are removed. Their openings close, and their cooldowns are
// forgotten. New policies begin in Watching, and apply to every unit until SetPolicy is
// called. Indices of policies refer to the new list.
func (e *Engine) SetPolicies(monitors []Monitor, policies []Policy, now time.Time) ([]Transition, error) {
	c := e.config
	c.Monitors, c.Policies = monitors, policies
	if err := c.Validate(); err != nil {
		return nil, fmt.Errorf("trigger configuration: %w", err)
	}
	e.clock.see(now)
	s := e.newChange(c, now)
	for _, u := range e.roster.live {
		s.closeRemoved(u)
	}
	e.config, e.plan = c, s.next
	e.services.replan(s)
	e.dryServices.replan(s)
	for _, u := range e.roster.byName {
		u.replan(s)
		if u.gone {
			e.roster.remember(u)
		}
	}
	e.restoreAwaited(now)
	e.roster.forgetDue(now)
	return e.take(), nil
}

// policyChange is the change from the current plan to the next plan.
type policyChange struct {
	now  time.Time
	next plan
	// from maps each policy of the next plan to the policy of the current plan that it
	// continues. to is the inverse mapping. An index of -1 means that there is no such
	// policy.
	from, to []int
	// monitors maps each monitor to its previous index. A new monitor is mapped to -1.
	monitors []int
}

func (e *Engine) newChange(c Config, now time.Time) *policyChange {
	s := &policyChange{
		now: now, next: newPlan(c, &e.services, &e.dryServices),
		to: slices.Repeat([]int{-1}, len(e.plan.policies)),
	}
	for i := range s.next.policies {
		p := &s.next.policies[i]
		n := slices.IndexFunc(e.plan.policies, func(old policy) bool { return old.Name == p.Name && old.DryRun == p.DryRun })
		s.from = append(s.from, n)
		if n >= 0 {
			s.to[n] = i
		}
	}
	for _, m := range c.Monitors {
		s.monitors = append(s.monitors, slices.IndexFunc(e.config.Monitors, func(old Monitor) bool { return old.Name == m.Name && old.Kind == m.Kind }))
	}
	return s
}

// closeRemoved closes the openings of policies that have no continuation.
func (s *policyChange) closeRemoved(u *Decision) {
	for i := range u.machines {
		m := &u.machines[i]
		if s.to[i] >= 0 || m.state != Profiling {
			continue
		}
		why := PolicyRemoved
		if slices.ContainsFunc(s.next.policies, func(p policy) bool { return p.Name == m.policy.Name }) {
			why = PolicyChanged
		}
		m.abort(s.now, why)
	}
}

// longest returns until, or the time one Cooldown after now if that is earlier.
func (p *policy) longest(until, now time.Time) time.Time {
	if latest := now.Add(p.Cooldown); until.After(latest) {
		return latest
	}
	return until
}

// replan moves a unit to the next plan.
func (u *Decision) replan(s *policyChange) {
	old := u.machines
	u.machines = make([]machine, len(s.next.policies))
	for i := range u.machines {
		m, p := &u.machines[i], &s.next.policies[i]
		if from := s.from[i]; from >= 0 {
			*m = old[from]
			m.replan(s, p)
		}
		m.unit, m.policy = u, p
	}
	clear(old) // a late profile must not begin a cooldown of a removed policy
	if u.gone {
		return
	}
	histories := u.histories
	u.histories = make([]window.History, len(s.next.monitors))
	for i, from := range s.monitors {
		if from < 0 {
			u.histories[i] = s.next.monitors[i].NewHistory()
		} else {
			u.histories[i] = s.next.monitors[i].Adopt(histories[from])
		}
	}
}

// replan adapts a copied machine to the policy p, which continues the machine's policy.
func (m *machine) replan(s *policyChange, p *policy) {
	before := m.policy
	if m.cooling() {
		m.notBefore = p.longest(m.notBefore, s.now)
	}
	if before.Baseline != p.Baseline {
		m.due = 0
	}
	o := m.opening
	if o == nil {
		return
	}
	o.machine = m
	if m.state == Profiling && !o.Baseline {
		o.held = s.held(o.held, before, p)
	}
}

// held returns, for each condition of p, whether the condition is treated as having held
// during the opening. before is the policy that p continues. was contains the state of
// the conditions of before.
func (s *policyChange) held(was []bool, before, p *policy) []bool {
	if !p.releases {
		return nil
	}
	held := make([]bool, len(p.conditions))
	for n := range held {
		from := slices.IndexFunc(before.Conditions, p.Conditions[n].equal)
		held[n] = was == nil || from < 0 || was[from]
	}
	return held
}

func (c Condition) equal(other Condition) bool {
	a, b := c.ReleaseBelow, other.ReleaseBelow
	c.ReleaseBelow, other.ReleaseBelow = nil, nil
	return c == other && (a == nil) == (b == nil) && (a == nil || *a == *b)
}

// replan moves the cooldowns by service to the indices of the next plan. It forgets the
// cooldowns of removed policies, whose openings are already closed.
func (ss *services) replan(s *policyChange) {
	for _, of := range ss.byAccount {
		kept := of.cooldowns[:0]
		for _, c := range of.cooldowns {
			if to := s.to[c.policy]; to >= 0 {
				c.policy, c.until = to, s.next.policies[to].longest(c.until, s.now)
				kept = append(kept, c)
			}
		}
		of.cooldowns = kept
		ss.keep(of)
	}
}
