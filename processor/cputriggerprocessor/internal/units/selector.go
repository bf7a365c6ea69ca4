// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package units

import (
	"fmt"
	"hash/maphash"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"go.opentelemetry.io/collector/pdata/pcommon"

	"github.com/hotprofile/hotprofile/internal/configlog"
	"github.com/hotprofile/hotprofile/internal/identify"
	"github.com/hotprofile/hotprofile/internal/otlpprofiles/attr"
	"github.com/hotprofile/hotprofile/internal/unitmatch"
)

// maxSeen limits the resource hashes that a unit remembers. A hash takes 8 bytes. When
// the limit is reached, all hashes are discarded, and resources are matched again.
const maxSeen = 64

// maxKnown limits the keys and values that are remembered as suggestions for a misspelled
// key or value.
const maxKnown = 256

// selector is the match or exclude of a policy, with one condition per key.
type selector []condition

// condition is a glob that the value of a key must match.
type condition struct {
	key, glob string
	matches   func(value string) bool
}

// ValidateGlobs checks the globs of match or exclude. An error begins with the key.
func ValidateGlobs(globs map[string]string) error {
	_, err := newSelector(globs)
	return err
}

func newSelector(globs map[string]string) (selector, error) {
	var out selector
	for _, key := range slices.Sorted(maps.Keys(globs)) {
		matches, err := unitmatch.New(key, globs[key])
		if err != nil {
			return nil, fmt.Errorf("%s: %w", key, err)
		}
		out = append(out, condition{key, globs[key], matches})
	}
	return out, nil
}

// unusedAfter is the time after which a policy without a matching unit is reported.
const unusedAfter = time.Minute

// Unused is a policy that has matched no unit. Match is a key and glob that no unit
// matches. Match is empty if each glob matches a unit, but no unit matches all globs.
type Unused struct{ Policy, Match, Why string }

// TakeUnused returns the policies that have matched no unit. It returns these policies
// once, as soon as unusedAfter has passed since the first call after a change of
// policies. All other calls return nil.
func (s *Set) TakeUnused(now time.Time) (out []Unused) {
	s.mu.Lock()
	defer s.mu.Unlock()
	sel := s.cfg.Selectors
	if sel.taken {
		return nil
	}
	if sel.since.IsZero() {
		sel.since = now
	}
	if now.Sub(sel.since) < unusedAfter {
		return nil
	}
	sel.taken = true
	for i, globs := range sel.globs {
		if sel.used[i] || len(globs.Match) == 0 {
			continue
		}
		unused := Unused{Policy: globs.Policy, Why: "each of its globs may match a unit, but no unit matches all"}
		for _, c := range sel.policies[i].match {
			if why := s.whyUnused(c); why != "" {
				unused.Match, unused.Why = c.key+": "+c.glob, why
				break
			}
		}
		out = append(out, unused)
	}
	return out
}

// usualKeys contains the attributes that policies use most often.
var usualKeys = []string{
	attr.ServiceName, attr.ServiceNamespace, attr.ContainerName, attr.PodName, attr.NamespaceName, attr.ExecutableName, attr.ExecutablePath, attr.HostName,
}

// whyUnused returns the reason why a condition holds for no unit. The reason is empty if
// the condition may hold.
func (s *Set) whyUnused(c condition) string {
	sel := s.cfg.Selectors
	values := slices.Clone(sel.values[c.key])
	for _, u := range s.byName {
		value := u.fact(c.key)
		if value != "" && c.matches(value) {
			return ""
		}
		if value != "" && len(values) < maxKnown {
			values = append(values, value)
		}
	}
	attributes := c.key != unitmatch.CgroupKey && c.key != attr.ContainerID
	switch {
	case slices.ContainsFunc(values, c.matches):
		return ""
	case attributes && len(sel.known) == 0:
		return "no profile of a unit has arrived yet"
	case c.key == attr.ServiceName && (len(values) == 0 || strings.HasPrefix(c.glob, identify.UnknownService)):
		return "no unit has such a service name (unknown_service is added later): set OTEL_SERVICE_NAME in the service, or select process.executable.name"
	case attributes && len(values) == 0:
		return "no profile has this attribute" + didYouMean(c.key, slices.AppendSeq(slices.Clone(usualKeys), maps.Keys(sel.known)), max(2, len(c.key)/2))
	}
	return "no unit has such a value" + didYouMean(c.glob, values, math.MaxInt)
}

// didYouMean returns a question that suggests the candidate most similar to text. If the
// edit distance to this candidate exceeds most, didYouMean returns an empty string.
func didYouMean(text string, candidates []string, most int) string {
	slices.Sort(candidates)
	if nearest, distance := configlog.Nearest(text, candidates); nearest != "" && distance <= most {
		return fmt.Sprintf(": did you mean %s?", nearest)
	}
	return ""
}

