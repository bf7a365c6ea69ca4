// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package units

import (
	"fmt"
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
