// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package cputriggerprocessor

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pprofile"
	"go.uber.org/zap/zapcore"

	"github.com/hotprofile/hotprofile/internal/cgroup"
	"github.com/hotprofile/hotprofile/internal/identify"
	"github.com/hotprofile/hotprofile/internal/monitor"
	"github.com/hotprofile/hotprofile/internal/samples"
	"github.com/hotprofile/hotprofile/internal/trigger"
	"github.com/hotprofile/hotprofile/processor/cputriggerprocessor/internal/attributes"
	"github.com/hotprofile/hotprofile/processor/cputriggerprocessor/internal/collect"
	"github.com/hotprofile/hotprofile/processor/cputriggerprocessor/internal/units"
)

func TestDefaultPolicyLetsOutOnlyWhatIsHot(t *testing.T) {
	r := newRig(t, "")
	r.watch(containerA)
	r.source.cores[containerA] = 1
	r.run(time.Minute)
	require.NoError(t, r.send(batch(t, r.now, inContainer(containerA))))
	require.Empty(t, r.sink.AllProfiles(), "half of its CPU is not above 80 %")
	r.run(15 * time.Second)
	require.EqualValues(t, 6, r.samples()["gate_shut"], "no gate opened within pre_trigger")

	r.source.cores[containerA] = 2
	took := r.runUntil("gate opened", time.Minute)
	require.Greater(t, took, 18*time.Second, "80 % on the average over 30 s from 50 %")
	require.LessOrEqual(t, took, 45*time.Second)
	opened := r.log("gate opened")[0].ContextMap()
	require.Equal(t, containerA, opened["unit"])
	require.Equal(t, "cpu", opened["policy"])
	require.Equal(t, "cpu_utilization", opened["monitor"])
	require.Equal(t, "30s average", opened["window"])
	require.Equal(t, 80.0, opened["threshold"])
	require.Greater(t, opened["value"], 80.0)
	require.Equal(t, "unknown_service:app", opened["service"])
	fired := r.now

	require.NoError(t, r.send(batch(t, r.now.Add(3*time.Second), inContainer(containerA))))
	got := allProfiles(r.received())
	require.Len(t, got, 1)
	require.Equal(t, map[string]any{
		"hotprofile.trigger.policy": "cpu", "hotprofile.trigger.id": opened["trigger_id"], "hotprofile.unit": containerA,
		"hotprofile.trigger.monitor": "cpu_utilization", "hotprofile.trigger.value": got[0].attributes["hotprofile.trigger.value"],
		"hotprofile.trigger.threshold": "80", "hotprofile.trigger.window": "30s average",
		"hotprofile.trigger.time":  fired.Format(time.RFC3339Nano),
		"hotprofile.trigger.until": fired.Add(30 * time.Second).Format(time.RFC3339Nano),
		"hotprofile.trigger.phase": "both",
	}, got[0].attributes)
	require.Equal(t, fmt.Sprint(opened["value"]), got[0].attributes["hotprofile.trigger.value"])
	require.Equal(t, map[string]any{
		"container.id": containerA, "process.executable.name": "app", "service.name": "unknown_service:app", "hotprofile.trigger.policy": "cpu", "hotprofile.trigger.kind": "hot",
	}, got[0].resource)

	r.runUntil("gate closed", 40*time.Second)
	closed := r.log("gate closed")[0].ContextMap()
	require.Equal(t, "duration", closed["why"])
	require.Equal(t, opened["trigger_id"], closed["trigger_id"])
	require.EqualValues(t, 6, closed["samples"])
	require.InDelta(t, (&pprofile.ProtoMarshaler{}).ProfilesSize(r.received()), closed["bytes"], 300)

	require.NoError(t, r.send(batch(t, r.now.Add(6*time.Second), inContainer(containerA))))
	require.Len(t, r.sink.AllProfiles(), 1, "the gate is shut")
	r.source.cores[containerA] = 0
	r.run(time.Minute)
	r.source.cores[containerA] = 2
	r.run(2 * time.Minute)
	require.Len(t, r.log("gate opened"), 1, "it cools down for four hours")
	require.Equal(t, map[string]int64{"cpu opened": 1, "cooling_down cpu": 1}, r.metric("otelcol_cpu_trigger.triggers"))
	require.Equal(t, map[string]int64{"passed": 6, "gate_shut": 12}, r.samples())
	require.Equal(t, map[string]int64{"": 1}, r.metric("otelcol_cpu_trigger.units"))
	require.Equal(t, map[string]int64{"": 0}, r.metric("otelcol_cpu_trigger.gates.open"))
	require.Positive(t, r.metric("otelcol_cpu_trigger.readings")["cpu_utilization ok"])
}

