// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package cputriggerprocessor

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/extension/extensiontest"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/ptrace"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/hotprofile/hotprofile/extension/hotunitsextension"
	"github.com/hotprofile/hotprofile/internal/cgroup"
)

// hotUnits returns a started extension.
func hotUnits(t testing.TB) *hotunitsextension.HotUnits {
	t.Helper()
	factory := hotunitsextension.NewFactory()
	ext, err := factory.Create(t.Context(), extensiontest.NewNopSettings(factory.Type()), factory.CreateDefaultConfig())
	require.NoError(t, err)
	require.NoError(t, ext.Start(t.Context(), componenttest.NewNopHost()))
	t.Cleanup(func() { require.NoError(t, ext.Shutdown(t.Context())) })
	return ext.(*hotunitsextension.HotUnits)
}

// subscribe makes the processor publish events and subscribes to them.
func (r *rig) subscribe() *hotunitsextension.Subscription {
	r.t.Helper()
	h := hotUnits(r.t)
	r.p.publishTo(h)
	s := h.Subscribe("test")
	r.t.Cleanup(s.Close)
	return s
}

// take returns the pending events.
func take(s *hotunitsextension.Subscription) (out []hotunitsextension.Event) {
	for len(s.Events()) > 0 {
		out = append(out, <-s.Events())
	}
	return out
}

func asMap(kvs []attribute.KeyValue) map[string]any {
	out := map[string]any{}
	for _, kv := range kvs {
		out[string(kv.Key)] = kv.Value.AsInterface()
	}
	return out
}

// names returns the names of events. It appends the reason if an event has a reason.
func names(events []hotunitsextension.Event) (out []string) {
	for _, e := range events {
		name := e.Name
		if why, ok := asMap(e.Attributes)["hotprofile.gate.why"].(string); ok {
			name += " " + why
		}
		out = append(out, name)
	}
	return out
}

func TestEventsOfAGate(t *testing.T) {
	r := newRig(t, onePolicy("duration: 10s, cooldown: 20s", ""))
	s := r.subscribe()
	r.watch(containerA)
	r.run(10 * time.Second)
	p := inContainer(containerA)
	p.attributes["service.name"], p.attributes["deployment.environment.name"], p.attributes["process.pid"] = "checkout", "prod", 7
	require.NoError(t, r.send(batch(t, r.now, p)))
	require.Empty(t, take(s))

	r.fire(containerA)
	fired := r.now
	events := take(s)
	require.Equal(t, []string{"hotprofile.gate.opened"}, names(events))
	opened := r.last("gate opened")
	require.True(t, fired.Equal(events[0].Time))
	require.Equal(t, map[string]any{
		"hotprofile.unit": containerA, "hotprofile.trigger.policy": "cpu", "hotprofile.trigger.monitor": "cpu_usage", "hotprofile.trigger.condition": "cpu_usage",
		"hotprofile.trigger.value": opened["value"], "hotprofile.trigger.threshold": 1.0, "hotprofile.trigger.window": "5s average",
		"hotprofile.trigger.id": opened["trigger_id"], "hotprofile.trigger.kind": "hot",
		"hotprofile.trigger.until": fired.Add(10 * time.Second).Format(time.RFC3339Nano),
	}, asMap(events[0].Attributes))
	require.Equal(t, map[string]any{
		"container.id": containerA, "service.name": "checkout", "deployment.environment.name": "prod", "process.executable.name": "app",
	}, asMap(events[0].Resource), "without what identifies one process")
	require.Regexp(t, `^gate of checkout opened by policy cpu: cpu_usage 1\.9[0-9]*, threshold 1, 5s average$`, events[0].Body)

	require.NoError(t, r.send(batch(t, r.now.Add(time.Second), p)))
	r.source.cores[containerA] = 0
	r.runUntil("gate closed", time.Minute)
	events = take(s)
	require.Equal(t, []string{"hotprofile.gate.closed duration"}, names(events))
	closed, attributes := r.last("gate closed"), asMap(events[0].Attributes)
	require.EqualValues(t, 6, attributes["hotprofile.gate.samples"])
	require.EqualValues(t, closed["bytes"], attributes["hotprofile.gate.bytes"])
	require.Equal(t, 10.0, attributes["hotprofile.gate.duration"])
	require.Equal(t, opened["trigger_id"], attributes["hotprofile.trigger.id"])
	require.NotContains(t, attributes, "hotprofile.gate.nothing_exported")

	r.run(5 * time.Second)
	r.source.cores[containerA] = 1.9
	r.run(10 * time.Second)
	require.Equal(t, []string{"hotprofile.gate.not_opened cooldown"}, names(take(s)), "once while the condition holds")
	r.runUntil("gate opened", time.Minute)
	require.Equal(t, []string{"hotprofile.gate.opened"}, names(take(s)))
	r.runUntil("gate closed", time.Minute)
	events = take(s)
	require.Equal(t, []string{"hotprofile.gate.closed duration"}, names(events))
	require.Equal(t, "no profile of the unit arrived", asMap(events[0].Attributes)["hotprofile.gate.nothing_exported"])
}

