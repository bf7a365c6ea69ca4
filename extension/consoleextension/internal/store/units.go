// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"maps"
	"math"
	"slices"
	"strings"
	"unique"
)

const (
	// lively is the maximum time without data, in seconds, during which a unit, a
	// condition or a state still counts as present.
	lively = 300
	// evictAtOnce is a divisor. When a limit is reached, 1/100 of the units or
	// openings is removed at once.
	evictAtOnce = 100
)

// unit is a unit in memory. Its resource is replaced, but never modified.
type unit struct {
	Unit
	bytes      int   // size of the resource
	seen       int64 // by the clock
	conditions []condition
	states     map[string]state // by policy
	openings   []*opening       // in order of arrival
	refusals   []*refusal       // in order of arrival
	peers      map[PeerKey]*peer
	saved      int64 // value of seen in the database
}

// condition is a condition of a unit. Blocks refer to a condition
// by its index in the unit.
type condition struct {
	unique.Handle[Condition]
	newest Reading
	seen   int64  // by the clock; 0 marks a free slot
	head   []head // readings that are not yet on disk
	taken  int    // number of readings at the start of head that are being written
}

// head is a reading that is not yet on disk.
type head struct {
	at               int64 // in seconds since 1970
	value, threshold float32
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

// PutReadings adds the readings of a unit, and the states of the unit's policies. It uses
// Host, Name and Resource of the unit. NaN stands for an unknown value or threshold. A
// reading is merged into the previous reading if both have the same condition and time.
func (s *Store) PutReadings(of Unit, readings []Reading, states map[string]string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	u := s.unit(of)
	if u == nil {
		s.drop("readings", len(readings))
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
	r.Policy, r.Monitor, r.Window = cutText(r.Policy, maxName), cutText(r.Monitor, maxName), cutText(r.Window, maxName)
	c := s.condition(u, unique.Make(r.Condition))
	if c == nil {
		s.drop("readings", 1)
		return
	}
	c.seen = u.seen
	at := r.At.Unix()
	value := r.Value
	if at == c.newest.At.Unix() {
		r.Value = known(c.newest.Value, r.Value)
	}
	c.newest = Reading{c.Value(), r.At, r.Value, known(c.newest.Threshold, r.Threshold)}
	if n := len(c.head); n > 0 && c.head[n-1].at == at {
		h := &c.head[n-1]
		h.value, h.threshold = known(h.value, float32(value)), known(h.threshold, float32(r.Threshold))
		return
	}
	if len(c.head) >= maxSeriesHead || s.heads >= maxHead {
		s.drop("readings", 1)
		return
	}
	s.heads++
	c.head = append(c.head, head{at, float32(r.Value), float32(r.Threshold)})
}

// known returns b, or a if b is NaN.
func known[T float32 | float64](a, b T) T {
	if b != b {
		return a
	}
	return b
}

// condition finds or adds a condition of a unit. It returns nil if there is no room.
func (s *Store) condition(u *unit, of unique.Handle[Condition]) *condition {
	free := -1
	for i := range u.conditions {
		switch c := &u.conditions[i]; {
		case c.seen == 0:
			free = i
		case c.Handle == of:
			return c
		}
	}
	if s.series >= maxSeries {
		return nil
	}
	if free < 0 {
		if len(u.conditions) >= maxConditions {
			return nil
		}
		free = len(u.conditions)
		u.conditions = append(u.conditions, condition{})
	}
	s.series++
	u.conditions[free] = condition{Handle: of, seen: u.seen, newest: Reading{Threshold: math.NaN()}}
	s.touch(kindUnit, string(u.ID), u)
	return &u.conditions[free]
}

// unit finds or adds a unit, marks the unit as seen, and updates its resource. It returns
// nil if the unit has no name, or if there is no room.
func (s *Store) unit(of Unit) *unit {
	now := s.clock.now()
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
		s.touch(kindUnit, string(id), u)
	}
	u.seen, u.Last = now, s.options.Now().UTC()
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
		s.drop("attributes", len(all)-len(kept))
	}
	s.resources += size - u.bytes
	u.Resource, u.bytes = kept, size
	s.touch(kindUnit, string(u.ID), u)
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

// removeUnit forgets a unit and its records. The readings of the unit on disk expire later.
func (s *Store) removeUnit(u *unit) {
	for len(u.openings) > 0 {
		s.removeOpening(u.openings[0])
	}
	for len(u.refusals) > 0 {
		s.removeRefusal(u.refusals[0])
	}
	for i := range u.conditions {
		s.removeCondition(u, i)
	}
	s.resources -= u.bytes
	s.peers -= len(u.peers)
	delete(s.units, u.ID)
	s.touch(kindUnit, string(u.ID), nil)
}

// removeCondition frees the slot of a condition, and forgets its unwritten readings.
func (s *Store) removeCondition(u *unit, i int) {
	if c := &u.conditions[i]; c.seen != 0 {
		s.series--
		s.heads -= len(c.head)
		*c = condition{}
		s.touch(kindUnit, string(u.ID), u)
	}
}

// ageUnits forgets units, conditions and states that were last seen before oldest. It keeps
// units that still have openings or refusals.
func (s *Store) ageUnits(oldest int64) {
	for _, u := range s.units {
		if u.seen < oldest && len(u.openings) == 0 && len(u.refusals) == 0 {
			s.removeUnit(u)
			continue
		}
		for i, c := range u.conditions {
			if c.seen != 0 && c.seen < oldest {
				s.removeCondition(u, i)
			}
		}
		maps.DeleteFunc(u.states, func(_ string, st state) bool { return st.seen < oldest })
	}
}

// summary returns the data of a unit for the pages.
func (u *unit) summary() UnitSummary {
	out := UnitSummary{Unit: u.Unit, States: map[string]string{}, Refusals: map[string]int{}}
	for _, c := range u.conditions {
		if c.seen != 0 && u.seen-c.seen <= lively && !c.newest.At.IsZero() {
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
		out.Newest = newest.public()
	}
	for _, r := range u.refusals {
		out.Refusals[r.Why]++
	}
	return out
}

func compareConditions(a, b Condition) int {
	return cmp.Or(cmp.Compare(a.Policy, b.Policy), cmp.Compare(a.Monitor, b.Monitor), cmp.Compare(a.Window, b.Window))
}

// Units implements Reader.
func (s *Store) Units(ctx context.Context) ([]UnitSummary, error) {
	s.mu.RLock()
	out := make([]UnitSummary, 0, len(s.units))
	for _, u := range s.units {
		out = append(out, u.summary())
	}
	s.mu.RUnlock()
	slices.SortFunc(out, func(a, b UnitSummary) int {
		return cmp.Or(cmp.Compare(a.Host, b.Host), cmp.Compare(a.Name, b.Name), cmp.Compare(a.ID, b.ID))
	})
	for i := range out {
		s.addProfiles(&out[i].Newest)
	}
	return out, ctx.Err()
}

// Unit implements Reader.
func (s *Store) Unit(ctx context.Context, id UnitID) (UnitSummary, error) {
	s.mu.RLock()
	u := s.units[id]
	if u == nil {
		s.mu.RUnlock()
		return UnitSummary{}, ErrNotFound
	}
	out := u.summary()
	s.mu.RUnlock()
	s.addProfiles(&out.Newest)
	return out, ctx.Err()
}

// unitRecord is a unit in the database.
type unitRecord struct {
	Unit
	Conditions []conditionRecord
}

type conditionRecord struct {
	Condition
	Seen int64 // 0 marks a free slot
}

func (u *unit) record() (UnitID, int64, any) {
	u.saved = u.seen
	r := unitRecord{Unit: u.Unit}
	for _, c := range u.conditions {
		var of conditionRecord
		if c.seen != 0 {
			of = conditionRecord{c.Value(), c.seen}
		}
		r.Conditions = append(r.Conditions, of)
	}
	return u.ID, u.seen, r
}

// loadUnit adds a unit from the database.
func (s *Store) loadUnit(key string, id UnitID, seen int64, data []byte) error {
	var r unitRecord
	if err := json.Unmarshal(data, &r); err != nil {
		return err
	}
	if len(s.units) >= maxUnits || key != string(id) {
		return errRecord
	}
	r.ID = id
	u := &unit{Unit: r.Unit, seen: seen, saved: seen, states: map[string]state{}}
	u.Resource, u.bytes, _ = boundAttributes(r.Resource, maxAttributes, maxResource)
	for _, c := range r.Conditions[:min(len(r.Conditions), maxConditions)] {
		of := condition{seen: c.Seen, newest: Reading{Threshold: math.NaN()}}
		if c.Seen != 0 {
			of.Handle = unique.Make(c.Condition)
			s.series++
		}
		u.conditions = append(u.conditions, of)
	}
	s.resources += u.bytes
	s.units[id] = u
	return nil
}
