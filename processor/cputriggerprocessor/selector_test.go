// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package cputriggerprocessor

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/hotprofile/hotprofile/internal/cgroup"
)

// selecting returns a configuration whose only policy has the given match and exclude,
// and fires within seconds.
func selecting(match, exclude string) string {
	return fmt.Sprintf(`{pre_trigger: 0s, policies: [{name: cpu, match: %s, exclude: %s, any_of: [{monitor: cpu_usage, threshold: 1, average_over: 5s}]}]}`, match, exclude)
}

func TestPoliciesApplyToTheUnitsThatMatch(t *testing.T) {
	told := map[string]any{
		"container.id": containerA, "service.name": "checkout", "k8s.namespace.name": "shop",
		"process.executable.path": "/usr/lib/jvm/21/bin/java", "replica": 3, "process.executable.name": "java",
	}
	for name, c := range map[string]struct {
		match, exclude string
		untold         bool // whether the policy fires before the first profile
		fires          bool // whether the policy fires after a profile
	}{
		"everything":                     {"{}", "{}", true, true},
		"an attribute":                   {"{service.name: checkout}", "{}", false, true},
		"a glob":                         {"{service.name: check*}", "{}", false, true},
		"alternatives":                   {"{service.name: '{cart,checkout}'}", "{}", false, true},
		"another value":                  {"{service.name: cart}", "{}", false, false},
		"an attribute that is not there": {"{service.version: '*'}", "{}", false, false},
		"all of several":                 {"{service.name: checkout, k8s.namespace.name: shop}", "{}", false, true},
		"not all of several":             {"{service.name: checkout, k8s.namespace.name: other}", "{}", false, false},
		"a number":                       {"{replica: '3'}", "{}", false, true},
		"a star stays within a name":     {"{process.executable.path: '/usr/*/java'}", "{}", false, false},
		"two stars cross names":          {"{process.executable.path: '/usr/**/java'}", "{}", false, true},
		"its cgroup":                     {"{cgroup: '/docker/*'}", "{}", true, true},
		"under a cgroup":                 {"{cgroup: /docker}", "{}", true, true},
		"another cgroup":                 {"{cgroup: /system.slice}", "{}", false, false},
		"its container":                  {"{container.id: " + containerA + "}", "{}", true, true},
		"its container's first digits":   {"{container.id: " + containerA[:12] + "}", "{}", true, true},
		"a cgroup and an attribute":      {"{cgroup: '/docker/*', service.name: checkout}", "{}", false, true},
		"excluded":                       {"{}", "{service.name: checkout}", false, false},
		"excluded by any of several":     {"{}", "{service.name: cart, k8s.namespace.name: shop}", false, false},
		"not excluded":                   {"{}", "{service.name: cart}", false, true},
		"excluded by its cgroup":         {"{}", "{cgroup: '/docker/**'}", false, false},
		"not excluded by its cgroup":     {"{}", "{cgroup: /system.slice}", true, true},
		"matched and excluded":           {"{service.name: checkout}", "{k8s.namespace.name: shop}", false, false},
		"exclude an unknown attribute":   {"{}", "{service.version: '*'}", false, true},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, selecting(c.match, c.exclude))
			r.watch(containerA)
			r.source.cores[containerA] = 2
			r.run(20 * time.Second)
			require.Equal(t, c.untold, len(r.log("gate opened")) > 0, "without a profile")
			if c.untold {
				return
			}
			require.NoError(t, r.send(batch(t, r.now, part{attributes: told})))
			r.run(20 * time.Second)
			require.Equal(t, c.fires, len(r.log("gate opened")) > 0, "after a profile")
		})
	}
}

// TestPolicyAppliesOnceAnyResourceMatched covers a unit with several processes, for which
// one matching resource is enough.
func TestPolicyAppliesOnceAnyResourceMatched(t *testing.T) {
	r := newRig(t, selecting("{process.executable.name: worker}", "{process.executable.name: debugger}"))
	r.watch(containerA)
	r.source.cores[containerA] = 2
	of := func(executable string) part {
		return part{attributes: map[string]any{"container.id": containerA, "process.executable.name": executable}}
	}
	r.run(10 * time.Second)
	require.NoError(t, r.send(batch(t, r.now, of("shell"))))
	r.run(10 * time.Second)
	require.Empty(t, r.log("gate opened"))
	require.NoError(t, r.send(batch(t, r.now, of("shell"), of("worker"))))
	require.NoError(t, r.send(batch(t, r.now, of("shell"))))
	r.runUntil("gate opened", 10*time.Second)
}

func TestPolicyStopsToApplyOnceAnyResourceIsExcluded(t *testing.T) {
	r := newRig(t, selecting("{}", "{process.executable.name: debugger}"))
	r.watch(containerA)
	of := func(executable string) part {
		return part{attributes: map[string]any{"container.id": containerA, "process.executable.name": executable}}
	}
	require.NoError(t, r.send(batch(t, r.now, of("worker"), of("debugger"))))
	r.source.cores[containerA] = 2
	r.run(20 * time.Second)
	require.NoError(t, r.send(batch(t, r.now, of("worker"))))
	r.run(20 * time.Second)
	require.Empty(t, r.log("gate opened"))
}

