// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"context"
	"encoding/json"
	"time"

	"github.com/google/pprof/profile"
	"go.uber.org/zap"

	"github.com/hotprofile/hotprofile/extension/consoleextension/internal/profilefiles"
	"github.com/hotprofile/hotprofile/internal/otlpprofiles/attr"
)

// These are the keys of Usage.Dropped that concern samples of profiles. More keys are in
// package profilefiles.
const (
	// droppedNoOpening counts samples without the attributes of a gate.
	droppedNoOpening = "samples that passed no gate"
	// droppedNotKept counts samples of an opening that the store does not keep.
	// Either there is no room for the unit of the opening, or an opening of
	// another unit has the same ID.
	droppedNotKept = "samples of openings that are not kept"
)

// keepProfiles reports whether the store keeps profiles that were found on disk for an
// opening. If the database does not contain the opening, keepProfiles adds the opening
// unless the opening is old. An old opening is missing if the collector was killed after it
// deleted the record and before it deleted the profiles.
func (s *Store) keepProfiles(description []byte, end time.Time) (profilefiles.Opening, bool) {
	var of Opening
	if json.Unmarshal(description, &of) != nil {
		return profilefiles.Opening{}, false
	}
	oldest := s.options.Now().Add(-s.options.MaxAge)
	kept := s.openings[of.ID] != nil || (end.After(oldest) || of.Triggered.After(oldest)) && s.PutOpening(of)
	return profilefiles.Opening{ID: of.ID, Triggered: of.Triggered, Until: of.Until}, kept
}

// AddSamples adds samples to the profile of an opening, which the attributes of the profile
// describe. If samples arrive faster than the disk writes them, AddSamples waits for the
// disk for at most one second. Samples that do not fit are counted in Usage.Dropped and in
// ProfileInfo.Truncated. Samples that passed no gate are also counted, and a warning is
// logged once.
func (s *Store) AddSamples(of Opening, in profilefiles.Samples) {
	if !validID(of.ID) || of.Unit.Name == "" {
		s.drop(droppedNoOpening, in.Part.Events(0))
		s.noGate.Do(func() {
			s.log.Warn("console drops profiles that passed no gate: add cpu_trigger to the pipeline that exports profiles to console, or to that of the sender",
				zap.String("service", of.Unit.Resource[attr.ServiceName]), zap.String("trigger_id", cutText(of.ID, 64)))
		})
		return
	}
	to, kept := s.sampled(of)
	if !kept {
		s.drop(droppedNotKept, in.Part.Events(0))
		return
	}
	s.profiles.Add(to, in)
}

// sampled returns the opening that samples belong to. It adds or updates the opening if the
// samples are the first ones of the opening, or if they know a later end. It returns false
// if the opening is not kept.
func (s *Store) sampled(of Opening) (profilefiles.Opening, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	is := s.openings[of.ID]
	if is == nil || !is.sampled || is.unit.Host != of.Unit.Host || is.unit.Name != of.Unit.Name || of.Until.After(is.Until) {
		if is = s.putOpening(of); is == nil {
			return profilefiles.Opening{}, false
		}
		is.sampled = true
	}
	description := is.Opening
	description.Unit = is.unit.Unit
	return profilefiles.Opening{ID: is.ID, Triggered: is.Triggered, Until: is.Until, Description: description}, true
}

// validID reports whether id may be the ID of an opening. IDs of openings are part of
// URLs.
func validID(id string) bool {
	for _, c := range []byte(id) {
		if (c < '0' || c > '9') && (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && c != '-' && c != '_' {
			return false
		}
	}
	return id != "" && len(id) <= 64
}

// Profile implements Reader.
func (s *Store) Profile(ctx context.Context, opening string, of ProfileKey) (*profile.Profile, error) {
	return s.profiles.Profile(ctx, opening, of)
}