// TestEventsWithoutACondition covers openings by hand and by alert. Their events have neither
// a value nor a threshold.
func TestEventsWithoutACondition(t *testing.T) {
	r := newRig(t, onePolicy("", ""))
	s := r.subscribe()
	r.watch(containerA)
	opened, err := r.p.openByHand(t.Context(), containerA, time.Minute)
	require.NoError(t, err)
	r.p.flush()
	events := take(s)
	require.Equal(t, []string{"hotprofile.gate.opened"}, names(events))
	want := map[string]any{
		"hotprofile.unit": containerA, "hotprofile.trigger.policy": "manual", "hotprofile.trigger.monitor": "manual",
		"hotprofile.trigger.id": opened.TriggerID, "hotprofile.trigger.kind": "manual", "hotprofile.trigger.until": opened.Until.UTC().Format(time.RFC3339Nano),
	}
	require.Equal(t, want, asMap(events[0].Attributes))
	require.Equal(t, "gate of "+containerA+" opened by policy manual", events[0].Body)

	_, err = r.p.closeByHand(t.Context(), containerA)
	require.NoError(t, err)
	r.p.flush()
	events = take(s)
	require.Equal(t, []string{"hotprofile.gate.closed closed by hand"}, names(events))
	delete(want, "hotprofile.trigger.until")
	got := asMap(events[0].Attributes)
	for _, key := range []string{"why", "samples", "bytes", "duration", "nothing_exported"} {
		delete(got, "hotprofile.gate."+key)
	}
	require.Equal(t, want, got)
}

// slowRequests returns the spans of 20 requests to a container. One request takes twice
// as long as the others.
func slowRequests(r *rig, id string, slowest byte, took time.Duration) ptrace.Traces {
	td := ptrace.NewTraces()
	rs := td.ResourceSpans().AppendEmpty()
	rs.Resource().Attributes().PutStr("container.id", id)
	spans := rs.ScopeSpans().AppendEmpty().Spans()
	for i := range 20 {
		took, n := took, byte(200)
		if i == 10 {
			took, n = 2*took, slowest
		}
		s := spans.AppendEmpty()
		s.SetKind(ptrace.SpanKindServer)
		s.SetTraceID(pcommon.TraceID{1, n})
		s.SetSpanID(pcommon.SpanID{2, n})
		s.SetStartTimestamp(pcommon.NewTimestampFromTime(r.now.Add(-took)))
		s.SetEndTimestamp(pcommon.NewTimestampFromTime(r.now))
		s.Attributes().PutStr("http.request.method", "GET")
		s.Attributes().PutInt("http.response.status_code", 200)
	}
	return td
}

// readRequests makes the rig read the monitors of requests. The rig learns about the
// containers from their spans.
func (r *rig) readRequests(ids ...string) {
	r.t.Helper()
	ctx, cancel := context.WithCancel(r.t.Context())
	done := make(chan struct{})
	go func() { r.p.requests.Run(ctx, r.host); close(done) }()
	for _, id := range ids {
		r.p.requests.ObserveTraces(slowRequests(r, id, 200, time.Millisecond))
		require.Eventually(r.t, func() bool { _, ok := r.p.units.Lookup(id); return ok }, time.Minute, time.Millisecond)
	}
	cancel()
	<-done // from here on, only this goroutine advances the clock
}

