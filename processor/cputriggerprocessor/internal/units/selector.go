// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package units

import (
	"fmt"
	"hash/maphash"
	"maps"
	"slices"
	"strings"

	"go.opentelemetry.io/collector/pdata/pcommon"

	"github.com/hotprofile/hotprofile/internal/cgroup"
	"github.com/hotprofile/hotprofile/internal/globs"
	"github.com/hotprofile/hotprofile/internal/otlpprofiles/attr"
)

// cgroupKey is the key of match and exclude that is no resource attribute.
const cgroupKey = "cgroup"

// maxSeen bounds the hashes of resources that a unit remembers having seen, each 8
// bytes; at the bound all are forgotten, and looked at again.
const maxSeen = 64

// selector is a policy's match or exclude: a condition per key.
type selector []condition

// condition is one glob on one fact about a unit.
type condition struct {
	key     string
	matches func(value string) bool
}

// ValidateGlobs checks the globs of match or exclude. Its error begins with the
// key.
func ValidateGlobs(globs map[string]string) error {
	_, err := newSelector(globs)
	return err
}

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
	if key == cgroupKey {
		g, err := cgroup.ParseGlob(glob)
		if err != nil {
			return condition{}, err
		}
		return condition{key: key, matches: func(path string) bool { return path != "" && g.Match(path) }}, nil
	}
	if err := globs.Check(glob); err != nil {
		return condition{}, err
	}
	prefix := key == attr.ContainerID && len(glob) >= cgroup.MinPrefix && !strings.ContainsAny(glob, `*?[{\`)
	return condition{key: key, matches: func(value string) bool {
		return prefix && strings.HasPrefix(value, glob) || globs.Match(glob, value)
	}}, nil
}

// facts returns what is known by a key, or nothing.
type facts func(key string) string

func (s selector) all(known facts) bool {
	return !slices.ContainsFunc(s, func(c condition) bool { return !c.holds(known) })
}

func (s selector) any(known facts) bool {
	return slices.ContainsFunc(s, func(c condition) bool { return c.holds(known) })
}

func (c condition) holds(known facts) bool {
	value := known(c.key)
	return value != "" && c.matches(value)
}

// PolicyGlobs are the match and exclude of a policy.
type PolicyGlobs struct {
	Policy         string
	Match, Exclude map[string]string
}

// equal reports whether the same units are selected.
func (p PolicyGlobs) equal(other PolicyGlobs) bool {
	return p.Policy == other.Policy && maps.Equal(p.Match, other.Match) && maps.Equal(p.Exclude, other.Exclude)
}

// policySelector selects the units of one policy.
type policySelector struct {
	match, exclude selector
	// attributes: it needs attributes that only profiles have.
	attributes bool
}

// Selectors decide which policies apply to which unit. A policy applies once any
// resource of the unit matched and none was excluded. A policy whose globs need
// the cgroup and the container's id alone does not wait for a profile.
type Selectors struct {
	globs    []PolicyGlobs
	policies []policySelector // by index; nil: every policy applies to every unit
	keys     []string         // of attributes, sorted
	seed     maphash.Seed
}

// NewSelectors compiles the globs of all policies.
func NewSelectors(policies []PolicyGlobs) (*Selectors, error) {
	s := &Selectors{globs: policies, seed: maphash.MakeSeed()}
	keys, some := map[string]bool{}, false
	for _, p := range policies {
		var out policySelector
		var err error
		if out.match, err = newSelector(p.Match); err != nil {
			return nil, fmt.Errorf("policy %s: match.%w", p.Policy, err)
		}
		if out.exclude, err = newSelector(p.Exclude); err != nil {
			return nil, fmt.Errorf("policy %s: exclude.%w", p.Policy, err)
		}
		for _, c := range slices.Concat(out.match, out.exclude) {
			some = true
			if c.key != cgroupKey {
				keys[c.key] = true
			}
			out.attributes = out.attributes || c.key != cgroupKey && c.key != attr.ContainerID
		}
		s.policies = append(s.policies, out)
	}
	if !some {
		s.policies = nil
	}
	s.keys = slices.Sorted(maps.Keys(keys))
	return s, nil
}

// selection is the state of the Selectors for a unit.
type selection struct {
	matched, excluded []bool              // by policy
	seen              map[uint64]struct{} // hashes of resources
}

// begin applies the policies that need no profile to a new unit.
func (s *Selectors) begin(u *Unit) {
	if s.policies == nil {
		return
	}
	u.selection = s.newSelection()
	s.decide(u, u.fact, false)
}

func (s *Selectors) newSelection() selection {
	return selection{matched: make([]bool, len(s.policies)), excluded: make([]bool, len(s.policies)), seen: map[uint64]struct{}{}}
}

// replace applies the policies to a unit to which those of old applied. One whose name
// and globs are the same still applies where it did. One that needs attributes and is
// new or changed waits for the next profile.
func (s *Selectors) replace(old *Selectors, u *Unit) {
	before := u.selection
	u.selection = selection{}
	if s.policies != nil {
		u.selection = s.newSelection()
	}
	for i, globs := range s.globs {
		n := slices.IndexFunc(old.globs, globs.equal)
		switch {
		case s.policies == nil:
			u.decision.SetPolicy(i, true)
		case n >= 0 && old.policies != nil:
			u.selection.matched[i], u.selection.excluded[i] = before.matched[n], before.excluded[n]
			u.decision.SetPolicy(i, before.matched[n] && !before.excluded[n])
		default:
			s.decideOne(u, i, u.fact, false)
		}
	}
}

// see applies the policies to a unit after a resource of its profiles.
func (s *Selectors) see(u *Unit, attributes pcommon.Map) {
	if s.policies == nil || len(s.keys) == 0 {
		return
	}
	known := func(key string) string {
		if v, ok := attributes.Get(key); ok && key != cgroupKey {
			return v.AsString()
		}
		return u.fact(key)
	}
	var h maphash.Hash
	h.SetSeed(s.seed)
	for _, key := range s.keys {
		h.WriteString(known(key))
		h.WriteByte(0)
	}
	sum := h.Sum64()
	if _, ok := u.selection.seen[sum]; ok {
		return
	}
	if len(u.selection.seen) >= maxSeen {
		clear(u.selection.seen)
	}
	u.selection.seen[sum] = struct{}{}
	s.decide(u, known, true)
}

func (s *Selectors) decide(u *Unit, known facts, attributes bool) {
	for i := range s.policies {
		s.decideOne(u, i, known, attributes)
	}
}

func (s *Selectors) decideOne(u *Unit, i int, known facts, attributes bool) {
	p := &s.policies[i]
	if p.attributes && !attributes {
		u.decision.SetPolicy(i, false)
		return
	}
	u.selection.matched[i] = u.selection.matched[i] || p.match.all(known)
	u.selection.excluded[i] = u.selection.excluded[i] || p.exclude.any(known)
	u.decision.SetPolicy(i, u.selection.matched[i] && !u.selection.excluded[i])
}

// fact returns what is known of a unit without its profiles.
func (u *Unit) fact(key string) string {
	switch key {
	case cgroupKey:
		return u.Path
	case attr.ContainerID:
		return u.ContainerID
	}
	return ""
}
