// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package cputriggerprocessor

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap/zaptest/observer"

	"github.com/hotprofile/hotprofile/internal/cgroup"
	"github.com/hotprofile/hotprofile/internal/monitor"
)

// unitsIn returns the units of log entries.
func unitsIn(lines []observer.LoggedEntry) map[string]bool {
	out := map[string]bool{}
	for _, l := range lines {
		out[l.ContextMap()["unit"].(string)] = true
	}
	return out
}

// crowd adds 30 units. A unit with a higher number is hotter, but no unit is hot.
func crowd(r *rig) (names []string) {
	for i := range 30 {
		name := fmt.Sprintf("/system.slice/s%02d.service", i)
		r.host.Groups[name] = cgroup.Group{ID: name, Cgroup: name}
		r.source.cores[name] = float64(i) / 30
		names = append(names, name)
	}
	r.watch(names...)
	return names
}

func TestDebugLogShowsTheTenNearest(t *testing.T) {
	r := newRig(t, "")
	names := crowd(r)
	r.run(time.Minute)
	r.logs.TakeAll()
	r.run(5 * time.Second)
	want := map[string]bool{}
	for _, n := range names[20:] {
		want[n] = true
	}
	for _, message := range []string{"cpu reading", "window updated", "gate not opened"} {
		require.Equal(t, want, unitsIn(r.log(message)), message)
	}
	require.Len(t, r.log("cpu reading"), 50, "a line per reading")
	require.Len(t, r.log("window updated"), 30, "a line per evaluation and item")
	near := r.log("gate not opened")[0].ContextMap()
	require.Equal(t, names[29], near["unit"])
	require.Equal(t, "below the threshold", near["why"])
	require.InDelta(t, 80-100*29.0/60, near["short_by"], 0.1)
}

func TestDebugLogSaysWhatIsFound(t *testing.T) {
	r := newRig(t, "")
	crowd(r)
	r.run(8 * time.Second)
	require.Len(t, unitsIn(r.log("cpu reading")), 10)
	require.Len(t, unitsIn(r.log("capacity found")), 10)
	require.Len(t, r.log("capacity found"), 10, "said when it changes")
	require.Equal(t, 2.0, r.log("capacity found")[0].ContextMap()["cores"])
	require.Len(t, r.log("monitor found"), 30, "of each monitor, when it changes")
	require.Equal(t, "/sys/fs/cgroup/cpu_throttling", r.log("monitor found")[1].ContextMap()["from"])
	for _, l := range r.log("gate not opened") {
		require.Equal(t, "too few readings yet", l.ContextMap()["why"])
	}
}

func TestDebugLogSaysWhyAHotUnitIsNotLetOut(t *testing.T) {
	r := newRig(t, "policies: [{name: cpu, duration: 10s, cooldown: 1h, any_of: [{monitor: cpu_usage, threshold: 1, average_over: 5s}]}]")
	why := func() any {
		lines := r.log("gate not opened")
		return lines[len(lines)-1].ContextMap()["why"]
	}
	r.fire(containerA)
	r.logs.TakeAll()
	r.run(5 * time.Second)
	require.Empty(t, r.log("gate not opened"), "it is open")
	r.runUntil("gate closed", time.Minute)
	r.run(5 * time.Second)
	require.Equal(t, "nothing was exported last time", why())
	r.runUntil("gate opened", 2*time.Minute)
	require.NoError(t, r.send(batch(t, r.now.Add(time.Second), inContainer(containerA))))
	r.runUntil("gate closed", time.Minute)
	r.run(5 * time.Second)
	require.Equal(t, "cooling down", why())
}

func TestDebugLogSaysWhatKeepsAHotUnitsGateShut(t *testing.T) {
	const fires = "any_of: [{monitor: cpu_usage, threshold: 1, average_over: 5s}]"
	for why, c := range map[string]struct {
		yaml string
		with map[string]any
	}{
		"younger than min_age":    {"{policies: [{name: cpu, " + fires + "}]}", nil},
		"no policy applies to it": {"{policies: [{name: cpu, match: {service.name: x}, " + fires + "}]}", nil},
		"its policy is a dry run": {"{min_age: 0s, policies: [{name: cpu, dry_run: true, " + fires + "}]}", nil},
		"over budget":             {"{min_age: 0s, budgets: {max_concurrent_units: 1}, policies: [{name: cpu, " + fires + "}]}", map[string]any{"budget": "max_concurrent_units"}},
		"too few readings yet":    {"{min_age: 0s, policies: [{name: cpu, any_of: [{monitor: cpu_usage, threshold: 1, average_over: 50s}]}]}", nil},
		"its share of the host's CPU is too small": {
			"{min_age: 0s, policies: [{name: cpu, any_of: [{monitor: system_load, threshold: 1, average_over: 5s}]}]}", map[string]any{"guard": "cpu_host_share"},
		},
	} {
		t.Run(why, func(t *testing.T) {
			r := newRig(t, c.yaml)
			if c.with["budget"] != nil {
				_, err := r.p.openByHand(t.Context(), service, time.Hour)
				require.NoError(t, err)
			}
			r.watch(containerA)
			r.source.startedAt[containerA] = r.now
			r.source.cores[containerA] = 2
			r.source.set(containerA, monitor.SystemLoad, 9)
			r.source.set(containerA, monitor.CPUHostShare, 1)
			r.run(20 * time.Second)
			lines := r.log("gate not opened")
			lines = slices.DeleteFunc(lines, func(l observer.LoggedEntry) bool { return l.ContextMap()["unit"] == service })
			said := lines[len(lines)-1].ContextMap()
			require.Equal(t, why, said["why"])
			for k, v := range c.with {
				require.Equal(t, v, said[k])
			}
		})
	}
}
