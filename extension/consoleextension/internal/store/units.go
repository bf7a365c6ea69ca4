// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/hotprofile/hotprofile/extension/consoleextension/internal/series"
)

const (
	// lively is the time, in seconds, for which a unit, a condition or a state counts as
	// present after its latest data.
	lively = 300
	// When a limit is reached, the number of units or openings that are removed at once is
	// the total number divided by evictAtOnce.
	evictAtOnce = 100
)

// unit is a unit in memory. The exported fields are stored in the database. The
// resource is replaced, but never modified.
type unit struct {
	Unit
	Conditions []condition

	bytes    int               // size of the resource
	seen     int64             // by the clock
	states   map[string]state  // by policy
	openings []*opening        // in order of arrival
	refused  map[[2]string]int // number of refusals by policy and reason
	peers    map[PeerKey]*peer
	saved    int64 // value of seen when the unit was last touched
}

// condition is a condition of a unit. Blocks refer to a condition
// by its index in the unit.
type condition struct {
	Condition
	Seen   int64 // by the clock; 0 marks a free slot
	newest Reading
	head   []series.Point // readings that are not yet in a block
}

type state struct {
	is   string
	seen int64
}

// IDOf returns the ID of a unit.
func IDOf(host, name string) UnitID {
	sum := sha256.Sum256([]byte(host + "\x00" + name))
	return UnitID(hex.EncodeToString(sum[:8]))
}

// PutReadings adds the readings of a unit, and the states of the unit's policies. It
// reads the fields Host, Name and Resource of the unit. An unknown value or threshold is
// NaN. A reading is merged into the previous reading if both have the same condition and
// time.
func (s *Store) PutReadings(of Unit, readings []Reading, states map[string]string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	u := s.unit(of)
	if u == nil {
		s.drop("readings", int64(len(readings)))
		return
	}
	for _, r := range readings {
		s.reading(u, r)
	}
	for policy, is := range states {
		policy = cutText(policy, maxName)
		if _, ok := u.states[policy]; !ok && !s.roomForState(u) {
			s.drop("states", 1)
			continue
		}
		u.states[policy] = state{cutText(is, maxName), u.seen}
	}
}

func (s *Store) roomForState(u *unit) bool {
	if len(u.states) < maxStates {
		return true
	}
	maps.DeleteFunc(u.states, func(_ string, st state) bool { return u.seen-st.seen > lively })
	return len(u.states) < maxStates
}

func (s *Store) reading(u *unit, r Reading) {
	r.At = s.plausible(r.At)
	cutNames(&r.Policy, &r.Monitor, &r.Window)
	c := s.condition(u, r.Condition)
	if c == nil {
		s.drop("readings", 1)
		return
	}
	c.Seen = u.seen
	at := r.At.Unix()
	c.newest.Condition, c.newest.Threshold = c.Condition, series.Known(c.newest.Threshold, r.Threshold)
	switch {
	case at == c.newest.At.Unix():
		c.newest.Value = series.Known(c.newest.Value, r.Value)
	case !math.IsNaN(r.Value) || r.At.After(c.newest.At): // not the threshold of an older reading
		c.newest.At, c.newest.Value = r.At, r.Value
	}
	if n := len(c.head); n > 0 && c.head[n-1].At == at {
		last := &c.head[n-1]
		*last = series.New(at, series.Known(last.Mean, float32(r.Value)), series.Known(last.Threshold, float32(r.Threshold)))
		return
	}
	if len(c.head) >= maxSeriesHead || s.heads >= maxHead {
		s.drop("readings", 1)
		return
	}
	s.heads++
	c.head = append(c.head, series.New(at, float32(r.Value), float32(r.Threshold)))
}

// condition finds or adds a condition of a unit. It returns nil if there is no room.
func (s *Store) condition(u *unit, of Condition) *condition {
	free := -1
	for i := range u.Conditions {
		switch c := &u.Conditions[i]; {
		case c.Seen == 0:
			free = i
		case c.Condition == of:
			return c
		}
	}
	if s.series >= maxSeries {
		return nil
	}
	if free < 0 {
		if len(u.Conditions) >= maxConditions {
			return nil
		}
		free = len(u.Conditions)
		u.Conditions = append(u.Conditions, condition{})
	}
	s.series++
	u.Conditions[free] = condition{Condition: of, Seen: u.seen, newest: Reading{Threshold: math.NaN()}}
	s.touch(u)
	return &u.Conditions[free]
}

// unit finds or adds a unit, marks the unit as seen, and updates its resource. It returns
// nil if the unit has no name, or if there is no room.
func (s *Store) unit(of Unit) *unit {
	now := s.now()
	of.Host, of.Name = cutText(of.Host, maxName), cutText(of.Name, maxText)
	id := IDOf(of.Host, of.Name)
	u := s.units[id]
	if u == nil {
		if of.Name == "" || !s.roomForUnit(now) {
			s.drop("units", 1)
			return nil
		}
		u = &unit{Unit: Unit{ID: id, Host: strings.Clone(of.Host), Name: strings.Clone(of.Name), First: s.options.Now().UTC()}, states: map[string]state{}}
		s.units[id] = u
		s.touch(u)
	}
	u.seen, u.Last = now, s.options.Now().UTC()
	if now-u.saved >= seenEvery {
		u.saved = now
		s.touch(u)
	}
	if len(of.Resource) > 0 && !maps.Equal(u.Resource, of.Resource) {
		s.setResource(u, of.Resource)
	}
	return u
}