func TestBatchIsSplitByUnit(t *testing.T) {
	r := newRig(t, "pre_trigger: 0s")
	r.fire(containerA)
	require.NoError(t, r.send(batch(t, r.now.Add(time.Second), inService(), inContainer(containerA), inService())))
	got := allProfiles(r.received())
	require.Len(t, got, 1)
	require.Equal(t, containerA, got[0].resource["container.id"])
	require.Equal(t, []string{"inlined1;work1.0;start_thread", "inlined1;work1.1;start_thread", "inlined1;work1.2;start_thread"}, unique(got[0].stacks))
	require.Equal(t, map[string]int64{"passed": 6, "gate_shut": 12}, r.samples())
}

func unique(in []string) (out []string) {
	seen := map[string]bool{}
	for _, s := range in {
		if !seen[s] {
			out = append(out, s)
		}
		seen[s] = true
	}
	return out
}

func TestProfilesAreJudgedByTheirCaptureWindow(t *testing.T) {
	r := newRig(t, "{pre_trigger: 0s, policies: [{name: cpu, duration: 10s, any_of: [{monitor: cpu_usage, threshold: 1, average_over: 5s}]}]}")
	r.fire(containerA)
	fired := r.now
	at := func(end time.Time) pprofile.Profiles { return batch(t, end, inContainer(containerA)) }
	phase := func() any { return allProfiles(r.received())[0].attributes["hotprofile.trigger.phase"] }

	require.NoError(t, r.send(at(fired)))
	require.Empty(t, r.sink.AllProfiles(), "it ended when the gate opened")
	require.NoError(t, r.send(at(fired.Add(time.Nanosecond))))
	require.Equal(t, "both", phase())
	require.NoError(t, r.send(at(fired.Add(5*time.Second))))
	require.Equal(t, "after", phase())

	r.run(20 * time.Second)
	require.Len(t, r.log("gate closed"), 1)
	require.NoError(t, r.send(at(fired.Add(9*time.Second))))
	require.Len(t, r.sink.AllProfiles(), 3, "it arrived late, and was taken while the gate was open")
	require.NoError(t, r.send(at(fired.Add(15*time.Second))))
	require.Len(t, r.sink.AllProfiles(), 3, "it began when the gate closed")

	timeless := at(fired.Add(9 * time.Second))
	timeless.ResourceProfiles().At(0).ScopeProfiles().At(0).Profiles().At(0).SetTime(0)
	require.NoError(t, r.send(timeless))
	require.Len(t, r.sink.AllProfiles(), 3, "without a time its arrival counts")
}

func TestEachProfileOfAResourceIsJudgedByItself(t *testing.T) {
	r := newRig(t, "{pre_trigger: 0s, policies: [{name: cpu, duration: 10s, any_of: [{monitor: cpu_usage, threshold: 1, average_over: 5s}]}]}")
	r.fire(containerA)
	pd := batch(t, r.now, inContainer(containerA))
	profiles := pd.ResourceProfiles().At(0).ScopeProfiles().At(0).Profiles()
	inside := profiles.AppendEmpty()
	profiles.At(0).CopyTo(inside)
	inside.SetDurationNano(inside.DurationNano() + 1)
	require.NoError(t, r.send(pd))
	require.Len(t, allProfiles(r.received()), 1)
	require.Equal(t, map[string]int64{"passed": 6, "gate_shut": 6}, r.samples())
}

