// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"cmp"
	"encoding/json"
	"errors"
	"maps"
	"slices"
)

// Policies implements Reader.
func (s *Store) Policies() []PolicySummary {
	s.mu.RLock()
	defer s.mu.RUnlock()
	all := map[string]*PolicySummary{}
	of := func(name string) *PolicySummary {
		p := all[name]
		if p == nil {
			p = &PolicySummary{Name: name, Opened: map[string]int{}, Refused: map[string]int{}, Units: map[string]int{}}
			all[name] = p
		}
		return p
	}
	now := s.clock.now()
	thresholds := map[Condition][]float64{}
	for _, u := range s.units {
		for _, c := range u.Conditions {
			if c.Seen == 0 || now-c.Seen > lively {
				continue
			}
			list := thresholds[c.Condition]
			if t := c.newest.Threshold; t == t && len(list) < maxThresholds && !slices.Contains(list, t) {
				list = append(list, t)
			}
			thresholds[c.Condition] = list
		}
		for policy, st := range u.states {
			if now-st.seen <= lively {
				of(policy).Units[st.is]++
			}
		}
	}
	for _, name := range slices.SortedFunc(maps.Keys(thresholds), compareConditions) {
		slices.Sort(thresholds[name])
		p := of(name.Policy)
		p.Conditions = append(p.Conditions, PolicyCondition{name, thresholds[name]})
	}
	for _, o := range s.order {
		if o.Policy == "" {
			continue
		}
		p := of(o.Policy)
		p.Opened[o.Kind]++
		if o.Triggered.After(p.Newest) {
			p.Newest = o.Triggered
		}
	}
	for _, r := range s.refusals {
		of(r.Policy).Refused[r.Why]++
	}
	out := make([]PolicySummary, 0, len(all))
	for _, p := range all {
		out = append(out, *p)
	}
	slices.SortFunc(out, func(a, b PolicySummary) int { return cmp.Compare(a.Name, b.Name) })
	return out
}

// change is a PolicyChange in memory.
type change struct {
	PolicyChange
	key    string
	stored int64
}

// PutPolicyChange adds a change of policies.
func (s *Store) PutPolicyChange(c PolicyChange) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c.At = s.plausible(c.At)
	c.Host, c.From, c.Version = cutText(c.Host, maxName), cutText(c.From, maxText), cutText(c.Version, maxName)
	c.Unmatched, c.Why = cutText(c.Unmatched, maxName), cutText(c.Why, maxText)
	for _, list := range []*[]string{&c.Added, &c.Removed, &c.Changed} {
		*list = slices.Clone((*list)[:min(len(*list), maxListedChanges)])
		for i, name := range *list {
			(*list)[i] = cutText(name, maxName)
		}
	}
	is := &change{c, s.nextKey(), s.clock.now()}
	s.changes = append(s.changes, is)
	s.touch(kindChange, is.key, is)
	if len(s.changes) > maxChanges {
		s.removeChange(s.changes[0])
		s.drop("policy changes", 1)
	}
}

func (s *Store) removeChange(c *change) {
	s.changes = deleteOne(s.changes, c)
	s.touch(kindChange, c.key, nil)
}

// PolicyChanges implements Reader. The newest change comes first.
func (s *Store) PolicyChanges() []PolicyChange {
	s.mu.RLock()
	defer s.mu.RUnlock()
	var out []PolicyChange
	for _, c := range slices.Backward(s.changes) {
		out = append(out, c.PolicyChange)
	}
	return out
}

func (c *change) record() (UnitID, int64, any) { return "", c.stored, c.PolicyChange }

func (s *Store) loadChange(key string, _ UnitID, stored int64, data []byte) error {
	c := &change{key: key, stored: stored}
	if len(s.changes) >= maxChanges {
		return errRecord
	}
	if err := errors.Join(s.usedKey(key), json.Unmarshal(data, &c.PolicyChange)); err != nil {
		return err
	}
	s.changes = append(s.changes, c)
	return nil
}