func (s *Store) setResource(u *unit, all map[string]string) {
	kept, size, cut := boundAttributes(all, maxAttributes, maxResource)
	if s.resources-u.bytes+size > maxResources {
		maps.DeleteFunc(kept, func(k, _ string) bool { return !slices.Contains(identity, k) })
		kept, size, _ = boundAttributes(kept, maxAttributes, maxName)
		cut = true
	}
	if maps.Equal(kept, u.Resource) {
		return
	}
	if cut {
		s.drop("attributes", int64(len(all)-len(kept)))
	}
	s.resources += size - u.bytes
	u.Resource, u.bytes = kept, size
	s.touch(u)
}

// roomForUnit makes room for a unit by removing units that are gone. Units without
// openings are removed before units with openings. In each group, the units that have
// been gone longest are removed first. roomForUnit returns false if there is no room.
func (s *Store) roomForUnit(now int64) bool {
	if len(s.units) < maxUnits {
		return true
	}
	if now < s.noRoomUntil {
		return false
	}
	var gone []*unit
	for _, u := range s.units {
		if now-u.seen > lively {
			gone = append(gone, u)
		}
	}
	if len(gone) == 0 {
		s.noRoomUntil = now + lively/10
		return false
	}
	slices.SortFunc(gone, func(a, b *unit) int {
		return cmp.Or(min(len(a.openings), 1)-min(len(b.openings), 1), cmp.Compare(a.seen, b.seen))
	})
	for _, u := range gone[:min(len(gone), maxUnits/evictAtOnce)] {
		s.removeUnit(u)
		s.drop("units", 1)
	}
	return true
}

// removeUnit forgets a unit, its openings and its refusals. The readings of the unit on disk
// expire later.
func (s *Store) removeUnit(u *unit) {
	for len(u.openings) > 0 {
		s.removeOpening(u.openings[0])
	}
	for i := range u.Conditions {
		s.removeCondition(u, i)
	}
	s.resources -= u.bytes
	s.peers -= len(u.peers)
	delete(s.units, u.ID)
	delete(s.dirty, u)
	s.erase(kindUnit, string(u.ID))
}

// removeCondition frees the slot of a condition, and forgets its unwritten readings.
func (s *Store) removeCondition(u *unit, i int) {
	if c := &u.Conditions[i]; c.Seen != 0 {
		s.series--
		s.heads -= len(c.head)
		*c = condition{}
		s.touch(u)
	}
}

// ageUnits forgets units, conditions and states that were last seen before oldest. It keeps
// units that still have openings or refusals.
func (s *Store) ageUnits(oldest int64) {
	for _, u := range s.units {
		if u.seen < oldest && len(u.openings) == 0 && len(u.refused) == 0 {
			s.removeUnit(u)
			continue
		}
		for i, c := range u.Conditions {
			if c.Seen != 0 && c.Seen < oldest {
				s.removeCondition(u, i)
			}
		}
		maps.DeleteFunc(u.states, func(_ string, st state) bool { return st.seen < oldest })
	}
}

// summary returns the data of a unit for the pages.
func (s *Store) summary(u *unit) UnitSummary {
	out := UnitSummary{Unit: u.Unit, States: map[string]string{}, Refusals: map[string]int{}}
	for _, c := range u.Conditions {
		if c.Seen != 0 && u.seen-c.Seen <= lively && !c.newest.At.IsZero() {
			out.Readings = append(out.Readings, c.newest)
		}
	}
	slices.SortFunc(out.Readings, func(a, b Reading) int { return compareConditions(a.Condition, b.Condition) })
	for policy, st := range u.states {
		if u.seen-st.seen <= lively {
			out.States[policy] = st.is
		}
	}
	var newest *opening
	for _, o := range u.openings {
		if o.Kind == kindBaseline {
			continue
		}
		out.Openings++
		if newest == nil || !o.Triggered.Before(newest.Triggered) {
			newest = o
		}
	}
	if newest != nil {
		out.Newest = s.public(newest)
	}
	for by, n := range u.refused {
		out.Refusals[by[1]] += n
	}
	return out
}

func compareConditions(a, b Condition) int {
	return cmp.Or(cmp.Compare(a.Policy, b.Policy), cmp.Compare(a.Monitor, b.Monitor), cmp.Compare(a.Window, b.Window))
}

// Units implements Reader.
func (s *Store) Units() []UnitSummary {
	s.mu.RLock()
	defer s.mu.RUnlock()
	out := make([]UnitSummary, 0, len(s.units))
	for _, u := range s.units {
		out = append(out, s.summary(u))
	}
	slices.SortFunc(out, func(a, b UnitSummary) int {
		return cmp.Or(cmp.Compare(a.Host, b.Host), cmp.Compare(a.Name, b.Name), cmp.Compare(a.ID, b.ID))
	})
	return out
}

// Unit implements Reader.
func (s *Store) Unit(id UnitID) (UnitSummary, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	u := s.units[id]
	if u == nil {
		return UnitSummary{}, ErrNotFound
	}
	return s.summary(u), nil
}

func (u *unit) record() []any {
	return []any{kindUnit, string(u.ID), string(u.ID), u.seen, encoded(u)}
}

// loadUnit adds a unit from the database.
func (s *Store) loadUnit(key string, id UnitID, seen int64, data []byte) error {
	u := &unit{seen: seen, saved: seen, states: map[string]state{}}
	if err := json.Unmarshal(data, u); err != nil {
		return err
	}
	if key != string(id) {
		return errRecord
	}
	u.ID = id
	u.Resource, u.bytes, _ = boundAttributes(u.Resource, maxAttributes, maxResource)
	for i := range u.Conditions {
		u.Conditions[i].newest.Threshold = math.NaN()
		if u.Conditions[i].Seen != 0 {
			s.series++
		}
	}
	s.resources += u.bytes
	s.units[id] = u
	return nil
}
