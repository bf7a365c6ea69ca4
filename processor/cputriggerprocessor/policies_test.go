// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package cputriggerprocessor

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/hotprofile/hotprofile/extension/hotunitsextension"
	"github.com/hotprofile/hotprofile/internal/cgroup"
	"github.com/hotprofile/hotprofile/internal/identify"
	"github.com/hotprofile/hotprofile/internal/monitor"
	"github.com/hotprofile/hotprofile/internal/trigger"
	"github.com/hotprofile/hotprofile/internal/trigger/budget"
	"github.com/hotprofile/hotprofile/processor/cputriggerprocessor/internal/collect"
	"github.com/hotprofile/hotprofile/processor/cputriggerprocessor/internal/manual"
)

// onePolicy returns a configuration without a recorder and with a policy that fires
// within seconds. policy and processor contain further keys of the policy and of the
// processor.
func onePolicy(policy, processor string) string {
	if policy != "" {
		policy = ", " + policy
	}
	if processor != "" {
		processor = ", " + processor
	}
	return "{pre_trigger: 0s, min_age: 0s, policies: [{name: cpu, any_of: [{monitor: cpu_usage, threshold: 1, average_over: 5s}]" + policy + "}]" + processor + "}"
}

// last returns the fields of the last log entry with a message.
func (r *rig) last(message string) map[string]any {
	r.t.Helper()
	lines := r.log(message)
	require.NotEmpty(r.t, lines, message)
	return lines[len(lines)-1].ContextMap()
}

func (r *rig) triggers() map[string]int64 { return r.metric("otelcol_cpu_trigger.triggers") }

func TestSecondDefaultPolicyFiresOnThrottling(t *testing.T) {
	r := newRig(t, "")
	r.watch(containerA)
	r.source.cores[containerA] = 0.5
	r.source.set(containerA, monitor.CPUThrottling, 20)
	r.run(time.Minute)
	require.Empty(t, r.log("gate opened"))
	r.source.set(containerA, monitor.CPUThrottling, 60)
	r.runUntil("gate opened", time.Minute)
	require.Equal(t, "throttled", r.last("gate opened")["policy"])
	require.Equal(t, "cpu_throttling", r.last("gate opened")["monitor"])
	require.Equal(t, 25.0, r.last("gate opened")["threshold"])
}

func TestGaugeFires(t *testing.T) {
	r := newRig(t, "policies: [{name: threads, any_of: [{monitor: thread_count, threshold: 100, average_over: 10s}]}]")
	r.watch(containerA)
	r.source.set(containerA, monitor.ThreadCount, 90)
	r.run(30 * time.Second)
	require.Empty(t, r.log("gate opened"))
	r.source.set(containerA, monitor.ThreadCount, 200)
	r.runUntil("gate opened", 20*time.Second)
	require.Equal(t, "thread_count", r.last("gate opened")["monitor"])
	require.EqualValues(t, map[string]int64{"ok thread_count": r.metric("otelcol_cpu_trigger.readings")["ok thread_count"]}, r.metric("otelcol_cpu_trigger.readings"))
}

func TestWhatIsTheSameForAllNeedsAShare(t *testing.T) {
	r := newRig(t, "policies: [{name: load, any_of: [{monitor: system_load, threshold: 4, average_over: 10s}]}]")
	r.watch(containerA, service)
	for _, u := range []string{containerA, service} {
		r.source.set(u, monitor.SystemLoad, 9)
	}
	r.source.set(containerA, monitor.CPUHostShare, 2)
	r.source.set(service, monitor.CPUHostShare, 60)
	r.run(time.Minute)
	require.Len(t, r.log("gate opened"), 1)
	require.Equal(t, service, r.last("gate opened")["unit"])
}

func TestReleaseClosesEarly(t *testing.T) {
	r := newRig(t, "{pre_trigger: 0s, policies: [{name: cpu, duration: 1m, any_of: [{monitor: cpu_usage, threshold: 1, average_over: 5s, release_below: 0.5}]}]}")
	r.fire(containerA)
	require.NoError(t, r.send(batch(t, r.now.Add(time.Second), inContainer(containerA))))
	r.source.cores[containerA] = 0
	took := r.runUntil("gate closed", time.Minute)
	require.LessOrEqual(t, took, 15*time.Second)
	require.Equal(t, "released", r.last("gate closed")["why"])
	require.EqualValues(t, 6, r.last("gate closed")["samples"])
}

