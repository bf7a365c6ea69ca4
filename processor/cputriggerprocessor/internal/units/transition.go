// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package units

import (
	"time"

	"go.opentelemetry.io/otel/attribute"

	"github.com/hotprofile/hotprofile/internal/token"
	"github.com/hotprofile/hotprofile/internal/trigger"
	"github.com/hotprofile/hotprofile/internal/trigger/budget"
)

// heldBackEpisode is the minimum time without held-back profiles before the log reports
// held-back profiles again.
const heldBackEpisode = time.Minute

// Transition is a transition to report. Its values were copied at the time of the
// transition.
type Transition struct {
	trigger.Transition
	Service                 string
	Resource                []attribute.KeyValue // of the unit; not to be changed
	ResourceDropped         int                  // number of resource attributes that were not kept
	UserShare               float64              // below 0: not known
	Until                   time.Time
	Others                  []string // other policies that hold the gate open
	Samples, Bytes, Refused int
	WhyRefused              string
	// HeldBack is true if the value reports held-back profiles instead of a transition. In
	// this case, the gate stays open. OverBudget is true if profiles were held back during
	// this opening.
	HeldBack, OverBudget bool
}

// report queues transitions with the values of their units and openings.
func (s *Set) report(ts []trigger.Transition) {
	for _, t := range ts {
		out := Transition{Transition: t, UserShare: -1}
		if u, ok := s.byName[t.Unit.Name()]; ok {
			out.Service, out.UserShare = u.serviceName(), u.userShare
			out.Resource, out.ResourceDropped = s.resources.of(u), u.resource.Dropped
			out.OverBudget = u.heldBack != "" && t.Opening != nil && u.heldBack == t.Opening.ID
		}
		if o := t.Opening; o != nil {
			out.Until = o.Until()
			out.Samples, out.Bytes, out.Refused, out.WhyRefused = o.Samples, o.Bytes, o.Refused, o.WhyRefused
			if t.To == trigger.Profiling {
				out.Others = others(t.Unit, o)
			}
		}
		s.pending = append(s.pending, out)
	}
	if len(ts) > 0 {
		s.notify()
	}
}

func (s *Set) notify() { token.Put(s.changed) }

// others returns the policies of a unit's other openings. It lists dry runs only for an
// opening of a dry run.
func others(u *trigger.Decision, o *trigger.Opening) (out []string) {
	for _, other := range u.Openings(nil) {
		if other != o && (o.DryRun || !other.DryRun) {
			out = append(out, other.Policy)
		}
	}
	return out
}

// affords reports whether max_bytes_per_hour allows an opening to send more bytes. It
// queues one report per episode in which profiles are held back.
func (s *Set) affords(o *trigger.Opening, bytes int, now time.Time) bool {
	if s.cfg.Engine.Affords(bytes, now) {
		return true
	}
	u := s.byName[o.Unit]
	if u == nil { // the unit is gone, and the profile is late
		return false
	}
	if now.Sub(s.heldBackAt) > heldBackEpisode {
		s.pending = append(s.pending, Transition{
			Transition: trigger.Transition{Time: now, Unit: u.decision, Policy: o.Policy, Opening: o, Budget: budget.MaxBytesPerHour},
			Service:    u.serviceName(), HeldBack: true,
		})
		s.notify()
	}
	u.heldBack, s.heldBackAt = o.ID, now
	return false
}
