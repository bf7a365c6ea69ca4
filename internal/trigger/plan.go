// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package trigger

import (
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