func TestDryRunLetsNothingOut(t *testing.T) {
	r := newRig(t, onePolicy("duration: 10s, cooldown: 1h, dry_run: true", ""))
	r.fire(containerA)
	require.Equal(t, true, r.last("gate opened")["dry_run"])
	require.Equal(t, map[string]int64{"": 0}, r.metric("otelcol_cpu_trigger.gates.open"))
	require.NoError(t, r.send(batch(t, r.now.Add(time.Second), inContainer(containerA))))
	require.Empty(t, r.sink.AllProfiles())
	require.Equal(t, map[string]int64{"dry_run": 6}, r.samples())
	r.runUntil("gate closed", time.Minute)
	closed := r.last("gate closed")
	require.Equal(t, true, closed["dry_run"])
	require.NotContains(t, closed, "nothing_exported")
	r.run(2 * time.Minute)
	require.Len(t, r.log("gate opened"), 1, "it cools down as if it had let something out")
	require.Equal(t, map[string]int64{"cpu dry_run": 1}, r.triggers())
}

func TestDryRunBesideAnotherPolicy(t *testing.T) {
	r := newRig(t, `
pre_trigger: 0s
policies:
  - {name: real, any_of: [{monitor: cpu_usage, threshold: 1, average_over: 10s}]}
  - {name: trial, dry_run: true, any_of: [{monitor: cpu_usage, threshold: 0.5, average_over: 5s}]}
`)
	r.fire(containerA)
	require.Equal(t, "trial", r.last("gate opened")["policy"])
	r.runUntil("gate opened", time.Minute)
	require.Equal(t, "real", r.last("gate opened")["policy"])
	require.NotContains(t, r.last("gate opened"), "also_open", "a policy that passes nothing is no other reason")
	require.NoError(t, r.send(batch(t, r.now.Add(time.Second), inContainer(containerA))))
	require.Equal(t, "real", allProfiles(r.received())[0].attributes["hotprofile.trigger.policy"])
}

func TestOpeningListsTheOtherOpenPolicies(t *testing.T) {
	r := newRig(t, `
policies:
  - {name: slow, any_of: [{monitor: cpu_usage, threshold: 1, average_over: 20s}]}
  - {name: fast, duration: 1m, any_of: [{monitor: cpu_utilization, threshold: 80, average_over: 5s}]}
`)
	r.fire(containerA)
	require.NotContains(t, r.last("gate opened"), "also_open")
	r.runUntil("gate opened", time.Minute)
	require.Equal(t, "slow", r.last("gate opened")["policy"])
	require.Equal(t, []any{"fast"}, r.last("gate opened")["also_open"])
}

func TestBaselineLetsOutWindowsOfCoolTimes(t *testing.T) {
	r := newRig(t, onePolicy("cooldown: 0s, baseline: {every: 10m, duration: 10s}", ""))
	r.watch(containerA)
	r.source.cores[containerA] = 0.2
	r.runUntil("gate opened", 21*time.Minute)
	opened := r.last("gate opened")
	require.Equal(t, "baseline", opened["phase"])
	require.Equal(t, "cpu", opened["policy"])
	require.NoError(t, r.send(batch(t, r.now.Add(2*time.Second), inContainer(containerA))))
	require.Equal(t, "baseline", allProfiles(r.received())[0].attributes["hotprofile.trigger.phase"])
	took := r.runUntil("gate closed", time.Minute)
	require.LessOrEqual(t, took, 15*time.Second)
	require.Equal(t, "baseline", r.last("gate closed")["phase"])
	r.source.cores[containerA] = 2
	r.runUntil("gate opened", time.Minute)
	require.NotContains(t, r.last("gate opened"), "phase", "it started no cooldown")
}

func TestOverBudgetIsSaidOnceAnEpisode(t *testing.T) {
	r := newRig(t, onePolicy("duration: 20s, cooldown: 1h", "budgets: {max_concurrent_units: 1}"))
	r.watch(containerA, service)
	r.source.cores[containerA], r.source.cores[service] = 2, 1.5
	r.runUntil("gate opened", time.Minute)
	require.Equal(t, containerA, r.last("gate opened")["unit"], "the hottest first")
	require.NoError(t, r.send(batch(t, r.now.Add(time.Second), inContainer(containerA))))
	r.run(12 * time.Second)
	over := func() []observer.LoggedEntry {
		return r.logs.FilterMessage("gate not opened").FilterLevelExact(zapcore.InfoLevel).All()
	}
	require.Len(t, over(), 1)
	require.Equal(t, "over budget", over()[0].ContextMap()["why"])
	require.Equal(t, "max_concurrent_units", over()[0].ContextMap()["budget"])
	require.Equal(t, service, over()[0].ContextMap()["unit"])
	require.EqualValues(t, 1, r.triggers()["cpu max_concurrent_units over_budget"])
	r.runUntil("gate opened", time.Minute)
	require.Equal(t, service, r.last("gate opened")["unit"], "it consumed no cooldown, and opens when there is room")
	require.Len(t, over(), 1)
}