// TestEventsAboutRequestsHaveTheIDsOfASpan checks events that slow requests cause. The
// events must have the ids of the span of a slow request. The event
// hotprofile.gate.not_opened must have these ids too, whatever kept the gate shut.
func TestEventsAboutRequestsHaveTheIDsOfASpan(t *testing.T) {
	const slow = "any_of: [{monitor: http_response_time, percentile: 95, threshold: 500, average_over: 5s}]"
	requests := func(r *rig, slowest byte, d time.Duration) {
		for range int(d / time.Second) {
			r.p.requests.ObserveTraces(slowRequests(r, containerA, slowest, time.Second))
			r.run(time.Second)
		}
	}
	check := func(t *testing.T, want string, slowest byte, events []hotunitsextension.Event) {
		t.Helper()
		require.Equal(t, []string{want}, names(events))
		require.Equal(t, trace.TraceID{1, slowest}, events[0].TraceID)
		require.Equal(t, trace.SpanID{2, slowest}, events[0].SpanID)
	}
	t.Run("opened, then cooldown", func(t *testing.T) {
		r := newRig(t, "{pre_trigger: 0s, policies: [{name: slow, duration: 10s, cooldown: 1h, "+slow+"}]}")
		s := r.subscribe()
		r.readRequests(containerA)
		requests(r, 7, 10*time.Second)
		events := take(s)
		check(t, "hotprofile.gate.opened", 7, events)
		require.Contains(t, events[0].Attributes, attribute.StringSlice("hotprofile.trigger.traces", []string{trace.TraceID{1, 7}.String()}))
		require.NoError(t, r.send(batch(t, r.now, inContainer(containerA))))
		r.runUntil("gate closed", time.Minute)
		events = take(s)
		require.Equal(t, []string{"hotprofile.gate.closed duration"}, names(events))
		require.Zero(t, events[0].TraceID, "it is of now, and not of the reasons")
		r.run(10 * time.Second)
		requests(r, 8, 10*time.Second)
		check(t, "hotprofile.gate.not_opened cooldown", 8, take(s))
	})
	t.Run("dry run", func(t *testing.T) {
		r := newRig(t, "{pre_trigger: 0s, policies: [{name: slow, dry_run: true, "+slow+"}]}")
		s := r.subscribe()
		r.readRequests(containerA)
		requests(r, 7, 10*time.Second)
		check(t, "hotprofile.gate.not_opened dry run", 7, take(s))
	})
	t.Run("budget", func(t *testing.T) {
		r := newRig(t, `{pre_trigger: 0s, budgets: {max_triggers_per_hour: 1}, policies: [
			{name: slow, `+slow+`}, {name: cpu, any_of: [{monitor: cpu_usage, threshold: 1, average_over: 5s}]}]}`)
		s := r.subscribe()
		r.readRequests(containerA)
		r.fire(containerB)
		events := take(s)
		require.Equal(t, []string{"hotprofile.gate.opened"}, names(events))
		require.Zero(t, events[0].TraceID, "no request is among its reasons")
		r.source.cores[containerB] = 0
		r.runUntil("gate closed", time.Minute)
		take(s)
		requests(r, 9, 10*time.Second)
		check(t, "hotprofile.gate.not_opened budget", 9, take(s))
	})
}

// TestEventsOfGatesThatDoNotOpen checks that each event contains the
// reason why the gate stays shut. There is one event per rising edge,
// even if the reason changes before the next rising edge.
func TestEventsOfGatesThatDoNotOpen(t *testing.T) {
	t.Run("dry run", func(t *testing.T) {
		r := newRig(t, onePolicy("dry_run: true, duration: 10s", ""))
		s := r.subscribe()
		r.fire(containerA)
		r.runUntil("gate closed", time.Minute)
		events := take(s)
		require.Equal(t, []string{"hotprofile.gate.not_opened dry run"}, names(events))
		require.Equal(t, map[string]any{"container.id": containerA}, asMap(events[0].Resource), "nothing else is known before its first profile")
	})
	t.Run("min_age, then budget", func(t *testing.T) {
		r := newRig(t, "{pre_trigger: 0s, min_age: 1m, budgets: {max_triggers_per_hour: 1}, policies: [{name: cpu, any_of: [{monitor: cpu_usage, threshold: 1, average_over: 5s}]}]}")
		s := r.subscribe()
		r.fire(containerB)
		r.source.cores[containerB] = 0
		take(s)
		r.source.startedAt[containerA] = r.now
		r.source.cores[containerA] = 1.9
		r.watch(containerA)
		r.run(50 * time.Second)
		require.Contains(t, names(take(s)), "hotprofile.gate.not_opened min_age")
		r.run(20 * time.Second)
		require.EqualValues(t, 1, r.metric("otelcol_cpu_trigger.triggers")["cpu max_triggers_per_hour over_budget"])
		require.NotContains(t, names(take(s)), "hotprofile.gate.not_opened budget", "the condition has held since")
		r.source.cores[containerA] = 0
		r.run(10 * time.Second)
		r.source.cores[containerA] = 1.9
		r.run(10 * time.Second)
		events := take(s)
		require.Equal(t, []string{"hotprofile.gate.not_opened budget"}, names(events))
		require.Equal(t, "max_triggers_per_hour", asMap(events[0].Attributes)["hotprofile.gate.budget"])
	})
}

