// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package cputriggerprocessor

import (
	"fmt"
	"hash/maphash"
	"maps"
	"slices"
	"strings"

	"github.com/bmatcuk/doublestar/v4"
	"go.opentelemetry.io/collector/pdata/pcommon"

	"github.com/hotprofile/hotprofile/internal/cgroup"
	"github.com/hotprofile/hotprofile/internal/otlpprofiles/attr"
)

// selectCgroup is the key of match and exclude that is no resource attribute.
const selectCgroup = "cgroup"

// maxTold bounds the kinds of resources that a unit remembers having looked at,
// each 8 bytes; at the bound all are forgotten, and looked at again.
const maxTold = 64

// selector is a policy's match or exclude: a condition per key.
type selector []condition

// condition is one glob on one fact about a unit.
type condition struct {
	key     string
	matches func(value string) bool
}

// newSelector checks and compiles; its error begins with the key.
func newSelector(globs map[string]string) (selector, error) {
	var out selector
	for _, key := range slices.Sorted(maps.Keys(globs)) {
		c, err := newCondition(key, globs[key])
		if err != nil {
			return nil, fmt.Errorf("%s: %w", key, err)
		}
		out = append(out, c)
	}
	return out, nil
}

func newCondition(key, glob string) (condition, error) {
	if key == selectCgroup {
		g, err := cgroup.ParseGlob(glob)
		if err != nil {
			return condition{}, err
		}
		return condition{key: key, matches: func(path string) bool { return path != "" && g.Match(path) }}, nil
	}
	if glob == "" || !doublestar.ValidatePattern(glob) {
		return condition{}, fmt.Errorf("%q is not a glob: * matches within a name and ** across /, ? one character, [a-z] and {a,b} choose", glob)
	}
	prefix := key == attr.ContainerID && len(glob) >= cgroup.MinPrefix && !strings.ContainsAny(glob, `*?[{\`)
	return condition{key: key, matches: func(value string) bool {
		return value == glob || prefix && strings.HasPrefix(value, glob) || doublestar.MatchUnvalidated(glob, value)
	}}, nil
}

// facts answers what is known by a key; empty: nothing.
type facts func(key string) string

func (s selector) all(known facts) bool {
	for _, c := range s {
		if !c.holds(known) {
			return false
		}
	}
	return true
}

func (s selector) any(known facts) bool {
	for _, c := range s {
		if c.holds(known) {
			return true
		}
	}
	return false
}

func (c condition) holds(known facts) bool {
	value := known(c.key)
	return value != "" && c.matches(value)
}

// policySelector is what one policy selects.
type policySelector struct {
	match, exclude selector
	// told: it needs to know attributes, which only profiles have.
	told bool
}

// selectors decide which policies apply to which unit. A policy applies once any
// of the unit's resources matched, and not if any was excluded; one that asks
// for nothing but where the unit is does not wait for a profile.
type selectors struct {
	policies []policySelector // by index; nil: every policy applies to every unit
	asked    []string         // attributes, sorted
	seed     maphash.Seed
}

func newSelectors(policies []PolicyConfig) (*selectors, error) {
	s := &selectors{seed: maphash.MakeSeed()}
	asked, some := map[string]bool{}, false
	for _, p := range policies {
		var out policySelector
		var err error
		if out.match, err = newSelector(p.Match); err != nil {
			return nil, fmt.Errorf("policy %s: match.%w", p.Name, err)
		}
		if out.exclude, err = newSelector(p.Exclude); err != nil {
			return nil, fmt.Errorf("policy %s: exclude.%w", p.Name, err)
		}
		for _, c := range slices.Concat(out.match, out.exclude) {
			some = true
			if c.key != selectCgroup {
				asked[c.key] = true
			}
			out.told = out.told || c.key != selectCgroup && c.key != attr.ContainerID
		}
		s.policies = append(s.policies, out)
	}
	if !some {
		s.policies = nil
	}
	s.asked = slices.Sorted(maps.Keys(asked))
	return s, nil
}

// choice is what was decided of a unit so far.
type choice struct {
	matched, excluded []bool // by policy
	told              map[uint64]struct{}
}

// begin decides of a unit what can be without a profile.
func (s *selectors) begin(u *unit) {
	if s.policies == nil {
		return
	}
	u.chosen = choice{matched: make([]bool, len(s.policies)), excluded: make([]bool, len(s.policies)), told: map[uint64]struct{}{}}
	s.decide(u, func(key string) string { return u.fact(key) }, false)
}

// tell decides of a unit by a resource of its profiles.
func (s *selectors) tell(u *unit, attributes pcommon.Map) {
	if s.policies == nil || len(s.asked) == 0 {
		return
	}
	known := func(key string) string {
		if v, ok := attributes.Get(key); ok && key != selectCgroup {
			return v.AsString()
		}
		return u.fact(key)
	}
	var h maphash.Hash
	h.SetSeed(s.seed)
	for _, key := range s.asked {
		h.WriteString(known(key))
		h.WriteByte(0)
	}
	sum := h.Sum64()
	if _, ok := u.chosen.told[sum]; ok {
		return
	}
	if len(u.chosen.told) >= maxTold {
		clear(u.chosen.told)
	}
	u.chosen.told[sum] = struct{}{}
	s.decide(u, known, true)
}

func (s *selectors) decide(u *unit, known facts, told bool) {
	for i := range s.policies {
		p := &s.policies[i]
		if p.told && !told {
			u.gate.SetPolicy(i, false)
			continue
		}
		u.chosen.matched[i] = u.chosen.matched[i] || p.match.all(known)
		u.chosen.excluded[i] = u.chosen.excluded[i] || p.exclude.any(known)
		u.gate.SetPolicy(i, u.chosen.matched[i] && !u.chosen.excluded[i])
	}
}

// fact is what is known of a unit without its profiles.
func (u *unit) fact(key string) string {
	switch key {
	case selectCgroup:
		return u.path
	case attr.ContainerID:
		return u.containerID
	}
	return ""
}
