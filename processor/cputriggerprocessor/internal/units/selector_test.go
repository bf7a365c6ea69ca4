// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package units

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pcommon"

	"github.com/hotprofile/hotprofile/internal/identify"
	"github.com/hotprofile/hotprofile/internal/trigger"
	"github.com/hotprofile/hotprofile/internal/trigger/window"
	"github.com/hotprofile/hotprofile/test/identifytest"
)

const containerA = identifytest.ContainerA

// selecting returns a set that contains the unit containerA, and the unit itself.
func selecting(t testing.TB, policies ...PolicyGlobs) (*Set, *Unit) {
	t.Helper()
	cfg := trigger.Config{CollectionInterval: time.Second, Monitors: []trigger.Monitor{{Name: "cpu"}}}
	for _, p := range policies {
		cfg.Policies = append(cfg.Policies, trigger.Policy{Name: p.Policy, Duration: time.Second, Conditions: []trigger.Condition{{Monitor: "cpu", Test: window.Test{Threshold: 1, AverageOver: 5 * time.Second}}}})
	}
	engine, err := trigger.New(cfg)
	require.NoError(t, err)
	selectors, err := NewSelectors(policies)
	require.NoError(t, err)
	s := New(Config{Lock: new(sync.Mutex), Engine: engine, Selectors: selectors})
	s.Add(identify.Identity{Name: containerA, Group: identifytest.NewHost().Groups[containerA]}, identifytest.Epoch)
	u, ok := s.Lookup(containerA)
	require.True(t, ok)
	return s, u
}

func attributes(t testing.TB, m map[string]any) pcommon.Map {
	t.Helper()
	out := pcommon.NewMap()
	require.NoError(t, out.FromRaw(m))
	return out
}

// applies reports whether the first policy applies to a unit.
func applies(u *Unit) bool { return u.decision.Uses([]string{"cpu"}) }

// globsOf returns the globs of the policy p.
func globsOf(match, exclude map[string]string) PolicyGlobs {
	return PolicyGlobs{Policy: "p", Match: match, Exclude: exclude}
}

func TestPoliciesApplyToTheUnitsThatMatch(t *testing.T) {
	resource := attributes(t, map[string]any{
		"container.id": containerA, "service.name": "checkout", "k8s.namespace.name": "shop",
		"process.executable.path": "/usr/lib/jvm/21/bin/java", "replica": 3, "process.executable.name": "java",
	})
	type globs = map[string]string
	for name, c := range map[string]struct {
		match, exclude globs
		before         bool // whether the policy applies before the first profile
		after          bool // whether the policy applies after a profile
	}{
		"everything":                     {nil, nil, true, true},
		"an attribute":                   {globs{"service.name": "checkout"}, nil, false, true},
		"a glob":                         {globs{"service.name": "check*"}, nil, false, true},
		"alternatives":                   {globs{"service.name": "{cart,checkout}"}, nil, false, true},
		"another value":                  {globs{"service.name": "cart"}, nil, false, false},
		"an attribute that is not there": {globs{"service.version": "*"}, nil, false, false},
		"all of several":                 {globs{"service.name": "checkout", "k8s.namespace.name": "shop"}, nil, false, true},
		"not all of several":             {globs{"service.name": "checkout", "k8s.namespace.name": "other"}, nil, false, false},
		"a number":                       {globs{"replica": "3"}, nil, false, true},
		"a star stays within a name":     {globs{"process.executable.path": "/usr/*/java"}, nil, false, false},
		"two stars cross names":          {globs{"process.executable.path": "/usr/**/java"}, nil, false, true},
		"its cgroup":                     {globs{"cgroup": "/docker/*"}, nil, true, true},
		"under a cgroup":                 {globs{"cgroup": "/docker"}, nil, true, true},
		"another cgroup":                 {globs{"cgroup": "/system.slice"}, nil, false, false},
		"its container":                  {globs{"container.id": containerA}, nil, true, true},
		"its container's first digits":   {globs{"container.id": containerA[:12]}, nil, true, true},
		"a cgroup and an attribute":      {globs{"cgroup": "/docker/*", "service.name": "checkout"}, nil, false, true},
		"excluded":                       {nil, globs{"service.name": "checkout"}, false, false},
		"excluded by any of several":     {nil, globs{"service.name": "cart", "k8s.namespace.name": "shop"}, false, false},
		"not excluded":                   {nil, globs{"service.name": "cart"}, false, true},
		"excluded by its cgroup":         {nil, globs{"cgroup": "/docker/**"}, false, false},
		"not excluded by its cgroup":     {nil, globs{"cgroup": "/system.slice"}, true, true},
		"matched and excluded":           {globs{"service.name": "checkout"}, globs{"k8s.namespace.name": "shop"}, false, false},
		"exclude an unknown attribute":   {nil, globs{"service.version": "*"}, false, true},
	} {
		t.Run(name, func(t *testing.T) {
			s, u := selecting(t, globsOf(c.match, c.exclude))
			require.Equal(t, c.before, applies(u), "without a profile")
			s.See(u.Identity, identify.Claim{Attributes: resource}, identifytest.Epoch)
			require.Equal(t, c.after, applies(u), "after a profile")
		})
	}
}