func TestWhatAUnitWasIsInTheEventOfItsEnd(t *testing.T) {
	r := newRig(t, onePolicy("", ""))
	s := r.subscribe()
	r.p.units.SetHost("node-1")
	r.fire(containerA)
	p := inContainer(containerA)
	p.attributes["service.name"] = "checkout"
	require.NoError(t, r.send(batch(t, r.now.Add(time.Second), p)))
	r.p.units.Remove(r.unit(containerA), r.now)
	r.p.flush()
	events := take(s)
	require.Equal(t, []string{"hotprofile.gate.opened", "hotprofile.gate.closed unit gone"}, names(events))
	require.Equal(t, map[string]any{"container.id": containerA, "host.name": "node-1"}, asMap(events[0].Resource), "before its first profile")
	require.Equal(t, "checkout", asMap(events[1].Resource)["service.name"])
	require.Equal(t, "node-1", asMap(events[1].Resource)["host.name"])
}

func TestReadingsOfUnitsBesideTheirThresholds(t *testing.T) {
	r := newRig(t, `
pre_trigger: 0s
policies:
  - {name: cpu, any_of: [{monitor: cpu_usage, threshold: 1, average_over: 5s}, {monitor: cpu_utilization, threshold: 80, average_over: 1h}]}
  - {name: other, match: {service.name: other}, any_of: [{monitor: cpu_usage, threshold: 2, average_over: 5s}]}
`)
	h := hotUnits(t)
	r.p.publishTo(h)
	r.watch(containerA, service)
	r.source.cores[containerA] = 0.5
	p := inContainer(containerA)
	p.attributes["service.name"] = "checkout"
	require.NoError(t, r.send(batch(t, r.now, p)))
	r.run(20 * time.Second)
	all, left := h.Readings(10)
	require.Zero(t, left)
	require.Len(t, all, 2)
	got := all[0]
	require.Equal(t, containerA, got.Unit, "the hottest first")
	require.Equal(t, containerA, got.ContainerID)
	require.Equal(t, "checkout", asMap(got.Resource)["service.name"])
	require.Equal(t, []hotunitsextension.ConditionReading{
		{Policy: "cpu", Monitor: "cpu_usage", Window: "5s average", Value: 0.5, Known: true, Threshold: 1},
		{Policy: "cpu", Monitor: "cpu_utilization", Window: "1h average", Threshold: 80},
	}, got.Conditions)
	require.Equal(t, []hotunitsextension.PolicyState{{Policy: "cpu", State: "watching"}}, got.Policies, "the other policy does not apply")
	before := got
	r.run(10 * time.Second)
	all, _ = h.Readings(10)
	require.InDelta(t, 5, all[0].CPUSeconds-before.CPUSeconds, 1e-9)
	require.Equal(t, 10*time.Second, all[0].CPUTime.Sub(before.CPUTime))

	r.fire(containerA)
	all, left = h.Readings(1)
	require.Equal(t, 1, left)
	require.Len(t, all, 1)
	require.Equal(t, "profiling", all[0].Policies[0].State)

	require.NoError(t, r.p.Shutdown(t.Context()))
	all, _ = h.Readings(10)
	require.Empty(t, all)
}