func TestTriggersPerHour(t *testing.T) {
	r := newRig(t, onePolicy("duration: 5s, cooldown: 1m", "budgets: {max_triggers_per_hour: 2}"))
	r.watch(containerA)
	r.source.cores[containerA] = 2
	for r.now.Sub(epoch) < 50*time.Minute {
		r.run(5 * time.Second)
		require.NoError(t, r.send(batch(t, r.now, inContainer(containerA))))
	}
	require.Len(t, r.log("gate opened"), 2)
	require.Equal(t, "max_triggers_per_hour", r.logs.FilterMessage("gate not opened").FilterLevelExact(zapcore.InfoLevel).All()[0].ContextMap()["budget"])
	require.Positive(t, r.samples()["over_budget"], "that is why its profiles were kept in")
	r.run(30 * time.Minute)
	require.Greater(t, len(r.log("gate opened")), 2, "an hour is over")
}

func TestBytesPerHourStopAnOpenGate(t *testing.T) {
	r := newRig(t, onePolicy("duration: 20s, cooldown: 1h", "budgets: {max_bytes_per_hour: 5000}"))
	r.fire(containerA)
	for range 15 {
		r.run(time.Second)
		require.NoError(t, r.send(batch(t, r.now, inContainer(containerA))))
	}
	r.p.flush()
	held := r.log("profiles held back")
	require.Len(t, held, 1, "once an episode")
	require.Equal(t, "max_bytes_per_hour", held[0].ContextMap()["budget"])
	require.Equal(t, containerA, held[0].ContextMap()["unit"])
	require.Equal(t, r.last("gate opened")["trigger_id"], held[0].ContextMap()["trigger_id"])
	require.Positive(t, r.samples()["passed"])
	require.Positive(t, r.samples()["over_budget"])
	r.runUntil("gate closed", time.Minute)
	require.LessOrEqual(t, r.last("gate closed")["bytes"], int64(5000))
}

func TestNothingExportedForABudget(t *testing.T) {
	r := newRig(t, onePolicy("duration: 10s", "budgets: {max_bytes_per_hour: 1}"))
	r.fire(containerA)
	require.NoError(t, r.send(batch(t, r.now.Add(time.Second), inContainer(containerA))))
	r.runUntil("gate closed", time.Minute)
	require.Equal(t, "over budget: max_bytes_per_hour", r.last("gate closed")["nothing_exported"])
}

// publisher stores the hot units that were published last.
type publisher struct {
	hot    []hotunitsextension.Unit
	closed bool
}

func (p *publisher) Publish(hot []hotunitsextension.Unit) {
	p.hot = append([]hotunitsextension.Unit(nil), hot...)
}
func (p *publisher) Close() { p.hot, p.closed = nil, true }

func (r *rig) publishTo(p *publisher) {
	r.p.hot = collect.NewHotList(r.p.units, p)
	r.c.Hot = r.p.hot
}

func TestHotUnitsArePublishedFromTheFirstReadingOver(t *testing.T) {
	r := newRig(t, onePolicy("duration: 10s, cooldown: 1h", ""))
	to := &publisher{}
	r.publishTo(to)
	r.watch(containerA, service)
	r.run(20 * time.Second)
	require.Empty(t, to.hot)
	r.source.cores[containerA] = 2
	r.run(2 * time.Second)
	require.Equal(t, []hotunitsextension.Unit{{Name: containerA, Cgroup: "/docker/" + containerA, ContainerID: containerA}}, to.hot)
	require.Empty(t, r.log("gate opened"), "before the trigger")
	r.runUntil("gate opened", time.Minute)
	require.NoError(t, r.send(batch(t, r.now.Add(time.Second), inContainer(containerA))))
	r.source.cores[containerA] = 0
	r.run(8 * time.Second)
	require.Len(t, to.hot, 1, "its gate is open")
	r.runUntil("gate closed", time.Minute)
	require.Empty(t, to.hot, "at once")
	require.NoError(t, r.p.Shutdown(t.Context()))
	require.True(t, to.closed)
}

