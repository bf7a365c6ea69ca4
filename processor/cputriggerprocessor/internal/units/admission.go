// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package units

import (
	"time"

	"github.com/hotprofile/hotprofile/internal/trigger"
	"github.com/hotprofile/hotprofile/processor/cputriggerprocessor/internal/counters"
	"github.com/hotprofile/hotprofile/processor/cputriggerprocessor/internal/recorder"
)

// Admission holds the question to Set about a profile, its answer, and what the
// caller then does with the profile.
type Admission struct {
	// The question: the capture window.
	Start, End time.Time

	// The answer of Admit.
	Unit     *trigger.Unit
	Openings []*trigger.Opening     // that admit the profile, the one that fired first in front
	Shut     counters.SampleOutcome // of a profile that is neither admitted nor recorded
	Wanted   bool                   // it is recorded if it is not admitted
	Queued   bool                   // records of the unit are being sent: it is recorded behind them

	// What becomes of it, for Reserve and Settle.
	Samples, Bytes int
	Leaves         bool               // by Openings
	Dry            []*trigger.Opening // of dry runs that would have passed it
}

// admit answers for the profiles of one unit, which is here or was.
func (s *Set) admit(u *trigger.Unit, here bool, now time.Time, profiles []Admission) {
	queued, wanted, shut := s.cfg.Recorder.Sending(u), here && s.cfg.Recorder.Wants(u, now), recorder.ShutOutcome(u, false)
	for i := range profiles {
		p := &profiles[i]
		p.Openings = u.Admit(p.Openings, p.Start, p.End)
		p.Unit, p.Queued, p.Shut = u, queued, shut
		p.Wanted = wanted && s.cfg.Recorder.Keeps(p.End, now)
	}
}

// settle counts a profile for its openings.
func (s *Set) settle(p *Admission, err error, why string, again bool, now time.Time) {
	for _, o := range p.Dry {
		o.Accepted(p.Samples, p.Bytes)
	}
	if !p.Leaves {
		return
	}
	if s.cfg.LimitBytes {
		s.promised -= p.Bytes
		if err == nil {
			s.cfg.Engine.SpendBytes(p.Bytes, now)
		}
	}
	for _, o := range p.Openings {
		switch {
		case err == nil:
			if o.Profiles == 0 { // from now on a cooldown follows
				s.began = true
				s.notify()
			}
			o.Accepted(p.Samples, p.Bytes)
		case !again:
			o.Refuse(why)
		}
	}
}