// TestAReadingNamesTheConditionOfItsEvent checks that the readings and the event use the
// same name for a condition. Two conditions with the same monitor have different names.
func TestAReadingNamesTheConditionOfItsEvent(t *testing.T) {
	r := newRig(t, `{pre_trigger: 0s, policies: [{name: slow, duration: 10s, any_of: [
		{monitor: http_response_time, percentile: 95, threshold: 500, average_over: 5s},
		{monitor: http_response_time, percentile: 99, threshold: 5000, average_over: 5s},
		{monitor: memory_utilization, threshold: 90, average_over: 5s}]}]}`)
	h := hotUnits(t)
	r.p.publishTo(h)
	s := h.Subscribe("test")
	defer s.Close()
	r.readRequests(containerA)
	r.source.set(containerA, "memory_utilization", 50)
	for range 10 {
		r.p.requests.ObserveTraces(slowRequests(r, containerA, 7, time.Second))
		r.run(time.Second)
	}
	events := take(s)
	require.Equal(t, []string{"hotprofile.gate.opened"}, names(events))
	event := asMap(events[0].Attributes)
	require.Equal(t, "http_response_time", event["hotprofile.trigger.monitor"])
	all, _ := h.Readings(10)
	require.Len(t, all, 1)
	var readings []string
	for _, c := range all[0].Conditions {
		readings = append(readings, c.Policy+" "+c.Monitor+" "+c.Window)
	}
	require.Equal(t, []string{
		"slow http_response_time(percentile=95 min=20 over=5s) 5s average",
		"slow http_response_time(percentile=99 min=20 over=5s) 5s average",
		"slow memory_utilization 5s average",
	}, readings)
	require.Equal(t, readings[0], fmt.Sprint(event["hotprofile.trigger.policy"], " ", event["hotprofile.trigger.condition"], " ", event["hotprofile.trigger.window"]))
	require.Equal(t, 50e6, all[0].WorkingSet)
	require.Equal(t, r.now, all[0].MemoryTime)
}

func TestLogLinesOfAPodHaveItsNames(t *testing.T) {
	r := newRig(t, onePolicy("", ""))
	r.subscribe()
	pod := inContainer(containerA)
	pod.attributes["k8s.pod.name"], pod.attributes["k8s.deployment.name"], pod.attributes["k8s.pod.uid"] = "shop-1", "shop", "1-2"
	require.NoError(t, r.send(batch(t, r.now, pod)))
	r.fire(containerA)
	r.p.units.Remove(r.unit(containerA), r.now)
	r.p.flush()
	for _, message := range []string{"gate opened", "gate closed"} {
		lines := r.logs.FilterMessage(message).All()
		require.Len(t, lines, 1, message)
		fields := lines[0].ContextMap()
		require.Equal(t, "shop-1", fields["k8s.pod.name"], message)
		require.Equal(t, "shop", fields["k8s.deployment.name"], message)
		require.NotContains(t, fields, "k8s.pod.uid", message)
	}
}

// TestEventsOfAContainerHaveItsResource checks that events have the attributes of the
// unit's profiles. The first profile may contain samples from before the process was
// moved into its container.
func TestEventsOfAContainerHaveItsResource(t *testing.T) {
	r := newRig(t, onePolicy("", ""))
	s := r.subscribe()
	early := part{attributes: map[string]any{"process.linux.cgroup": "/docker/" + containerA, "host.name": "here", "process.executable.name": "sh"}}
	r.host.Groups["/docker/"+containerA] = r.host.Groups[containerA]
	require.NoError(t, r.send(batch(t, r.now, early)))
	r.fire(containerA)
	r.p.flush()
	opened := asMap(take(s)[0].Resource)
	require.Equal(t, containerA, opened["container.id"])
	require.Equal(t, "sh", opened["process.executable.name"], "nothing else is known")
	require.NoError(t, r.send(batch(t, r.now, inContainer(containerA))))
	require.NoError(t, r.send(batch(t, r.now, early)))
	r.p.units.Remove(r.unit(containerA), r.now)
	r.p.flush()
	closed := asMap(take(s)[0].Resource)
	require.Equal(t, containerA, closed["container.id"])
	require.Equal(t, "app", closed["process.executable.name"])
}

func TestBulkResourcesOfManyUnitsAreBounded(t *testing.T) {
	r := newRig(t, onePolicy("", ""))
	s := r.subscribe()
	long := map[string]any{"container.id": containerA, "service.name": "checkout", "long": strings.Repeat("x", 3000)}
	for i := range 3000 {
		name := fmt.Sprintf("/s%04d", i)
		r.host.Groups[name] = cgroup.Group{ID: name, Cgroup: name}
		require.NoError(t, r.send(batch(t, r.now, part{attributes: map[string]any{"process.linux.cgroup": name, "host.name": "here", "long": long["long"]}, events: 1})))
	}
	r.fire(containerA)
	require.NoError(t, r.send(batch(t, r.now.Add(time.Second), part{attributes: long})))
	r.runUntil("gate closed", time.Minute)
	events := take(s)
	e := events[len(events)-1]
	require.Equal(t, map[string]any{"container.id": containerA, "service.name": "checkout"}, asMap(e.Resource))
	require.Equal(t, 3, e.Dropped)
}
