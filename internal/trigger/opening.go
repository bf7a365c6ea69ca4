// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package trigger

import (
	"slices"
	"strings"
	"time"
)

// Cause is the item that made a policy fire, as it was at that moment. With
// several items holding it is the one with the largest value / threshold.
type Cause struct {
	Monitor   string
	Value     float64
	Threshold float64
	Window    string // "30s average" or "8 of 10s"
}

// Opening is one stay of a gate in Profiling. It outlives the gate's closing by
// as long as late profiles of its time are let through.
type Opening struct {
	Cause
	ID     string
	Unit   string
	Policy string

	// FiredAt is the trigger's moment, Until when the gate is due to close.
	FiredAt, Until time.Time
	// DryRun: nothing is let out by it. Baseline: opened while cool. Manual:
	// opened by hand.
	DryRun, Baseline, Manual bool
	// ClosedAt is when the gate closed; zero while it is open.
	ClosedAt time.Time

	// Profiles, Samples and Bytes count what the next component accepted,
	// Refused the profiles that it did not.
	Profiles, Samples, Bytes, Refused int
	// WhyRefused is what the next component said last when it did not accept one.
	WhyRefused string

	preTrigger time.Duration
	unit       *Unit
	policy     int
	held       []bool   // the policy's items that held since it fired, where it may be released
	service    *service // which the opening keeps from others of its policy, or nil
}

// real says that profiles are let out by the opening.
func (o *Opening) real() bool { return !o.DryRun }

// hot says that the opening is for what is hot, or was asked for.
func (o *Opening) hot() bool { return !o.DryRun && !o.Baseline }

// cools says that a cooldown follows the opening if a profile is accepted.
func (o *Opening) cools() bool { return !o.Baseline && !o.Manual }

// Phase is where a profile's capture window lies against a trigger.
type Phase string

// The phases of a profile.
const (
	Before Phase = "before" // it ended by the trigger's moment
	After  Phase = "after"  // it started then or later
	Both   Phase = "both"   // it holds the moment

	BaselinePhase Phase = "baseline" // there is no moment: the unit was cool
)

// Phase places a capture window [start, end) against the trigger.
func (o *Opening) Phase(start, end time.Time) Phase {
	switch {
	case o.Baseline:
		return BaselinePhase
	case !start.Before(o.FiredAt):
		return After
	case !end.After(o.FiredAt):
		return Before
	default:
		return Both
	}
}

// admits says whether a profile captured in [start, end) belongs to the
// opening: it ended after the trigger less the time kept from before it, and
// started before the gate closed. When the gate is overdue to close, it has.
func (o *Opening) admits(start, end time.Time) bool {
	closed := o.ClosedAt
	if closed.IsZero() {
		closed = o.Until
	}
	return end.After(o.FiredAt.Add(-o.preTrigger)) && start.Before(closed)
}

// Accepted counts a profile that the next component accepted. A first one that
// comes after the gate closed with nothing let out starts the cooldown after
// all; the next Evaluate reports that.
func (o *Opening) Accepted(samples, bytes int) {
	o.Profiles++
	o.Samples += samples
	o.Bytes += bytes
	if g := &o.unit.gates[o.policy]; o.cools() && o.Profiles == 1 && g.state == Watching && g.opening == o {
		o.unit.engine.coolAfterAll(o.unit, g)
	}
}

// Refuse counts a profile that the next component did not accept, and keeps why.
func (o *Opening) Refuse(why string) {
	o.Refused++
	o.WhyRefused = why
}

// Admit appends the openings that let through a profile captured in
// [start, end), the one that fired first in front (ties by policy name) and
// baselines behind the others: the first one's reason is the profile's. Nothing
// appended means that the gate was shut; dry runs let nothing out.
func (u *Unit) Admit(dst []*Opening, start, end time.Time) []*Opening {
	from := len(dst)
	for _, o := range u.closed {
		if o.admits(start, end) {
			dst = append(dst, o)
		}
	}
	for i := range u.gates {
		if g := &u.gates[i]; g.state == Profiling && g.opening.admits(start, end) {
			dst = append(dst, g.opening)
		}
	}
	if len(dst)-from > 1 {
		slices.SortFunc(dst[from:], func(a, b *Opening) int {
			if a.Baseline != b.Baseline {
				if a.Baseline {
					return 1
				}
				return -1
			}
			if c := a.FiredAt.Compare(b.FiredAt); c != 0 {
				return c
			}
			return strings.Compare(a.Policy, b.Policy)
		})
	}
	return dst
}

// Openings appends the gates of the unit that are open.
func (u *Unit) Openings(dst []*Opening) []*Opening {
	for i := range u.gates {
		if g := &u.gates[i]; g.state == Profiling {
			dst = append(dst, g.opening)
		}
	}
	return dst
}
