// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package units

import (
	"time"

	"github.com/hotprofile/hotprofile/internal/otlpprofiles/dictionary"
	"github.com/hotprofile/hotprofile/internal/trigger"
	"github.com/hotprofile/hotprofile/processor/cputriggerprocessor/internal/counters"
	"github.com/hotprofile/hotprofile/processor/cputriggerprocessor/internal/recorder"
)

// Route is the destination of a profile.
type Route uint8

// These are the routes of profiles.
const (
	Dropped  Route = iota
	Passed         // to the next component, without a reason
	Stamped        // to the next component, with a reason that replaces any earlier reason
	Recorded       // to the recorder
	HeldBack       // dropped after it was stamped, because max_bytes_per_hour does not allow it
)

// Verdict is the decision about one profile, with the data that led to the decision.
type Verdict struct {
	// ProfileRef is the profile. After the profile was copied, ProfileRef is the copy.
	dictionary.ProfileRef

	Start, End     time.Time // the capture window
	Samples, Bytes int

	// Admit sets the following fields, except Linked.
	Unit     *trigger.Decision
	Openings []*trigger.Opening     // openings that admit the profile, starting with the opening that fired first
	Shut     counters.SampleOutcome // outcome of a profile that is not admitted and not recorded
	Wanted   bool                   // the profile is recorded if it is not admitted
	Queued   bool                   // records of the unit are due, so an admitted profile is recorded behind them
	CanWait  bool                   // the profile is recorded if its links need spans
	Linked   bool                   // its samples have links to spans that may pass through the processor

	Route   Route
	Outcome counters.SampleOutcome // outcome, unless the next component refuses the profile
	Dry     []*trigger.Opening     // openings of dry runs that would have passed the profile
	Labels  int32                  // index of a stamped profile's labels in the stamper
}

// admit prepares the verdicts about the profiles of one unit. The argument here is false if
// the unit is gone.
func (s *Set) admit(u *trigger.Decision, here bool, now time.Time, verdicts []*Verdict) {
	queued, wanted, shut := s.cfg.Recorder.Sending(u), here && s.cfg.Recorder.Wants(u, now), recorder.ShutOutcome(u, false)
	for _, v := range verdicts {
		v.Openings = u.Admit(v.Openings, v.Start, v.End)
		v.Unit, v.Queued, v.Shut, v.CanWait = u, queued, shut, s.cfg.Recorder.CanWait()
		v.Wanted = wanted && s.cfg.Recorder.Keeps(v.End, now)
	}
}

// settle counts a profile for its openings. If err is nil, the profile counts as accepted.
// Otherwise it counts as refused, unless again is true.
func (s *Set) settle(v *Verdict, err error, why string, again bool, now time.Time) {
	for _, o := range v.Dry {
		o.Accepted(v.Samples, v.Bytes)
	}
	if v.Route != Stamped {
		return
	}
	s.promised -= v.Bytes
	if err == nil {
		s.cfg.Engine.SpendBytes(v.Bytes, now)
	}
	for _, o := range v.Openings {
		switch {
		case err == nil:
			if o.Profiles == 0 { // the opening now causes a cooldown, which must be saved
				s.began = true
				s.notify()
			}
			o.Accepted(v.Samples, v.Bytes)
		case !again:
			o.Refuse(why)
		}
	}
}
