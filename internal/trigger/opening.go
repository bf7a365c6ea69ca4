// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package trigger

import (
	"cmp"
	"sync/atomic"
	"time"

	"github.com/hotprofile/hotprofile/internal/trigger/order"
)

// Cause is the condition that made a policy fire, with its value at that moment. If several
// conditions held, Cause is the condition with the largest ratio of value to threshold.
type Cause struct {
	Monitor   string // without parameters
	Value     float64
	Threshold float64
	Window    string // "30s average" or "8 of 10s"
	Key       string // the monitor with its parameters, as in Monitor.Name
}

// Opening is one opening of a gate by a policy, by hand or by an alert. After the opening has
// closed, it is kept for as long as it can admit late profiles.
type Opening struct {
	Cause
	ID     string
	Unit   string
	Policy string
	Types  []string // the policy's Types at the opening; they do not change

	// FiredAt is the time of the trigger.
	FiredAt time.Time
	// DryRun reports whether the opening exports no profiles. Baseline reports whether it is
	// a baseline of a cool unit. Manual reports whether a person or an alert opened the gate.
	// Alert is the key of the alert that opened the gate, or empty if no alert opened it.
	DryRun, Baseline, Manual bool
	Alert                    string
	// LostUnit becomes true if an alert caused the opening and the unit disappears
	// before the opening ends. It is nil for openings without an alert. It may be read
	// at any time.
	LostUnit *atomic.Bool
	// ClosedAt is zero while the opening is open. It is never after Until.
	ClosedAt time.Time

	// Profiles, Samples and Bytes count the profiles that the next component accepted.
	// Refused counts the profiles that the next component did not accept.
	Profiles, Samples, Bytes, Refused int
	// WhyRefused is the last error of the next component.
	WhyRefused string

	length     int64 // from FiredAt to Until, in nanoseconds; it may grow while Until reads it
	number     int   // sequence number of the opening in the engine
	preTrigger time.Duration
	machine    *machine
	held       []bool   // for each condition, whether it held during the opening; nil without ReleaseBelow
	service    *service // the service that the opening holds; nil if it holds no service
}

// Until returns the planned end of the opening, which is after FiredAt. It may be called at
// any time. An opening by hand may be prolonged.
func (o *Opening) Until() time.Time {
	return o.FiredAt.Add(time.Duration(atomic.LoadInt64(&o.length)))
}

// prolong moves the planned end of the opening.
func (o *Opening) prolong(until time.Time) {
	atomic.StoreInt64(&o.length, int64(until.Sub(o.FiredAt)))
}

// real reports whether the opening exports profiles.
func (o *Opening) real() bool { return !o.DryRun }

// hot reports whether the opening is for a hot unit or was made by hand or by an alert.
func (o *Opening) hot() bool { return !o.DryRun && !o.Baseline }

// cools reports whether a cooldown follows when a profile of the opening is accepted.
func (o *Opening) cools() bool { return !o.Baseline && !o.Manual }

// Kind classifies openings. It has few values, so backends can use it as an attribute of
// metrics.
type Kind string

// These are the kinds of openings.
const (
	HotKind      Kind = "hot"      // a condition of a policy held
	BaselineKind Kind = "baseline" // the unit was cool
	ManualKind   Kind = Manual     // a person opened the gate
	AlertKind    Kind = "alert"    // an alert opened the gate
)

// Kind returns the opening's kind.
func (o *Opening) Kind() Kind {
	switch {
	case o.Baseline:
		return BaselineKind
	case o.Alert != "":
		return AlertKind
	case o.Manual:
		return ManualKind
	}
	return HotKind
}

// Phase is the position of a profile's capture window relative to a trigger.
type Phase string

// These are the phases of a profile.
const (
	Before Phase = "before" // the profile ended by the time of the trigger
	After  Phase = "after"  // the profile started at the time of the trigger or later
	Both   Phase = "both"   // the profile contains the time of the trigger

	BaselinePhase Phase = "baseline" // the unit was cool, so there was no trigger
)

// Phase returns the phase of a capture window [start, end).
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

// admits reports whether a profile captured in [start, end) belongs to the opening. The
// profile must end after FiredAt minus PreTrigger. It must start before the opening
// closed or, while it is open, before its planned end.
func (o *Opening) admits(start, end time.Time) bool {
	closed := o.ClosedAt
	if closed.IsZero() {
		closed = o.Until()
	}
	return end.After(o.FiredAt.Add(-o.preTrigger)) && start.Before(closed)
}

// before orders the openings that admit a profile. Baselines come last. Other openings are
// ordered by FiredAt. Openings that fired in the same evaluation are ordered by number,
// because the hottest opening gets the smallest number.
func (o *Opening) before(other *Opening) int {
	return cmp.Or(order.Bools(o.Baseline, other.Baseline), o.FiredAt.Compare(other.FiredAt), cmp.Compare(o.number, other.number))
}

// Accepted counts a profile that the next component accepted. If the opening has already
// closed, its first profile starts the cooldown. The next Evaluate reports the cooldown.
func (o *Opening) Accepted(samples, bytes int) {
	o.Profiles++
	o.Samples += samples
	o.Bytes += bytes
	if m := o.machine; o.cools() && o.Profiles == 1 && m.state == Watching && m.opening == o {
		m.coolDownLate()
	}
}

// Refuse counts a profile that the next component did not accept.
func (o *Opening) Refuse(why string) {
	o.Refused++
	o.WhyRefused = why
}
