// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package trigger

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/hotprofile/hotprofile/internal/trigger/budget"
	"github.com/hotprofile/hotprofile/internal/trigger/window"
)

// Monitor describes a series of readings.
type Monitor struct {
	// Name is what items call it, as cpu_utilization.
	Name string
	// Scale turns ΔNum/ΔDen into the monitor's unit: 100 for percent. Zero
	// stands for 1.
	Scale float64
	// Gauge says that Reading.Num is a momentary value, not a cumulative one.
	Gauge bool
	// Sparse says that Den may stand still, as when no CFS period began: such a
	// reading is 0 and weighs nothing in a mean.
	Sparse bool
	// Guard names the monitor that items of this one depend on: they hold only
	// while its mean over the item's own span is at least GuardAtLeast. It is
	// for what is the same for all units, as the host's load: it counts for a
	// unit only while that unit has a share in it. Empty: none.
	Guard        string
	GuardAtLeast float64
}

// Condition is one test on one monitor. Exactly one of AverageOver and Period with
// Count is set.
type Condition struct {
	Monitor string
	// Threshold is in the monitor's unit; the test holds strictly above it.
	Threshold float64
	// AverageOver tests the mean over this span.
	AverageOver time.Duration
	// Period and Count test that at least Count of the readings in the last
	// Period are above.
	Period time.Duration
	Count  int
	// ReleaseBelow, at most the threshold, closes the gate early: the item is
	// released while its mean is below, or at least Count of the readings in
	// Period are. So it is, with ReleaseBelow set, while its monitor's guard
	// says that the unit has no share in it. Nil: the gate stays open for the
	// policy's Duration.
	ReleaseBelow *float64
}

// Window names the condition's test as it is reported: "30s average", "8 of 10s".
func (c Condition) Window() string { return c.test().String() }

func (c Condition) test() window.Test {
	return window.Test{Threshold: c.Threshold, AverageOver: c.AverageOver, Period: c.Period, Count: c.Count, ReleaseBelow: c.ReleaseBelow}
}

// Policy opens the gate of a unit for Duration when any of its items holds, and
// then leaves it shut for Cooldown.
type Policy struct {
	Name       string
	Conditions []Condition
	Duration   time.Duration
	Cooldown   time.Duration
	// DryRun goes through all transitions, with openings that say so, and
	// changes nothing of another policy: it takes no place in a budget and
	// makes no unit hot. Its gate closes as if what it let out were accepted.
	DryRun bool
	// Baseline opens the gate while the unit is cool.
	Baseline Baseline
}

// Baseline lets out a window of Duration each Every while no item of its policy
// holds, so that a hot profile has something to be compared with. The zero
// value: none.
type Baseline struct {
	Every, Duration time.Duration
}

// Manual is the monitor and policy name of a gate opened by hand.
const Manual = "manual"

// Config is what an Engine decides by. It does not change while it is used.
type Config struct {
	Monitors []Monitor
	Policies []Policy
	// CollectionInterval is the time between two readings of a monitor.
	CollectionInterval time.Duration
	// History is the span kept of each monitor. Zero: the longest window of
	// any item that uses it.
	History time.Duration
	// PreTrigger is how long before the trigger a profile may have ended and
	// still pass.
	PreTrigger time.Duration
	// MinAge is how long after its first process started a unit begins to fire.
	MinAge time.Duration
	// Budgets bound what is opened and let out.
	Budgets budget.Limits
	// CooldownByService has a cooldown count for all units of the service: none
	// of them opens by a policy while another is open by it or cools down.
	CooldownByService bool
	// MaxGone bounds the units that are gone but whose cooldown or closed gate
	// is remembered; at the bound the one that would be forgotten first goes.
	// Zero: 10,000.
	MaxGone int
	// NewID names an opening, uniquely. Nil: "1", "2" and so on.
	NewID func() string
}