// see tells a set of a process of the unit that runs the executable.
func see(t *testing.T, s *Set, u *Unit, executable string) {
	t.Helper()
	s.See(u.Identity, identify.Claim{Attributes: attributes(t, map[string]any{"container.id": containerA, "process.executable.name": executable})}, identifytest.Epoch)
}

// TestPolicyAppliesOnceAnyResourceMatched covers a unit with several processes, for which
// one matching resource is enough.
func TestPolicyAppliesOnceAnyResourceMatched(t *testing.T) {
	s, u := selecting(t, globsOf(map[string]string{"process.executable.name": "worker"}, map[string]string{"process.executable.name": "debugger"}))
	see(t, s, u, "shell")
	require.False(t, applies(u))
	see(t, s, u, "worker")
	require.True(t, applies(u))
	see(t, s, u, "shell")
	require.True(t, applies(u))
}

func TestPolicyStopsToApplyOnceAnyResourceIsExcluded(t *testing.T) {
	s, u := selecting(t, globsOf(nil, map[string]string{"process.executable.name": "debugger"}))
	see(t, s, u, "worker")
	require.True(t, applies(u))
	see(t, s, u, "debugger")
	require.False(t, applies(u))
	see(t, s, u, "worker")
	require.False(t, applies(u))
}

func TestPoliciesThatMatchNoUnitAreUnused(t *testing.T) {
	type globs = map[string]string
	const value = "no unit has such a value"
	for name, c := range map[string]struct {
		match globs
		want  Unused
	}{
		"a misspelled key":            {globs{"servce.name": "checkout"}, Unused{Match: "servce.name: checkout", Why: "did you mean service.name?"}},
		"a misspelled cgroup":         {globs{"cgroup": "/dockr/*"}, Unused{Match: "cgroup: /dockr/*", Why: "did you mean /docker/" + containerA + "?"}},
		"another service":             {globs{"service.name": "cart"}, Unused{Match: "service.name: cart", Why: value + ": did you mean checkout?"}},
		"a service name that is late": {globs{"service.name": "unknown_service:java"}, Unused{Match: "service.name: unknown_service:java", Why: "select process.executable.name"}},
		"an unknown key":              {globs{"team": "shop"}, Unused{Match: "team: shop", Why: "no profile has this attribute"}},
		"a unit matches":              {globs{"cgroup": "/docker/*", "service.name": "checkout"}, Unused{}},
		"its container":               {globs{"container.id": containerA}, Unused{}},
		"another container":           {globs{"container.id": strings.Repeat("e", 64)}, Unused{Match: "container.id: " + strings.Repeat("e", 64), Why: value}},
		"one of two":                  {globs{"service.name": "checkout", "cgroup": "/system.slice/*"}, Unused{Match: "cgroup: /system.slice/*", Why: value}},
	} {
		t.Run(name, func(t *testing.T) {
			s, u := selecting(t, globsOf(c.match, nil))
			s.See(u.Identity, identify.Claim{Attributes: attributes(t, map[string]any{"container.id": containerA, "service.name": "checkout"})}, identifytest.Epoch)
			require.Empty(t, s.TakeUnused(identifytest.Epoch))
			require.Empty(t, s.TakeUnused(identifytest.Epoch.Add(unusedAfter-time.Second)))
			unused := s.TakeUnused(identifytest.Epoch.Add(unusedAfter))
			require.Empty(t, s.TakeUnused(identifytest.Epoch.Add(2*unusedAfter)), "once")
			if c.want.Match == "" {
				require.Empty(t, unused)
				return
			}
			require.Len(t, unused, 1)
			require.Equal(t, "p", unused[0].Policy)
			require.Equal(t, c.want.Match, unused[0].Match)
			require.Contains(t, unused[0].Why, c.want.Why)
		})
	}
}