func TestUserShareIsKnownFromTheSecondWarmReading(t *testing.T) {
	r := newRig(t, onePolicy("", ""))
	var user, system uint64
	r.c.UserTimes = func(*units.Unit) collect.ReadTimes {
		return func() (uint64, uint64, bool) {
			user, system = user+3, system+1
			return user, system, true
		}
	}
	r.watch(containerA)
	r.run(2 * time.Second)
	r.source.cores[containerA] = 1
	r.run(time.Second)
	require.Negative(t, r.userShare(containerA))
	r.run(time.Second)
	require.InDelta(t, 0.75, r.userShare(containerA), 1e-9)
}

func TestProfileTypesFilter(t *testing.T) {
	for name, c := range map[string]struct {
		types string
		want  []string
	}{
		"all":                   {"[]", []string{"samples", "off_cpu", "samples"}},
		"cpu by its period":     {"[cpu]", []string{"samples"}},
		"off_cpu":               {"[off_cpu]", []string{"off_cpu"}},
		"wall":                  {"[wall]", []string{"samples"}},
		"type and unit":         {"[samples/count]", []string{"samples", "samples"}},
		"type with another one": {"[samples/bytes]", nil},
		"several":               {"[cpu, off_cpu/nanoseconds]", []string{"samples", "off_cpu"}},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, "policies: [{name: cpu, profile_types: "+c.types+", any_of: [{monitor: cpu_usage, threshold: 1, average_over: 5s}]}]")
			r.fire(containerA)
			p := inContainer(containerA)
			p.types = []*samples.Type{samples.OnCPU, offCPU, {Name: "samples", Unit: "count", PeriodName: "wall", PeriodUnit: "nanoseconds"}}
			pd := batch(t, r.now.Add(time.Second), p)
			if c.want == nil {
				require.NoError(t, r.send(pd))
				require.Empty(t, r.sink.AllProfiles())
				r.runUntil("gate closed", time.Minute)
				require.Contains(t, r.log("gate closed")[0].ContextMap()["nothing_exported"], "profile_types")
				return
			}
			require.NoError(t, r.send(pd))
			var got []string
			for _, p := range allProfiles(r.sink.AllProfiles()[0]) {
				got = append(got, p.sampleType)
			}
			require.Equal(t, c.want, got)
			require.EqualValues(t, 6*(3-len(c.want)), r.samples()["filtered"])
		})
	}
}

func TestSeveralPoliciesStampTheFirstThatFired(t *testing.T) {
	r := newRig(t, `
policies:
  - {name: slow, duration: 1m, any_of: [{monitor: cpu_usage, threshold: 1, average_over: 20s}]}
  - {name: fast, duration: 1m, any_of: [{monitor: cpu_utilization, threshold: 80, average_over: 5s}]}
  - {name: off, enabled: false, any_of: [{monitor: cpu_utilization, threshold: 1, average_over: 5s}]}
`)
	r.fire(containerA)
	r.runUntil("gate opened", time.Minute)
	opened := r.log("gate opened")
	require.Len(t, opened, 2)
	require.Equal(t, "fast", opened[0].ContextMap()["policy"])
	require.NoError(t, r.send(batch(t, r.now.Add(time.Second), inContainer(containerA))))
	got := allProfiles(r.received())[0]
	require.Equal(t, "fast,slow", got.attributes["hotprofile.trigger.policy"])
	require.Equal(t, "fast", got.resource["hotprofile.trigger.policy"])
	require.Equal(t, opened[0].ContextMap()["trigger_id"], got.attributes["hotprofile.trigger.id"])
	require.Equal(t, "cpu_utilization", got.attributes["hotprofile.trigger.monitor"])
	require.Equal(t, map[string]int64{"": 2}, r.metric("otelcol_cpu_trigger.gates.open"))
}