// facts returns a unit's value for a key, or an empty string if the value is unknown.
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

// PolicyGlobs contains the match and exclude globs of a policy.
type PolicyGlobs struct {
	Policy         string
	Match, Exclude map[string]string
}

// equal reports whether two PolicyGlobs have the same policy and the same globs.
func (p PolicyGlobs) equal(other PolicyGlobs) bool {
	return p.Policy == other.Policy && maps.Equal(p.Match, other.Match) && maps.Equal(p.Exclude, other.Exclude)
}

// policySelector selects the units to which a policy applies.
type policySelector struct {
	match, exclude selector
	// attributes is true if the policy needs attributes that only profiles have.
	attributes bool
}

// Selectors decide which policies apply to which unit. A policy applies once a resource of
// the unit has matched, unless a resource was excluded. A policy that only uses the cgroup
// and the container's id does not wait for a profile.
type Selectors struct {
	globs    []PolicyGlobs
	policies []policySelector // by index
	keys     []string         // sorted keys that policies use, except cgroup
	seed     maphash.Seed

	used   []bool              // by policy: a unit has matched
	known  map[string]struct{} // keys of profiles' attributes, at most maxKnown; collected until taken is set
	values map[string][]string // values of profiles' attributes, by policy key; collected like known
	since  time.Time           // when TakeUnused was first called
	taken  bool                // TakeUnused has returned the unused policies
}

// NewSelectors compiles the globs of all policies.
func NewSelectors(policies []PolicyGlobs) (*Selectors, error) {
	s := &Selectors{
		globs: policies, seed: maphash.MakeSeed(),
		used: make([]bool, len(policies)), known: map[string]struct{}{}, values: map[string][]string{},
	}
	keys := map[string]bool{}
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
			if c.key != unitmatch.CgroupKey {
				keys[c.key] = true
			}
			out.attributes = out.attributes || c.key != unitmatch.CgroupKey && c.key != attr.ContainerID
		}
		s.policies = append(s.policies, out)
	}
	s.keys = slices.Sorted(maps.Keys(keys))
	return s, nil
}

// selection is the state of the Selectors for a unit.
type selection struct {
	matched, excluded []bool              // by policy
	seen              map[uint64]struct{} // hashes of resources
}

// begin applies the policies to a unit. old contains the policies that applied to the unit
// before, and is empty for a new unit. A policy with the same name and globs keeps its
// result. A new or changed policy that needs attributes waits for the next profile.
func (s *Selectors) begin(u *Unit, old *Selectors) {
	before, n := u.selection, len(s.policies)
	u.selection = selection{matched: make([]bool, n), excluded: make([]bool, n), seen: map[uint64]struct{}{}}
	for i, globs := range s.globs {
		if was := slices.IndexFunc(old.globs, globs.equal); was >= 0 {
			u.selection.matched[i], u.selection.excluded[i] = before.matched[was], before.excluded[was]
			s.apply(u, i)
		} else {
			s.decide(u, i, u.fact, false)
		}
	}
}

// see applies the policies to a unit when a resource of the unit arrives.
func (s *Selectors) see(u *Unit, attributes pcommon.Map) {
	if len(s.keys) == 0 {
		return
	}
	known := func(key string) string {
		if v, ok := attributes.Get(key); ok && key != unitmatch.CgroupKey {
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
	if !s.taken {
		for key := range attributes.All() {
			if len(s.known) < maxKnown {
				s.known[Shorten(key)] = struct{}{}
			}
		}
		for _, key := range s.keys {
			if value := Shorten(known(key)); value != "" && len(s.values[key]) < maxKnown && !slices.Contains(s.values[key], value) {
				s.values[key] = append(s.values[key], value)
			}
		}
	}
	for i := range s.policies {
		s.decide(u, i, known, true)
	}
}

// decide decides whether a policy applies to a unit. attributes is true if known includes
// the attributes of a profile.
func (s *Selectors) decide(u *Unit, i int, known facts, attributes bool) {
	p := &s.policies[i]
	if p.attributes && !attributes {
		u.decision.SetPolicy(i, false)
		return
	}
	u.selection.matched[i] = u.selection.matched[i] || p.match.all(known)
	u.selection.excluded[i] = u.selection.excluded[i] || p.exclude.any(known)
	s.apply(u, i)
}

// apply passes the selection of a policy to the decision core.
func (s *Selectors) apply(u *Unit, i int) {
	s.used[i] = s.used[i] || u.selection.matched[i]
	u.decision.SetPolicy(i, u.selection.matched[i] && !u.selection.excluded[i])
}

// fact returns the value for a key if it is known without a profile of the unit.
func (u *Unit) fact(key string) string {
	switch key {
	case unitmatch.CgroupKey:
		return u.Path
	case attr.ContainerID:
		return u.ContainerID
	}
	return ""
}
