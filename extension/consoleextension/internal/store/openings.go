// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"cmp"
	"context"
	"encoding/json"
	"maps"
	"math"
	"reflect"
	"slices"
	"strings"
	"time"
)

const (
	kindBaseline = "baseline"

	maxTraces = 10 // of an opening
)

// opening is an opening in memory. The fields Unit and Profiles of Opening are empty.
type opening struct {
	Opening
	unit   *unit
	stored int64 // when the opening was added, by the store's clock

	sampled bool // samples of the opening have arrived since the start
}

// PutOpening adds an opening, or updates an opening with new data. A field of o that is
// zero is unknown and keeps its previous value. PutOpening uses only the Host, Name and
// Resource fields of o.Unit. It returns false if there is no room for the unit, or if the
// ID is invalid or belongs to another unit's opening. In these cases, the profiles of the
// opening are not kept either.
func (s *Store) PutOpening(o Opening) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.putOpening(o) != nil
}

// putOpening is PutOpening for a caller that holds the lock. It returns nil if the opening
// is not kept.
func (s *Store) putOpening(o Opening) *opening {
	var u *unit
	if validID(o.ID) {
		u = s.unit(o.Unit)
	}
	is := s.openings[o.ID]
	if u == nil || is != nil && is.unit != u {
		s.drop("openings", 1)
		return nil
	}
	if is == nil {
		is = &opening{unit: u, stored: s.now()}
		is.ID, is.Triggered = strings.Clone(o.ID), s.plausible(o.Triggered)
		s.addOpening(is)
	}
	was := is.Opening
	is.learn(o, s)
	if was.Policy == "" || !reflect.DeepEqual(was, is.Opening) {
		s.touch(is)
		s.awaited = true
	}
	return is
}

// learn copies the fields of o that are not zero.
func (is *opening) learn(o Opening, s *Store) {
	text := func(to *string, from string, n int) {
		if from != "" {
			*to = cutText(from, n)
		}
	}
	text(&is.Policy, o.Policy, maxName)
	text(&is.Kind, o.Kind, maxName)
	text(&is.Monitor, o.Monitor, maxName)
	text(&is.Window, o.Window, maxName)
	text(&is.Why, o.Why, maxName)
	text(&is.NothingExported, o.NothingExported, maxText)
	text(&is.TraceID, o.TraceID, 32)
	text(&is.SpanID, o.SpanID, 16)
	if len(o.Traces) > 0 {
		is.Traces = nil
		for _, id := range o.Traces[:min(len(o.Traces), maxTraces)] {
			is.Traces = append(is.Traces, strings.Clone(cutText(id, 32)))
		}
	}
	if len(o.Requests) > 0 {
		if is.Requests == nil {
			s.forgetRequests()
		}
		is.Requests = boundRequests(o.Requests)
	}
	if o.Value != 0 {
		is.Value = finite(o.Value)
	}
	if o.Threshold != 0 {
		is.Threshold = finite(o.Threshold)
	}
	is.Samples, is.Bytes = max(is.Samples, o.Samples), max(is.Bytes, o.Bytes)
	// The end may be in the future, but must be less than MaxAge after the opening.
	if o.Until.After(is.Until) && o.Until.Before(is.Triggered.Add(s.options.MaxAge)) {
		is.Until = o.Until
	}
	if !o.Closed.IsZero() {
		is.Closed = s.plausible(o.Closed)
	}
}

// boundRequests returns a copy of requests within the limits.
func boundRequests(all []Request) (kept []Request) {
	for _, r := range all[:min(len(all), maxRequests)] {
		waits := map[string]float64{}
		for _, kind := range slices.Sorted(maps.Keys(r.Waits))[:min(len(r.Waits), maxWaits)] {
			waits[cutText(kind, maxName)] = finite(r.Waits[kind])
		}
		kept = append(kept, Request{
			TraceID: strings.Clone(cutText(r.TraceID, 32)), Route: cutText(r.Route, maxName), Failed: r.Failed,
			Duration: finite(r.Duration), CPU: finite(r.CPU), Waits: waits,
		})
	}
	return kept
}