func TestRefusedIsReturnedAndCostsNoCooldown(t *testing.T) {
	r := newRig(t, "pre_trigger: 0s\npolicies: [{name: cpu, duration: 10s, cooldown: 1h, any_of: [{monitor: cpu_usage, threshold: 1, average_over: 5s}]}]")
	r.fire(containerA)
	r.refuse = errors.New("full")
	require.ErrorIs(t, r.send(batch(t, r.now.Add(time.Second), inContainer(containerA), inService())), r.refuse)
	require.Equal(t, map[string]int64{"refused": 6, "gate_shut": 6}, r.samples())
	r.runUntil("gate closed", time.Minute)
	closed := r.log("gate closed")[0].ContextMap()
	require.Contains(t, closed["nothing_exported"], "refused 1 profiles: full")
	require.EqualValues(t, 0, closed["samples"])
	require.EqualValues(t, 1, r.metric("otelcol_cpu_trigger.triggers")["cpu nothing_exported"])

	r.refuse = nil
	took := r.runUntil("gate opened", 2*time.Minute)
	require.GreaterOrEqual(t, took, 55*time.Second, "not again before a minute")
	r.runUntil("gate closed", time.Minute)
	require.Contains(t, r.log("gate closed")[1].ContextMap()["nothing_exported"], "no profile of the unit arrived")
}

func TestUnmatchedProfiles(t *testing.T) {
	nobody := part{attributes: map[string]any{"service.name": "nobody", "process.linux.cgroup": "/x"}}
	t.Run("drop", func(t *testing.T) {
		r := newRig(t, "")
		require.NoError(t, r.send(batch(t, r.now, nobody, inContainer(containerB))))
		require.Empty(t, r.sink.AllProfiles())
		require.Equal(t, map[string]int64{"unmatched": 12}, r.samples())
		require.NoError(t, r.send(batch(t, r.now, nobody)))
		require.Len(t, r.log("profiles match no unit"), 2, "each reason once")
	})
	t.Run("beside those that match", func(t *testing.T) {
		r := newRig(t, "")
		require.NoError(t, r.send(batch(t, r.now, inContainer(containerB), inService(), nobody)))
		require.EqualValues(t, 12, r.samples()["unmatched"])
		said := r.log("profiles match no unit")
		require.Len(t, said, 1, "the container may have ended")
		require.Equal(t, string(identify.NoAttributes), said[0].ContextMap()["why"])
	})
	t.Run("pass", func(t *testing.T) {
		r := newRig(t, "unmatched: pass\npre_trigger: 0s")
		require.NoError(t, r.send(batch(t, r.now, nobody, inContainer(containerA))))
		got := allProfiles(r.received())
		require.Len(t, got, 1)
		require.Empty(t, got[0].attributes)
		require.Equal(t, map[string]any{"service.name": "nobody"}, got[0].resource)
		require.Equal(t, map[string]int64{"unmatched": 6, "gate_shut": 6}, r.samples())

		r.refuse = errors.New("full")
		require.Error(t, r.send(batch(t, r.now, nobody)))
		require.EqualValues(t, 6, r.samples()["refused"])
	})
	t.Run("pass keeps the reason of another gate", func(t *testing.T) {
		r := newRig(t, "unmatched: pass")
		pd := batch(t, r.now, nobody)
		addAttribute(pd, "hotprofile.trigger.id", "other")
		require.NoError(t, r.send(pd))
		require.Equal(t, map[string]any{"hotprofile.trigger.id": "other"}, allProfiles(r.received())[0].attributes)
	})
}

// addAttribute adds an attribute to the first profile of a batch.
func addAttribute(pd pprofile.Profiles, key, value string) {
	d := pd.Dictionary()
	d.StringTable().Append(key)
	a := d.AttributeTable().AppendEmpty()
	a.SetKeyStrindex(int32(d.StringTable().Len() - 1))
	a.Value().SetStr(value)
	pd.ResourceProfiles().At(0).ScopeProfiles().At(0).Profiles().At(0).AttributeIndices().Append(int32(d.AttributeTable().Len() - 1))
}