// Validate reports every fault, each with the path of the configuration key
// and what is allowed there.
func (c Config) Validate() error {
	var errs []error
	fault := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }

	if c.CollectionInterval <= 0 {
		fault("collection_interval: %v is not allowed: must be above 0", c.CollectionInterval)
	}
	if c.PreTrigger < 0 {
		fault("pre_trigger: %v is not allowed: must be 0 or more", c.PreTrigger)
	}
	if c.MaxGone < 0 {
		fault("remembered units: %d is not allowed: must be 0 or more", c.MaxGone)
	}
	if c.MinAge < 0 {
		fault("min_age: %v is not allowed: must be 0 (off) or more", c.MinAge)
	}
	errs = append(errs, c.Budgets.Validate()...)
	switch longest := c.longestWindow(); {
	case c.History < 0:
		fault("history: %v is not allowed: must be 0 (the longest window) or more", c.History)
	case c.History > 0 && c.History < longest:
		fault("history: %v is shorter than the longest window of a policy: must be at least %v", c.History, longest)
	case c.CollectionInterval > 0 && c.History/c.CollectionInterval > window.MaxReadings:
		fault("history: %v is not allowed: must be at most %d collection intervals (%v)", c.History, window.MaxReadings, window.MaxReadings*c.CollectionInterval)
	}

	monitors := make(map[string]bool, len(c.Monitors))
	names := make([]string, 0, len(c.Monitors))
	for _, m := range c.Monitors {
		if monitors[m.Name] {
			fault("monitor %q is defined twice", m.Name)
		}
		if !finite(m.Scale) || m.Scale < 0 {
			fault("monitor %q: scale %v is not allowed: must be a positive number", m.Name, m.Scale)
		}
		monitors[m.Name] = true
		names = append(names, m.Name)
	}
	for _, m := range c.Monitors {
		if m.Guard != "" && (m.Guard == m.Name || !monitors[m.Guard]) {
			fault("monitor %q: guard %q is not another monitor", m.Name, m.Guard)
		}
		if !finite(m.GuardAtLeast) || m.GuardAtLeast < 0 {
			fault("monitor %q: guard at least %v is not allowed: must be a number, 0 or more", m.Name, m.GuardAtLeast)
		}
	}

	first := make(map[string]int, len(c.Policies))
	for p, policy := range c.Policies {
		at := fmt.Sprintf("policies[%d]", p)
		switch q, taken := first[policy.Name]; {
		case policy.Name == "":
			fault("%s.name: must not be empty", at)
		case policy.Name == Manual:
			fault("%s.name: %q is not allowed: it is the name of what is opened by hand", at, policy.Name)
		case strings.Contains(policy.Name, ","):
			fault("%s.name: %q is not allowed: must not contain a comma, which separates names where several policies are reported", at, policy.Name)
		case taken:
			fault("%s.name: %q is the name of policies[%d] too: names must be unique", at, policy.Name, q)
		default:
			first[policy.Name] = p
		}
		if policy.Duration <= 0 {
			fault("%s.duration: %v is not allowed: must be above 0", at, policy.Duration)
		}
		if policy.Cooldown < 0 {
			fault("%s.cooldown: %v is not allowed: must be 0 or more", at, policy.Cooldown)
		}
		errs = append(errs, policy.Baseline.validate(at+".baseline")...)
		if len(policy.Conditions) == 0 {
			fault("%s.any_of: must have at least one item", at)
		}
		for i, item := range policy.Conditions {
			key := fmt.Sprintf("%s.any_of[%d]", at, i)
			if !monitors[item.Monitor] {
				fault("%s.monitor: %q is not a monitor: must be one of %s", key, item.Monitor, strings.Join(names, ", "))
			}
			errs = append(errs, item.test().Validate(key, c.CollectionInterval)...)
		}
	}
	return errors.Join(errs...)
}

func (b Baseline) validate(at string) (errs []error) {
	switch {
	case b == Baseline{}:
	case b.Every <= 0:
		errs = append(errs, fmt.Errorf("%s.every: %v is not allowed: must be above 0 where duration is set", at, b.Every))
	case b.Duration <= 0:
		errs = append(errs, fmt.Errorf("%s.duration: %v is not allowed: must be above 0 where every is set", at, b.Duration))
	case b.Duration >= b.Every:
		errs = append(errs, fmt.Errorf("%s.duration: %v is not allowed: must be less than every (%v)", at, b.Duration, b.Every))
	}
	return errs
}

func (c Config) longestWindow() (longest time.Duration) {
	for _, p := range c.Policies {
		for _, i := range p.Conditions {
			longest = max(longest, i.test().Span())
		}
	}
	return longest
}

func finite(f float64) bool { return !math.IsNaN(f) && !math.IsInf(f, 0) }
