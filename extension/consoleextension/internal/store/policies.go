// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"cmp"
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
	now := s.now()
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
		for by, n := range u.refused {
			of(by[0]).Refused[by[1]] += n
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
	out := make([]PolicySummary, 0, len(all))
	for _, p := range all {
		out = append(out, *p)
	}
	slices.SortFunc(out, func(a, b PolicySummary) int { return cmp.Compare(a.Name, b.Name) })
	return out
}