func TestReasonOfAnotherGateIsReplaced(t *testing.T) {
	r := newRig(t, "")
	r.fire(containerA)
	pd := batch(t, r.now.Add(time.Second), inContainer(containerA))
	addAttribute(pd, "hotprofile.trigger.id", "other")
	addAttribute(pd, "hotprofile.trigger.extra", "other")
	addAttribute(pd, "mine", "kept")
	require.NoError(t, r.send(pd))
	got := allProfiles(r.received())[0].attributes
	require.Equal(t, r.log("gate opened")[0].ContextMap()["trigger_id"], got["hotprofile.trigger.id"])
	require.Equal(t, "kept", got["mine"])
	require.NotContains(t, got, "hotprofile.trigger.extra")
}

func TestReadOnlyBatchIsNotTouched(t *testing.T) {
	r := newRig(t, "")
	r.fire(containerA)
	pd := batch(t, r.now.Add(time.Second), inContainer(containerA))
	pd.MarkReadOnly() // otherwise marshalling would change the batch
	before := marshalled(t, pd)
	require.NoError(t, r.send(pd))
	require.NotEmpty(t, allProfiles(r.received())[0].attributes)
	require.Equal(t, before, marshalled(t, pd))
}

func TestServiceName(t *testing.T) {
	for name, c := range map[string]struct {
		attributes map[string]any
		want       string
	}{
		"its own":        {map[string]any{"service.name": "checkout", "process.executable.name": "java"}, "checkout"},
		"of executable":  {map[string]any{"process.executable.name": "java"}, "unknown_service:java"},
		"empty":          {map[string]any{"service.name": "", "process.executable.name": "java"}, "unknown_service:java"},
		"no executable":  {nil, "unknown_service"},
		"not any string": {map[string]any{"service.name": 5}, "5"},
	} {
		t.Run(name, func(t *testing.T) {
			a := attributeMap(t, c.attributes)
			attributes.SetServiceName(a)
			v, _ := a.Get("service.name")
			require.Equal(t, c.want, v.AsString())
		})
	}
}

func TestUnitThatIsGoneClosesItsGate(t *testing.T) {
	r := newRig(t, "")
	r.fire(containerA)
	require.NoError(t, r.send(batch(t, r.now.Add(time.Second), inContainer(containerA))))
	r.source.errs[containerA] = monitor.ErrGone
	gone := r.host.Groups[containerA]
	delete(r.host.Groups, containerA)
	r.run(2 * time.Second)
	r.p.flush()
	closed := r.log("gate closed")
	require.Len(t, closed, 1)
	require.Equal(t, "unit gone", closed[0].ContextMap()["why"])
	require.Equal(t, "unknown_service:app", closed[0].ContextMap()["service"])
	require.Zero(t, r.source.open, "its files are closed")
	require.Equal(t, map[string]int64{"": 0}, r.metric("otelcol_cpu_trigger.units"))

	require.NoError(t, r.send(batch(t, r.now.Add(-time.Second), inContainer(containerA))))
	require.Len(t, r.sink.AllProfiles(), 2, "a late profile of its last seconds still passes")
	require.NoError(t, r.send(batch(t, r.now.Add(10*time.Second), inContainer(containerA))))
	require.Len(t, r.sink.AllProfiles(), 2)
	require.EqualValues(t, 6, r.samples()["unmatched"])

	r.host.Groups[containerA] = gone
	delete(r.source.errs, containerA)
	r.watch(containerA)
	r.run(2 * time.Minute)
	require.Len(t, r.log("gate opened"), 1, "it came back, and its cooldown was remembered")
}

func TestUnitNotSeenIsForgotten(t *testing.T) {
	r := newRig(t, "")
	r.watch(containerA, service)
	r.run(9 * time.Minute)
	require.NoError(t, r.send(batch(t, r.now, inService())))
	r.run(2 * time.Minute)
	r.p.units.Expire(r.now.Add(-unitTTL), r.now)
	r.run(time.Second)
	require.Equal(t, map[string]int64{"": 1}, r.metric("otelcol_cpu_trigger.units"))
	require.Equal(t, 1, r.source.open)
	_, ok := r.p.units.Lookup(service)
	require.True(t, ok)
}

