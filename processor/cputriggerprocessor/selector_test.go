// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package cputriggerprocessor

import (
	"fmt"
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

// TestAPolicyThatMatchesNoUnitIsWarnedOf checks that the warning is logged once.
func TestAPolicyThatMatchesNoUnitIsWarnedOf(t *testing.T) {
	r := newRig(t, selecting("{service.name: checkout}", "{}"))
	r.watch(containerA)
	r.run(50 * time.Second)
	require.Empty(t, r.log("a policy matches no unit"))
	r.run(3 * time.Minute)
	require.Len(t, r.log("a policy matches no unit"), 1)
	require.Equal(t, map[string]any{
		"policy": "cpu", "match": "service.name: checkout", "why": "no profile of a unit has arrived yet",
	}, r.last("a policy matches no unit"))
}
