// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package web

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"slices"
	"time"

	"github.com/hotprofile/hotprofile/extension/consoleextension/internal/flame"
	"github.com/hotprofile/hotprofile/extension/consoleextension/internal/store"
)

// The URL parameter against contains the ID of an opening or one of these values.
const (
	againstNothing = "none"
	againstBefore  = "before" // the same profile before the trigger
	againstNormal  = "normal" // the normal requests of the same profile
)

// comparison describes the other side of a comparison.
type comparison struct {
	Name      string // baseline, before the trigger, or opening
	Triggered time.Time
	Total     string
	Rate      string
}

// choice is an opening that the user can select for a comparison.
type choice struct {
	Value, Text string
	Time        time.Time
	Current     bool
}

// compare finds the profile to compare with. By default, this profile comes from the
// newest baseline before the opening. Baselines of the opening's policy are preferred. A
// query may select another opening, or another part of the same profile.
func (s *Server) compare(ctx context.Context, o store.Opening, v *profileView) error {
	c, err := s.candidates(ctx, o, v.ProfileInfo)
	if err != nil {
		return err
	}
	var other store.Opening
	switch v.Query.Against {
	case againstNothing:
	case againstBefore:
		v.query.Base, v.query.BaseFilter = v.query.Of, v.Query.Filter
		v.query.BaseFilter.Phase = "before"
		v.Against.Name = "before the trigger"
	case againstNormal:
		v.Query.Filter.Request = cmp.Or(v.Query.Filter.Request, "slow")
		v.query.Filter = v.Query.Filter
		v.query.Base, v.query.BaseFilter = v.query.Of, v.Query.Filter
		v.query.BaseFilter.Request = "normal"
		v.Against.Name = "in normal requests"
	case "":
		if o.Kind != "baseline" {
			other, v.NoBaseline = c.baseline()
		}
	default:
		if other, err = s.candidate(ctx, c, v.Query.Against); err != nil {
			return err
		}
	}
	if other.ID != "" {
		if err := s.compareWith(ctx, c, other, v); err != nil {
			return err
		}
		if v.NoBaseline != "" {
			other = store.Opening{}
		}
	}
	v.Compared = v.query.Base != nil
	v.choose(c, other)
	return nil
}

// candidates are the openings of a unit that a profile can be compared with, newest first.
type candidates struct {
	of        store.Opening
	profile   store.ProfileInfo
	openings  []store.Opening
	baselines []store.Opening // from before the opening
}

func (s *Server) candidates(ctx context.Context, o store.Opening, p store.ProfileInfo) (c candidates, err error) {
	c.of, c.profile = o, p
	c.openings, err = s.Store.Openings(ctx, store.OpeningQuery{Unit: o.Unit.ID, All: true, Limit: choicesPerUnit})
	if err != nil {
		return c, err
	}
	c.baselines, err = s.Store.Openings(ctx, store.OpeningQuery{Unit: o.Unit.ID, Baselines: true, To: o.Triggered, Limit: choicesPerUnit})
	return c, err
}

// profileIn returns the profile of the same type in another opening.
func (c candidates) profileIn(other store.Opening) (store.ProfileInfo, bool) {
	key := c.profile.ProfileKey
	key.Moment = 0
	p, err := findProfile(other, key)
	return p, err == nil && p.Unit == c.profile.Unit && other.ID != c.of.ID
}

// baseline returns the newest baseline of the opening's policy, or of any policy if that
// policy has no baseline. If there is no baseline at all, why is the reason.
func (c candidates) baseline() (found store.Opening, why string) {
	for _, b := range c.baselines {
		if _, ok := c.profileIn(b); !ok {
			continue
		}
		if b.Policy == c.of.Policy {
			return b, ""
		}
		if found.ID == "" {
			found = b
		}
	}
	switch {
	case found.ID != "":
	case len(c.baselines) > 0:
		why = "The baselines of this unit have no profile of this type."
	default:
		why = "This unit has no baseline from before: with baseline in its policy, one is taken each hour."
	}
	return found, why
}

// candidate returns the opening of the unit with the given ID. This opening may be older
// than the openings in c.
func (s *Server) candidate(ctx context.Context, c candidates, id string) (store.Opening, error) {
	other, err := s.Store.Opening(ctx, id)
	if err == nil && other.Unit.ID != c.of.Unit.ID {
		err = store.ErrNotFound
	}
	if errors.Is(err, store.ErrNotFound) {
		return other, failure{http.StatusNotFound, "The opening to compare with is not one of this unit, or is no longer kept."}
	}
	return other, err
}

// compareWith adds another opening to the view for comparison. If this is
// impossible, compareWith sets NoBaseline.
func (s *Server) compareWith(ctx context.Context, c candidates, other store.Opening, v *profileView) error {
	info, ok := c.profileIn(other)
	if !ok {
		v.NoBaseline = "The other opening has no profile of this type."
		return nil
	}
	base, err := s.stacksOf(ctx, other, info)
	if why := lost(err); why != "" {
		v.NoBaseline = "The other profile cannot be compared with: " + why + "."
		return nil
	}
	if err != nil {
		return err
	}
	v.query.Base, v.query.BaseFilter = base, v.Query.Filter
	v.Against.Name = "opening"
	if other.Kind == "baseline" {
		v.Against.Name = "baseline"
	}
	// If the other opening does not have the selected phase, the filter by phase does not
	// apply to it.
	if !slices.Contains(info.Phases, v.Query.Filter.Phase) {
		v.query.BaseFilter.Phase = ""
	}
	v.Against.Triggered = other.Triggered
	there := openingQuery{opening: other.ID, Profile: shortKey(other, info.ProfileKey), report: v.Query.report}
	v.AgainstURL, v.DownloadThere = there.url(""), there.url("profile.pb.gz")
	if v.query.BaseFilter.Phase == "" {
		v.Against.Rate = rate(info, v.query.BaseFilter, flame.Query{Of: base, Filter: v.query.BaseFilter}.Total().Here)
	}
	return nil
}

// choose lists the openings that the profile can be compared with.
func (v *profileView) choose(c candidates, other store.Opening) {
	all := slices.Concat(c.openings, c.baselines)
	if other.ID != "" {
		all = append(all, other)
	}
	v.Choices = []choice{{Value: againstNothing, Text: "nothing", Current: !v.Compared}}
	if slices.Contains(v.ProfileInfo.Phases, "before") && len(v.ProfileInfo.Phases) > 1 {
		v.Choices = append(v.Choices, choice{Value: againstBefore, Text: "this opening, before the trigger", Current: v.Query.Against == againstBefore})
	}
	if v.query.Of.Has("slow") && v.query.Of.Has("normal") {
		v.Choices = append(v.Choices, choice{Value: againstNormal, Text: "this opening, normal requests", Current: v.Query.Against == againstNormal})
	}
	of := func(isBaseline bool) (choices []choice) {
		seen := map[string]bool{}
		for _, b := range all {
			if _, ok := c.profileIn(b); !ok || (b.Kind == "baseline") != isBaseline || seen[b.ID] {
				continue
			}
			seen[b.ID] = true
			offered := choice{Value: b.ID, Time: b.Triggered, Current: b.ID == other.ID, Text: reason(b)}
			if isBaseline {
				offered.Text = "baseline"
			}
			if b.Policy != "" {
				offered.Text += ", policy " + cutText(40, b.Policy)
			}
			choices = append(choices, offered)
		}
		return choices
	}
	v.Baselines, v.Openings = of(true), of(false)
}