func TestUnitIsKnownFromItsFirstProfile(t *testing.T) {
	r := newRig(t, "")
	require.NoError(t, r.send(batch(t, r.now, inService())))
	require.EqualValues(t, 6, r.metric("otelcol_cpu_trigger.recorder.samples")[""])
	r.source.cores[service] = 2
	took := r.runUntil("gate opened", time.Minute)
	require.GreaterOrEqual(t, took, 30*time.Second)
	require.LessOrEqual(t, took, 36*time.Second, "read within one collection_interval of its first profile")
}

func TestFailedReadingsAreGapsSaidOnce(t *testing.T) {
	r := newRig(t, "policies: [{name: cpu, any_of: [{monitor: cpu_utilization, threshold: 80}]}]")
	r.watch(containerA)
	r.source.cores[containerA] = 2
	r.run(20 * time.Second)
	r.source.errs[containerA] = errors.New("input/output error")
	r.run(20 * time.Second)
	require.Len(t, r.log("reading failed"), 1)
	require.EqualValues(t, 20, r.metric("otelcol_cpu_trigger.readings")["cpu_utilization failed"])
	require.Empty(t, r.log("gate opened"))
	delete(r.source.errs, containerA)
	took := r.runUntil("gate opened", time.Minute)
	require.LessOrEqual(t, took, 6*time.Second, "the first reading stands for the time of the gap")
}

// TestUnavailableMonitorIsSaidOnce checks that each reason is logged at info level only
// once, even if it applies to several units. The debug log contains the reason once per
// unit.
func TestUnavailableMonitorIsSaidOnce(t *testing.T) {
	r := newRig(t, "")
	r.watch(containerA, service)
	r.run(5 * time.Second)
	require.Len(t, r.log("monitor unavailable"), 2)
	said := r.logs.FilterMessage("monitor unavailable").FilterLevelExact(zapcore.InfoLevel).All()
	require.Len(t, said, 1)
	require.Equal(t, "cpu_throttling", said[0].ContextMap()["monitor"])
	require.EqualValues(t, 10, r.metric("otelcol_cpu_trigger.readings")["cpu_throttling unavailable"])
	require.EqualValues(t, 10, r.metric("otelcol_cpu_trigger.readings")["cpu_utilization ok"], "one monitor's fault is not another's")

	r.source.errs[containerA] = cgroup.Shared
	r.run(5 * time.Second)
	said = r.logs.FilterMessage("monitor unavailable").FilterLevelExact(zapcore.InfoLevel).All()
	require.Len(t, said, 3, "another reason of two other monitors")
	require.EqualValues(t, 5, r.metric("otelcol_cpu_trigger.readings")["cpu_utilization unavailable"])
}

func TestUnitThatCannotBeOpenedIsTriedAgain(t *testing.T) {
	r := newRig(t, "")
	r.source.errs[containerA] = errors.New("too many open files")
	r.watch(containerA)
	r.run(5 * time.Second)
	require.Len(t, r.log("reading failed"), 1)
	require.EqualValues(t, 5, r.metric("otelcol_cpu_trigger.readings")["cpu_utilization failed"])
	delete(r.source.errs, containerA)
	r.fire(containerA)
}

func TestLateReadingsAreCountedAndStillCount(t *testing.T) {
	r := newRig(t, "")
	r.watch(containerA)
	r.source.cores[containerA] = 2
	r.run(10 * time.Second)
	for range 3 {
		r.now = r.now.Add(2500 * time.Millisecond)
		r.c.Collect()
	}
	require.Len(t, r.log("readings are late"), 1, "once an episode")
	require.EqualValues(t, 3, r.metric("otelcol_cpu_trigger.readings")["cpu_utilization late"])
	r.runUntil("gate opened", 30*time.Second)
}

func TestUnitsAreBounded(t *testing.T) {
	r := newRig(t, "")
	for i := range 9_999 {
		r.p.units.Add(identify.Identity{Name: fmt.Sprint("/s", i)}, r.now)
	}
	r.watch(service)
	require.NoError(t, r.send(batch(t, r.now, inContainer(containerA))))
	require.Equal(t, map[string]int64{"unmatched": 6}, r.samples())
	require.Equal(t, map[string]int64{"": 10_000}, r.metric("otelcol_cpu_trigger.units"))
}