// TestResourcesSeenAreBounded checks that the memory of a unit with many different
// resources is bounded.
func TestResourcesSeenAreBounded(t *testing.T) {
	s, u := selecting(t, PolicyGlobs{Policy: "p", Match: map[string]string{"service.name": "last"}})
	for i := range 3 * maxSeen {
		s.cfg.Selectors.see(u, attributes(t, map[string]any{"container.id": containerA, "service.name": fmt.Sprint(i)}))
	}
	require.LessOrEqual(t, len(u.selection.seen), maxSeen)
	require.False(t, u.selection.matched[0])
	s.cfg.Selectors.see(u, attributes(t, map[string]any{"container.id": containerA, "service.name": "last"}))
	require.True(t, u.selection.matched[0])
}

// TestSeeingAResourceAgainAllocatesNothing covers a known resource, because every batch
// contains the same resources again.
func TestSeeingAResourceAgainAllocatesNothing(t *testing.T) {
	s, u := selecting(t, PolicyGlobs{
		Policy: "p", Match: map[string]string{"service.name": "checkout", "cgroup": "/docker/*"},
		Exclude: map[string]string{"process.executable.name": "shell"},
	})
	a := attributes(t, map[string]any{"container.id": containerA, "service.name": "checkout", "process.executable.name": "app"})
	s.cfg.Selectors.see(u, a)
	require.Zero(t, testing.AllocsPerRun(100, func() { s.cfg.Selectors.see(u, a) }))
}

// BenchmarkSee measures the cost of match and exclude for a known resource.
func BenchmarkSee(b *testing.B) {
	for _, policies := range []int{1, 100} {
		b.Run(fmt.Sprintf("policies=%d", policies), func(b *testing.B) {
			var globs []PolicyGlobs
			for i := range policies {
				globs = append(globs, PolicyGlobs{Policy: fmt.Sprint(i), Match: map[string]string{"service.name": fmt.Sprintf("s%d", i), "cgroup": "/docker/*"}})
			}
			s, u := selecting(b, globs...)
			resource := attributes(b, map[string]any{"container.id": containerA, "service.name": "checkout", "process.executable.name": "app", "k8s.namespace.name": "shop"})
			b.ReportAllocs()
			for b.Loop() {
				s.cfg.Selectors.see(u, resource)
			}
		})
	}
}

func FuzzSelectorGlobs(f *testing.F) {
	f.Add("service.name", "check*", "checkout")
	f.Add("cgroup", "/kubepods/**", "/kubepods/a/b")
	f.Add("container.id", containerA[:12], containerA)
	f.Add("x", "[a-", "a")
	f.Fuzz(func(t *testing.T, key, glob, value string) {
		s, err := newSelector(map[string]string{key: glob})
		if err != nil {
			return
		}
		known := func(string) string { return value }
		require.Equal(t, s.all(known), s.any(known), "of one condition")
		require.False(t, s.any(func(string) string { return "" }), "what is not known matches nothing")
	})
}