// forgetRequests makes room for the requests of one more opening.
func (s *Store) forgetRequests() {
	with := 0
	for _, o := range slices.Backward(s.order) {
		if len(o.Requests) == 0 {
			continue
		}
		if with++; with >= maxWithRequests {
			o.Requests = nil
			s.touch(o)
		}
	}
}

// finite returns f, or 0 if JSON cannot encode f.
func finite(f float64) float64 {
	if math.IsNaN(f) || math.IsInf(f, 0) {
		return 0
	}
	return f
}

// addOpening adds an opening. If necessary, it removes other openings.
func (s *Store) addOpening(o *opening) {
	s.openings[o.ID] = o
	s.order = append(s.order, o)
	o.unit.openings = append(o.unit.openings, o)
	if len(o.unit.openings) > maxUnitOpenings {
		s.removeOpening(o.unit.openings[0])
		s.drop("openings", 1)
	}
	if len(s.openings) > maxOpenings {
		s.evictOpenings(maxOpenings / evictAtOnce)
	}
}

// evictOpenings removes at most n openings, oldest first. It prefers baselines that have
// at least two newer baselines of the same unit. If there are fewer than n such
// baselines, it removes the oldest openings of any kind.
func (s *Store) evictOpenings(n int) {
	var old []*opening
	newer := map[*unit]int{}
	for _, o := range slices.Backward(s.order) {
		if o.Kind == kindBaseline {
			if newer[o.unit]++; newer[o.unit] > 2 {
				old = append(old, o)
			}
		}
	}
	slices.Reverse(old)
	if len(old) < n {
		old = slices.Clone(s.order)
	}
	for _, o := range old[:min(n, len(old))] {
		s.removeOpening(o)
		s.drop("openings", 1)
	}
}

// removeOpening forgets an opening and its profiles.
func (s *Store) removeOpening(o *opening) {
	same := func(x *opening) bool { return x == o }
	delete(s.openings, o.ID)
	s.order = slices.DeleteFunc(s.order, same)
	o.unit.openings = slices.DeleteFunc(o.unit.openings, same)
	delete(s.dirty, o)
	s.erase(kindOpening, o.ID)
	s.profiles.Remove(o.ID)
}

// public returns the data of an opening for the pages.
func (s *Store) public(o *opening) Opening {
	out := o.Opening
	out.Unit = o.unit.Unit
	out.Profiles = s.profiles.Infos(o.ID)
	return out
}

// Openings implements Reader.
func (s *Store) Openings(ctx context.Context, q OpeningQuery) ([]Opening, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	from := s.order
	if q.Unit != "" {
		from = cmp.Or(s.units[q.Unit], &unit{}).openings
	}
	var found []*opening
	for _, o := range from {
		if (q.All || q.Baselines == (o.Kind == kindBaseline)) && within(o.Triggered, q.From, q.To) {
			found = append(found, o)
		}
	}
	slices.SortFunc(found, func(a, b *opening) int {
		return cmp.Or(b.Triggered.Compare(a.Triggered), cmp.Compare(b.stored, a.stored), cmp.Compare(a.ID, b.ID))
	})
	if q.Limit > 0 && len(found) > q.Limit {
		found = found[:q.Limit]
	}
	out := make([]Opening, len(found))
	for i, o := range found {
		out[i] = s.public(o)
	}
	return out, ctx.Err()
}

// within reports whether a time is in a time span. If from or to is zero, the time
// span has no limit on that side.
func within(at, from, to time.Time) bool {
	return (from.IsZero() || !at.Before(from)) && (to.IsZero() || !at.After(to))
}

// Opening implements Reader.
func (s *Store) Opening(ctx context.Context, id string) (Opening, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	o := s.openings[id]
	if o == nil {
		return Opening{}, ErrNotFound
	}
	return s.public(o), ctx.Err()
}

func (o *opening) record() []any {
	return []any{kindOpening, o.ID, string(o.unit.ID), o.stored, encoded(o.Opening)}
}

func (s *Store) loadOpening(key string, unit UnitID, stored int64, data []byte) error {
	o := &opening{unit: s.units[unit], stored: stored}
	if err := json.Unmarshal(data, &o.Opening); err != nil {
		return err
	}
	if o.unit == nil || o.ID != key || key == "" {
		return errRecord
	}
	s.addOpening(o)
	return nil
}
