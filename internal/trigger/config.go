// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package trigger

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hotprofile/hotprofile/internal/trigger/budget"
	"github.com/hotprofile/hotprofile/internal/trigger/window"
)

// Monitor describes the readings of a monitor.
type Monitor struct {
	// Name is the monitor's name in conditions, such as cpu_utilization. It may have
	// parameters in parentheses. Reports omit the parameters.
	Name string
	window.Kind
	// Guard is the name of another monitor. A condition on this monitor holds only while
	// the guard's mean over the condition's span is at least GuardAtLeast. Host-wide
	// monitors have a guard, because they matter to a unit only if the unit contributes
	// to the load. If Guard is empty, the monitor has no guard.
	Guard        string
	GuardAtLeast float64
}

// Condition is one test on one monitor. A condition with ReleaseBelow is released when its
// test is released or its monitor's guard fails. An opening closes early when all conditions
// that held during the opening are released. A condition without ReleaseBelow is never
// released. If it held during an opening, the opening lasts for the policy's Duration.
type Condition struct {
	Monitor string
	window.Test
}

// Policy opens the gate of a unit for Duration when any of its conditions holds. It does
// not open the gate again until Cooldown has passed.
type Policy struct {
	Name       string
	Conditions []Condition
	Duration   time.Duration
	Cooldown   time.Duration
	// DryRun makes the policy a dry run. A dry run makes all transitions, but does not
	// affect other policies, uses no budget and makes no unit hot. It cools down as if its
	// profiles had been accepted.
	DryRun bool
	// Baseline opens the gate while the unit is cool.
	Baseline Baseline
	// Types lists the types of profiles that pass. The engine does not evaluate Types, but
	// copies it to each opening.
	Types []string
}

// Baseline opens the gate for Duration once per Every while no condition of the policy
// holds. Profiles of a hot unit can then be compared with profiles of the cool unit. The
// zero value disables baselines.
type Baseline struct {
	Every    time.Duration `mapstructure:"every"`
	Duration time.Duration `mapstructure:"duration"`
}

// Manual is the monitor name and the policy name of an opening that a person requests.
const Manual = "manual"

// Config configures an Engine. Only SetPolicies changes the configuration of an engine.
type Config struct {
	Monitors []Monitor
	Policies []Policy
	// CollectionInterval is the time between two readings of a monitor.
	CollectionInterval time.Duration
	// PreTrigger is the length of the period before the trigger. Profiles that
	// ended in this period pass too.
	PreTrigger time.Duration
	// MinAge is the minimum age of a unit's first process. Policies do not open
	// the gate of a younger unit.
	MinAge time.Duration
	// Budgets limit the openings and exports of all units.
	Budgets budget.Limits
	// CooldownByService applies a cooldown to all units of the service. While a
	// policy is open or cooling down for one unit, it does not open the gate of any
	// other unit of the service.
	CooldownByService bool
	// MaxGone is the maximum number of gone units that are remembered for a cooldown or a
	// closed opening. If the maximum is exceeded, the unit that would expire first is removed.
	// Zero means 10,000.
	MaxGone int
	// NewID returns a unique ID for an opening. If NewID is nil, the IDs
	// are "1", "2" and so on.
	NewID func() string
}

// faults collects configuration errors.
type faults []error

func (f *faults) add(format string, args ...any) { *f = append(*f, fmt.Errorf(format, args...)) }

// Validate returns all faults of the policies, the budgets and the collection interval.
// Each fault contains the path of the configuration key and the allowed values.
func (c Config) Validate() error {
	var f faults
	if c.CollectionInterval <= 0 {
		f.add("collection_interval: %v is not allowed: must be above 0", c.CollectionInterval)
	}
	f = append(f, c.Budgets.Validate()...)
	var monitors []string
	for _, m := range c.Monitors {
		monitors = append(monitors, m.Name)
	}
	for i, p := range c.Policies {
		c.validatePolicy(&f, i, p, monitors)
	}
	return errors.Join(f...)
}

// validatePolicy checks the policy with the index n.
func (c Config) validatePolicy(f *faults, n int, p Policy, monitors []string) {
	at := fmt.Sprintf("policies[%d]", n)
	switch first := slices.IndexFunc(c.Policies, func(other Policy) bool { return other.Name == p.Name }); {
	case p.Name == "":
		f.add("%s.name: must not be empty", at)
	case p.Name == Manual:
		f.add("%s.name: %q is not allowed: it is the name of what is opened by hand", at, p.Name)
	case strings.Contains(p.Name, ","):
		f.add("%s.name: %q is not allowed: must not contain a comma, which separates names where several policies are reported", at, p.Name)
	case first < n:
		f.add("%s.name: %q is the name of policies[%d] too: names must be unique", at, p.Name, first)
	}
	if p.Duration <= 0 {
		f.add("%s.duration: %v is not allowed: must be above 0", at, p.Duration)
	}
	if p.Cooldown < 0 {
		f.add("%s.cooldown: %v is not allowed: must be 0 or more", at, p.Cooldown)
	}
	p.Baseline.validate(f, at+".baseline")
	if len(p.Conditions) == 0 {
		f.add("%s.any_of: must have at least one item", at)
	}
	for i, cond := range p.Conditions {
		key := fmt.Sprintf("%s.any_of[%d]", at, i)
		if !slices.Contains(monitors, cond.Monitor) {
			f.add("%s.monitor: %q is not a monitor: must be one of %s", key, cond.Monitor, strings.Join(monitors, ", "))
		}
		*f = append(*f, cond.Validate(key, c.CollectionInterval)...)
	}
}

func (b Baseline) validate(f *faults, at string) {
	switch {
	case b == Baseline{}:
	case b.Every <= 0:
		f.add("%s.every: %v is not allowed: must be above 0 where duration is set", at, b.Every)
	case b.Duration <= 0:
		f.add("%s.duration: %v is not allowed: must be above 0 where every is set", at, b.Duration)
	case b.Duration >= b.Every:
		f.add("%s.duration: %v is not allowed: must be less than every (%v)", at, b.Duration, b.Every)
	}
}
