// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package trigger

import (
	"time"

	"github.com/hotprofile/hotprofile/internal/trigger/window"
)

// A plan is a Config, worked out once.

type monitorPlan struct {
	name string
	*window.Monitor
}

// testRef finds a test in a unit's histories.
type testRef struct {
	monitor int // index in Engine.monitors and Unit.histories
	test    int // its number there
}

// condition is a Condition, worked out once.
type condition struct {
	testRef
	monitorName string
	threshold   float64
	window      string // as it is reported
	span        time.Duration
	releases    bool
	guard       *testRef // a test that must hold too, or nil
	guardName   string   // its monitor
}

// ratio orders conditions by how hot they are.
func (c *condition) ratio(value float64) float64 { return window.Ratio(value, c.threshold) }

// cause reports the condition with a value.
func (c *condition) cause(value float64) Cause {
	return Cause{c.monitorName, value, c.threshold, c.window}
}

// policy is a Policy, worked out once.
type policy struct {
	name               string
	duration, cooldown time.Duration
	conditions         []condition
	releases           bool // a condition has ReleaseBelow
	dryRun             bool
	baseline           Baseline
}

// plan compiles a valid configuration. The last policy is the one of openings by
// hand, which has no conditions.
func plan(c Config) (monitors []monitorPlan, policies []policy) {
	index := make(map[string]int)
	for i, m := range c.Monitors {
		index[m.Name] = i
		k := window.Kind{Scale: m.Scale, Gauge: m.Gauge, Sparse: m.Sparse}
		monitors = append(monitors, monitorPlan{m.Name, window.NewMonitor(k, c.CollectionInterval, c.History)})
	}
	for _, p := range c.Policies {
		planned := policy{name: p.Name, duration: p.Duration, cooldown: p.Cooldown, dryRun: p.DryRun, baseline: p.Baseline}
		for _, cond := range p.Conditions {
			n := index[cond.Monitor]
			test := cond.test()
			pc := condition{
				testRef: testRef{n, monitors[n].Add(test)}, monitorName: cond.Monitor,
				threshold: cond.Threshold, window: test.String(), span: test.Span(), releases: cond.ReleaseBelow != nil,
			}
			if m := c.Monitors[n]; m.Guard != "" {
				g := index[m.Guard]
				pc.guard, pc.guardName = &testRef{g, monitors[g].AddAtLeast(m.GuardAtLeast, test.Span())}, m.Guard
			}
			planned.conditions = append(planned.conditions, pc)
			planned.releases = planned.releases || pc.releases
		}
		policies = append(policies, planned)
	}
	return monitors, append(policies, policy{name: Manual})
}