func TestHotProcessIsPublishedWithoutItsCgroup(t *testing.T) {
	r := newRig(t, "{scope: process, "+onePolicy("", "")[1:])
	to := &publisher{}
	r.publishTo(to)
	p := r.host.Processes[200]
	r.p.units.Add(identify.Identity{Name: "200:start", Process: p.Process, Within: p.Group, Started: p.Started}, r.now)
	r.source.cores["200:start"] = 2
	r.run(5 * time.Second)
	require.Equal(t, []hotunitsextension.Unit{{Name: "200:start", PID: 200, Start: 200}}, to.hot)
}

func TestHottestUnitsArePublishedWhereThereAreTooMany(t *testing.T) {
	r := newRig(t, onePolicy("", ""))
	to := &publisher{}
	r.publishTo(to)
	most := hotunitsextension.MaxUnits + 5
	for i := range most {
		name := fmt.Sprintf("/s%04d", i)
		r.host.Groups[name] = cgroup.Group{ID: name, Cgroup: name}
		r.source.cores[name] = 1.5 + float64(i)/1000
		r.watch(name)
	}
	r.run(10 * time.Second)
	require.Len(t, to.hot, most)
	require.Equal(t, fmt.Sprintf("/s%04d", most-1), to.hot[0].Name)
}

func TestManualOpensAGate(t *testing.T) {
	r := newRig(t, onePolicy("duration: 40s, cooldown: 1h", ""))
	got, err := r.p.openByHand(t.Context(), containerA[:12], 20*time.Second)
	require.NoError(t, err)
	require.Equal(t, containerA, got.Unit)
	require.True(t, r.now.Add(20*time.Second).Equal(got.Until))
	r.p.flush()
	opened := r.last("gate opened")
	require.Equal(t, "manual", opened["policy"])
	require.Equal(t, "manual", opened["monitor"])
	require.Equal(t, got.TriggerID, opened["trigger_id"])
	require.EqualValues(t, 1, r.triggers()["manual opened"])
	require.NoError(t, r.send(batch(t, r.now.Add(time.Second), inContainer(containerA))))
	require.Equal(t, "manual", allProfiles(r.received())[0].attributes["hotprofile.trigger.monitor"])

	again, err := r.p.openByHand(t.Context(), containerA, 30*time.Second)
	require.NoError(t, err)
	require.Equal(t, got.TriggerID, again.TriggerID, "it is prolonged")
	r.runUntil("gate closed", time.Minute)
	require.Equal(t, "duration", r.last("gate closed")["why"])
}

func TestManualClosesWhatItOpened(t *testing.T) {
	r := newRig(t, onePolicy("", ""))
	_, err := r.p.closeByHand(t.Context(), containerA)
	require.ErrorIs(t, err, manual.ErrNotOpen)
	got, err := r.p.openByHand(t.Context(), containerA, 24*time.Hour)
	require.NoError(t, err)
	closed, err := r.p.closeByHand(t.Context(), containerA[:12])
	require.NoError(t, err)
	require.Equal(t, manual.Closed{TriggerID: got.TriggerID, Unit: containerA, Closed: r.now}, closed)
	r.p.flush()
	line := r.last("gate closed")
	require.Equal(t, "closed by hand", line["why"])
	require.Equal(t, got.TriggerID, line["trigger_id"])
	require.NoError(t, r.send(batch(t, r.now.Add(20*time.Second), inContainer(containerA))))
	require.Empty(t, r.sink.AllProfiles(), "the gate is shut")
	_, err = r.p.closeByHand(t.Context(), containerA)
	require.ErrorIs(t, err, manual.ErrNotOpen)
	_, err = r.p.closeByHand(t.Context(), containerB)
	var missing *manual.NoSuchUnitError
	require.ErrorAs(t, err, &missing)
}

func TestManualFindsUnits(t *testing.T) {
	for name, c := range map[string]struct {
		scope, name, want, fault string
	}{
		"container":               {"cgroup", containerA, containerA, ""},
		"part of a container's":   {"cgroup", containerA[:12], containerA, ""},
		"too short":               {"cgroup", containerA[:11], "", "12 digits"},
		"no container":            {"cgroup", containerB, "", "no container"},
		"cgroup":                  {"cgroup", service, service, ""},
		"no cgroup":               {"cgroup", "/nope", "", "no such cgroup"},
		"pid of a container":      {"cgroup", "200", containerA, ""},
		"pid of a service":        {"cgroup", "100", service, ""},
		"no process":              {"cgroup", "4242", "", "no process"},
		"pid 0":                   {"cgroup", "0", "", "no pid"},
		"pid, process scope":      {"process", "200", "200:start", ""},
		"name of a process":       {"process", "100:start", "100:start", ""},
		"cgroup, process scope":   {"process", service, "", "scope: process"},
		"process without a group": {"cgroup", "300", "300:start", ""},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, "{scope: "+c.scope+", "+onePolicy("", "")[1:])
			for pid, p := range r.host.Processes {
				p.Name = fmt.Sprintf("%d:start", pid)
				r.host.Processes[pid] = p
			}
			if c.scope == "process" {
				r.p.units.Add(identify.Identity{Name: "100:start", Process: r.host.Processes[100].Process, Started: r.now}, r.now)
			}
			got, err := r.p.openByHand(t.Context(), c.name, time.Minute)
			if c.fault != "" {
				var refused *manual.NoSuchUnitError // answered with status 404
				require.ErrorAs(t, err, &refused)
				require.ErrorContains(t, err, c.fault)
				return
			}
			require.NoError(t, err)
			require.Equal(t, c.want, got.Unit)
		})
	}
}