// TestForgottenCooldownsAreCountedAndLogged restores the cooldowns of 10,100 units that
// are gone. Only 10,000 of these units are remembered.
func TestForgottenCooldownsAreCountedAndLogged(t *testing.T) {
	r := newRig(t, "")
	last := trigger.Snapshot{Taken: r.now}
	for i := range 10_100 {
		last.Units = append(last.Units, trigger.Cooldown{Name: fmt.Sprint("gone", i), Policy: "cpu", Until: r.now.Add(time.Hour)})
	}
	r.p.units.Restore(last, r.now)
	r.p.evaluate()
	r.p.evaluate()
	logged := r.log("cooldowns forgotten: too many units are gone")
	require.Len(t, logged, 1)
	require.EqualValues(t, 100, logged[0].ContextMap()["units"])
	require.Equal(t, map[string]int64{"unit": 100, "service": 0, "opening": 0}, r.metric("otelcol_cpu_trigger.forgotten"))
}

func TestMalformedBatches(t *testing.T) {
	for name, change := range map[string]func(pprofile.Profiles){
		"empty": func(pd pprofile.Profiles) {
			pd.ResourceProfiles().RemoveIf(func(pprofile.ResourceProfiles) bool { return true })
		},
		"resource without": func(pd pprofile.Profiles) { pd.ResourceProfiles().AppendEmpty() },
		"scope without":    func(pd pprofile.Profiles) { pd.ResourceProfiles().At(0).ScopeProfiles().AppendEmpty() },
		"profile without":  func(pd pprofile.Profiles) { pd.ResourceProfiles().At(0).ScopeProfiles().At(0).Profiles().AppendEmpty() },
		"no dictionary":    func(pd pprofile.Profiles) { pprofile.NewProfiles().Dictionary().CopyTo(pd.Dictionary()) },
		"indices out of range": func(pd pprofile.Profiles) {
			p := pd.ResourceProfiles().At(0).ScopeProfiles().At(0).Profiles().At(0)
			p.AttributeIndices().Append(1<<30, -5)
			p.SampleType().SetTypeStrindex(-1)
			p.PeriodType().SetUnitStrindex(1 << 30)
			p.Samples().At(0).SetStackIndex(-7)
			p.Samples().At(1).SetStackIndex(1 << 30)
			p.Samples().At(1).SetLinkIndex(1 << 30)
			d := pd.Dictionary()
			d.StackTable().At(1).LocationIndices().Append(-1, 1<<30)
			d.LocationTable().At(1).SetMappingIndex(1 << 30)
			d.LocationTable().At(1).Lines().At(0).SetFunctionIndex(-1)
			d.FunctionTable().At(1).SetNameStrindex(1 << 30)
			d.AttributeTable().At(1).SetKeyStrindex(1 << 30)
		},
		"absurd times": func(pd pprofile.Profiles) {
			p := pd.ResourceProfiles().At(0).ScopeProfiles().At(0).Profiles().At(0)
			p.SetTime(pcommon.Timestamp(1<<64 - 1))
			p.SetDurationNano(1<<64 - 1)
		},
	} {
		for _, extra := range []string{"alone", "beside another"} {
			t.Run(name+" "+extra, func(t *testing.T) {
				r := newRig(t, "")
				r.fire(containerA)
				parts := []part{inContainer(containerA)}
				if extra != "alone" {
					parts = append(parts, inService())
				}
				pd := batch(t, r.now.Add(time.Second), parts...)
				change(pd)
				require.NoError(t, r.send(pd))
				for _, out := range r.sink.AllProfiles() {
					require.NotPanics(t, func() { marshalled(t, out) })
				}
			})
		}
	}
}

func TestTriggerIDsAreUnique(t *testing.T) {
	seen := map[string]bool{}
	random := &evenly{}
	for range 100 {
		id := newID(random)
		require.Len(t, id, 16)
		require.False(t, seen[id])
		seen[id] = true
	}
}