// TestProcessesAreSelectedByWhereTheyAre checks that policies can select a process by its
// cgroup and by its container.
func TestProcessesAreSelectedByWhereTheyAre(t *testing.T) {
	for name, c := range map[string]struct {
		match string
		fires bool
	}{
		"its container":     {"{container.id: " + containerA[:12] + "}", true},
		"its cgroup":        {"{cgroup: /docker}", true},
		"another cgroup":    {"{cgroup: /system.slice}", false},
		"another container": {"{container.id: " + containerB + "}", false},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, "{scope: process, "+selecting(c.match, "{}")[1:])
			p := r.host.Processes[200]
			p.Name = "200:2026"
			r.host.Processes[200] = p
			r.source.cores[p.Name] = 2
			require.NoError(t, r.send(batch(t, r.now, part{attributes: map[string]any{
				"process.pid": 200, "process.executable.path": "/app/server",
			}})))
			r.run(20 * time.Second)
			require.Equal(t, c.fires, len(r.log("gate opened")) > 0)
		})
	}
}

func TestMinAgeSparesWhatHasJustStarted(t *testing.T) {
	r := newRig(t, "policies: [{name: cpu, any_of: [{monitor: cpu_usage, threshold: 1, average_over: 5s}]}]")
	r.watch(containerA)
	r.source.startedAt[containerA] = r.now.Add(-20 * time.Second)
	r.source.cores[containerA] = 2
	took := r.runUntil("gate opened", time.Minute)
	require.GreaterOrEqual(t, took, 40*time.Second)
	require.LessOrEqual(t, took, 45*time.Second)
}

func TestServiceOfAUnit(t *testing.T) {
	r := newRig(t, "{cooldown_by: service, min_age: 0s, pre_trigger: 0s, policies: [{name: cpu, duration: 20s, cooldown: 1h, any_of: [{monitor: cpu_usage, threshold: 1, average_over: 5s}]}]}")
	of := func(id, namespace, name string) part {
		return part{attributes: map[string]any{"container.id": id, "service.name": name, "service.namespace": namespace}}
	}
	ids := map[string]string{}
	for _, digit := range []string{"1", "2", "3", "4"} {
		id := digit + containerA[1:]
		ids[digit] = id
		r.host.Groups[id] = cgroup.Group{ID: id, ContainerID: id, Cgroup: "/docker/" + id}
	}
	hot := func(p part, digit string) int {
		before := len(r.log("gate opened"))
		r.watch(ids[digit])
		require.NoError(t, r.send(batch(t, r.now, p)))
		r.source.cores[ids[digit]] = 2
		r.run(15 * time.Second)
		require.NoError(t, r.send(batch(t, r.now, p)))
		r.run(30 * time.Second)
		return len(r.log("gate opened")) - before
	}
	require.Equal(t, 1, hot(of(ids["1"], "shop", "checkout"), "1"))
	require.Equal(t, 0, hot(of(ids["2"], "shop", "checkout"), "2"), "of the same service")
	require.Equal(t, 1, hot(of(ids["3"], "other", "checkout"), "3"), "of a service of the same name elsewhere")
	require.Equal(t, 1, hot(of(ids["4"], "shop", "unknown_service:java"), "4"), "of none")
}

func TestPoliciesThatMatchNoUnitAreWarnedOf(t *testing.T) {
	for match, want := range map[string]map[string]string{
		"{servce.name: checkout}":                           {"match": "servce.name: checkout", "why": "did you mean service.name?"},
		"{cgroup: /dockr/*}":                                {"match": "cgroup: /dockr/*", "why": "did you mean /docker/" + containerA + "?"},
		"{service.name: cart}":                              {"match": "service.name: cart", "why": "no unit has such a value: did you mean checkout?"},
		"{service.name: 'unknown_service:java'}":            {"match": "service.name: unknown_service:java", "why": "select process.executable.name"},
		"{team: shop}":                                      {"match": "team: shop", "why": "no profile has this attribute"},
		"{cgroup: '/docker/*', service.name: checkout}":     nil,
		"{container.id: " + containerA + "}":                nil,
		"{container.id: " + strings.Repeat("e", 64) + "}":   {"match": "container.id: " + strings.Repeat("e", 64), "why": "no unit has such a value"},
		"{service.name: checkout, cgroup: /system.slice/*}": {"match": "cgroup: /system.slice/*", "why": "no unit has such a value"},
	} {
		t.Run(match, func(t *testing.T) {
			r := newRig(t, selecting(match, "{}"))
			r.watch(containerA)
			require.NoError(t, r.send(batch(t, r.now, part{attributes: map[string]any{"container.id": containerA, "service.name": "checkout"}})))
			r.run(50 * time.Second)
			require.Empty(t, r.log("a policy matches no unit"))
			r.run(3 * time.Minute)
			said := r.log("a policy matches no unit")
			if want == nil {
				require.Empty(t, said)
				return
			}
			require.Len(t, said, 1)
			fields := said[0].ContextMap()
			require.Equal(t, "cpu", fields["policy"])
			require.Equal(t, want["match"], fields["match"])
			require.Contains(t, fields["why"], want["why"])
		})
	}
}

func TestAPolicyThatNeedsAttributesIsWarnedOfWithoutProfiles(t *testing.T) {
	r := newRig(t, selecting("{service.name: checkout}", "{}"))
	r.watch(containerA)
	r.run(2 * time.Minute)
	require.Equal(t, "no profile of a unit has arrived yet", r.last("a policy matches no unit")["why"])
}