func TestManualIsWithinBudgets(t *testing.T) {
	r := newRig(t, onePolicy("", "budgets: {max_concurrent_units: 1}"))
	_, err := r.p.openByHand(t.Context(), containerA, time.Minute)
	require.NoError(t, err)
	_, err = r.p.openByHand(t.Context(), service, time.Minute)
	var over *budget.ExceededError
	require.ErrorAs(t, err, &over)
	require.Equal(t, "max_concurrent_units", over.Budget)
}

func TestManualWithoutControlGroupsOrAfterShutdown(t *testing.T) {
	r := newRig(t, "")
	r.p.router.Host = nil
	_, err := r.p.openByHand(t.Context(), containerA, time.Minute)
	require.ErrorContains(t, err, string(identify.NoControlGroups))
	r.p.router.Host = r.host
	require.NoError(t, r.p.Shutdown(t.Context()))
	_, err = r.p.openByHand(t.Context(), containerA, time.Minute)
	require.ErrorIs(t, err, manual.ErrShutdown)
}

// TestCooldownsSurviveARestart checks that the cooldowns and budgets of one run apply
// to the next run.
func TestCooldownsSurviveARestart(t *testing.T) {
	config := onePolicy("duration: 10s, cooldown: 1h", "budgets: {max_triggers_per_hour: 1}")
	first := newRig(t, config)
	saves := 0
	first.p.save = func() { saves++ }
	first.fire(containerA)
	require.Equal(t, 1, saves, "a trigger was spent")
	require.NoError(t, first.send(batch(t, first.now.Add(time.Second), inContainer(containerA))))
	first.p.flush()
	require.Equal(t, 2, saves, "a cooldown follows from now on, also after a kill")
	require.Len(t, first.p.units.Snapshot(first.now).Units, 1)
	require.NoError(t, first.send(batch(t, first.now.Add(2*time.Second), inContainer(containerA))))
	first.runUntil("gate closed", time.Minute)
	require.Equal(t, 3, saves, "it cools down")
	first.run(time.Minute)
	require.Equal(t, 3, saves)
	kept := first.p.units.Snapshot(first.now)

	second := newRig(t, config)
	second.now = first.now.Add(10 * time.Second)
	second.p.units.Restore(kept, second.now)
	second.watch(containerA, service)
	second.source.cores[containerA], second.source.cores[service] = 2, 2
	second.run(10 * time.Minute)
	require.Empty(t, second.log("gate opened"))
	require.Equal(t, "max_triggers_per_hour", second.logs.FilterMessage("gate not opened").FilterLevelExact(zapcore.InfoLevel).All()[0].ContextMap()["budget"])
}

// TestCooldownByServiceWaitsForTheFirstProfile checks that a gate stays shut until the
// unit's first profile arrives. The service is unknown before the first profile, and
// might be cooling down.
func TestCooldownByServiceWaitsForTheFirstProfile(t *testing.T) {
	for _, processor := range []string{"cooldown_by: service", "budgets: {max_triggers_per_service_per_hour: 3}"} {
		t.Run(processor, func(t *testing.T) {
			r := newRig(t, onePolicy("", processor))
			r.watch(containerA)
			r.source.cores[containerA] = 1.9
			r.run(20 * time.Second)
			require.Empty(t, r.log("gate opened"))
			require.Equal(t, notOpened[trigger.ServiceUnknown].log, r.last("gate not opened")["why"])
			require.True(t, r.decision(containerA).Hot(), "samplers that wait for that may bring the profile")
			require.NoError(t, r.send(batch(t, r.now, inContainer(containerA))))
			r.run(5 * time.Second)
			require.Len(t, r.log("gate opened"), 1)
		})
	}
}
