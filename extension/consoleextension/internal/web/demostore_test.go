// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package web

import (
	"context"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/google/pprof/profile"

	"github.com/hotprofile/hotprofile/extension/consoleextension/internal/store"
)

// Memory is a store.Reader that returns its fields. The zero value is an
// empty store. [Demo] returns a small shop with an incident. [Many] returns a
// store with any number of units.
type Memory struct {
	AllUnits     []store.UnitSummary
	AllTrends    map[store.UnitID][]store.Trend
	AllOpenings  []store.Opening // in any order
	AllProfiles  map[string]map[store.ProfileKey]*profile.Profile
	AllRefusals  []store.Refusal // in any order
	AllPolicies  []store.PolicySummary
	AllChanges   []store.PolicyChange
	AllInstances []store.Instance
	AllPeers     map[store.UnitID][]store.Peer
	UsageNow     store.Usage
	Err          error // if it is not nil, every method that returns an error returns it, except Unit
}

var _ store.Reader = (*Memory)(nil)

// ID returns the id of a unit.
func ID(host, unit string) store.UnitID { return store.IDOf(host, unit) }

// Fill adds the units of m to a store, with their newest readings, openings and refusals,
// but without trends and profiles.
func Fill(s *store.Store, m *Memory) {
	for _, u := range m.AllUnits {
		s.PutReadings(u.Unit, u.Readings, u.States)
	}
	for _, o := range m.AllOpenings {
		o.Profiles = nil
		s.PutOpening(o)
	}
	for _, r := range m.AllRefusals {
		s.PutRefusal(r)
	}
}

// Units implements store.Reader.
func (m *Memory) Units() []store.UnitSummary {
	units := slices.Clone(m.AllUnits)
	for i, u := range units {
		units[i].Refusals = map[string]int{}
		maps.Copy(units[i].Refusals, u.Refusals)
	}
	return units
}

// Unit implements store.Reader.
func (m *Memory) Unit(id store.UnitID) (store.UnitSummary, error) {
	i := slices.IndexFunc(m.AllUnits, func(u store.UnitSummary) bool { return u.ID == id })
	if i < 0 {
		return store.UnitSummary{}, store.ErrNotFound
	}
	return m.AllUnits[i], nil
}

// Trends implements store.Reader.
func (m *Memory) Trends(_ context.Context, id store.UnitID, from, to time.Time, points int) ([]store.Trend, error) {
	var trends []store.Trend
	for _, t := range m.AllTrends[id] {
		var in []store.Point
		for _, p := range t.Points {
			if !p.At.Before(from) && !p.At.After(to) {
				in = append(in, p)
			}
		}
		trends = append(trends, store.Trend{Condition: t.Condition, Points: thin(in, points)})
	}
	return trends, m.Err
}

// thin merges adjacent points until at most n points are left. If n is 0,
// thin does not merge points.
func thin(points []store.Point, n int) []store.Point {
	if n <= 0 || len(points) <= n {
		return points
	}
	step := (len(points) + n - 1) / n
	var thinned []store.Point
	for merged := range slices.Chunk(points, step) {
		p := store.Point{At: merged[len(merged)-1].At, Threshold: merged[len(merged)-1].Threshold}
		p.Min, p.Max = math.Inf(1), math.Inf(-1)
		for _, q := range merged {
			p.Min, p.Max, p.Mean = min(p.Min, q.Min), max(p.Max, q.Max), p.Mean+q.Mean/float64(len(merged))
		}
		thinned = append(thinned, p)
	}
	return thinned
}

// Openings implements store.Reader.
func (m *Memory) Openings(_ context.Context, q store.OpeningQuery) ([]store.Opening, error) {
	var found []store.Opening
	for _, o := range m.AllOpenings {
		if (q.Unit == "" || o.Unit.ID == q.Unit) &&
			(q.From.IsZero() || !o.Triggered.Before(q.From)) && (q.To.IsZero() || !o.Triggered.After(q.To)) &&
			(q.All || q.Baselines == (o.Kind == "baseline")) {
			found = append(found, o)
		}
	}
	slices.SortStableFunc(found, func(a, b store.Opening) int { return b.Triggered.Compare(a.Triggered) })
	if q.Limit > 0 && len(found) > q.Limit {
		found = found[:q.Limit]
	}
	return found, m.Err
}

// Opening implements store.Reader.
func (m *Memory) Opening(_ context.Context, id string) (store.Opening, error) {
	if m.Err != nil {
		return store.Opening{}, m.Err
	}
	i := slices.IndexFunc(m.AllOpenings, func(o store.Opening) bool { return o.ID == id })
	if i < 0 {
		return store.Opening{}, store.ErrNotFound
	}
	return m.AllOpenings[i], nil
}

// Profile implements store.Reader.
func (m *Memory) Profile(_ context.Context, opening string, of store.ProfileKey) (*profile.Profile, error) {
	if m.Err != nil {
		return nil, m.Err
	}
	p, ok := m.AllProfiles[opening][of]
	if !ok {
		return nil, store.ErrNotFound
	}
	return p.Copy(), nil
}

// Refusals implements store.Reader.
func (m *Memory) Refusals(_ context.Context, unit store.UnitID, limit int) ([]store.Refusal, error) {
	var found []store.Refusal
	for _, r := range m.AllRefusals {
		if unit == "" || r.Unit.ID == unit {
			found = append(found, r)
		}
	}
	slices.SortStableFunc(found, func(a, b store.Refusal) int { return b.At.Compare(a.At) })
	if limit > 0 && len(found) > limit {
		found = found[:limit]
	}
	return found, m.Err
}

// Policies implements store.Reader.
func (m *Memory) Policies() []store.PolicySummary { return m.AllPolicies }

// PolicyChanges implements store.Reader.
func (m *Memory) PolicyChanges(context.Context) ([]store.PolicyChange, error) {
	return m.AllChanges, m.Err
}

// Instances implements store.Reader.
func (m *Memory) Instances(context.Context) ([]store.Instance, error) {
	return m.AllInstances, m.Err
}

// Usage implements store.Reader.
func (m *Memory) Usage() store.Usage { return m.UsageNow }

// Peers implements store.Reader. The time span is ignored.
func (m *Memory) Peers(_ context.Context, id store.UnitID, _, _ time.Time) ([]store.Peer, error) {
	return slices.Clone(m.AllPeers[id]), m.Err
}
