// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package cputriggerprocessor

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pprofile"
	"go.opentelemetry.io/collector/pdata/ptrace"

	"github.com/hotprofile/hotprofile/extension/hotunitsextension"
	"github.com/hotprofile/hotprofile/internal/otlpprofiles/dictionary"
	"github.com/hotprofile/hotprofile/test/conformancetest"
)

// linkedBatch returns a batch of a container. The links of its samples cycle through the
// spans 1 to 3.
func linkedBatch(t *testing.T, end time.Time) pprofile.Profiles {
	pd := batch(t, end, inContainer(containerA))
	for n := range byte(3) {
		l := pd.Dictionary().LinkTable().AppendEmpty()
		l.SetTraceID(pcommon.TraceID{n + 1})
		l.SetSpanID(pcommon.SpanID{n + 1})
	}
	n := 0
	for _, s := range pd.ResourceProfiles().At(0).ScopeProfiles().At(0).Profiles().At(0).Samples().All() {
		s.SetLinkIndex(int32(n%3 + 1))
		n++
	}
	return pd
}

// labelFirst adds the attribute http.route to the first sample of a batch.
func labelFirst(pd pprofile.Profiles, route string) {
	labelled := pd.Dictionary().AttributeTable().AppendEmpty()
	labelled.SetKeyStrindex(int32(pd.Dictionary().StringTable().Len()))
	pd.Dictionary().StringTable().Append("http.route")
	labelled.Value().SetStr(route)
	own := pd.ResourceProfiles().At(0).ScopeProfiles().At(0).Profiles().At(0).Samples().At(0)
	own.AttributeIndices().Append(int32(pd.Dictionary().AttributeTable().Len() - 1))
}

// observe sends spans of a container, of which the first has failed. It then waits until
// the container is known.
func (r *rig) observe(ids ...byte) {
	r.t.Helper()
	td := ptrace.NewTraces()
	rs := td.ResourceSpans().AppendEmpty()
	rs.Resource().Attributes().PutStr("container.id", containerA)
	spans := rs.ScopeSpans().AppendEmpty().Spans()
	for i, n := range ids {
		s := spans.AppendEmpty()
		s.SetKind(ptrace.SpanKindServer)
		s.SetTraceID(pcommon.TraceID{n})
		s.SetSpanID(pcommon.SpanID{n})
		s.SetEndTimestamp(pcommon.NewTimestampFromTime(r.now))
		s.SetStartTimestamp(pcommon.NewTimestampFromTime(r.now.Add(-time.Second)))
		s.Attributes().PutStr("http.request.method", "GET")
		s.Attributes().PutStr("http.route", "/cart/{id}")
		s.Attributes().PutInt("http.response.status_code", 500-int64(i)*300)
	}
	r.p.requests.ObserveTraces(td)
	ctx, cancel := context.WithCancel(r.t.Context())
	done := make(chan struct{})
	go func() { defer close(done); r.p.requests.Run(ctx, r.host) }()
	require.Eventually(r.t, func() bool {
		_, ok := r.p.requests.Join(containerA, pcommon.TraceID{ids[0]}, pcommon.SpanID{9})
		return ok
	}, 10*time.Second, time.Millisecond)
	cancel()
	<-done
}

// sendLinked opens the gate of a container. It then sends samples with links to spans, two of
// which have ended. route is the route of the first sample.
func (r *rig) sendLinked(route string) {
	r.t.Helper()
	r.fire(containerA)
	r.run(15 * time.Second)
	r.sink.Reset()
	r.observe(1, 2)
	pd := linkedBatch(r.t, r.now)
	labelFirst(pd, route)
	require.NoError(r.t, r.send(pd))
	r.drain()
}

func TestSamplesHaveTheRequestOfTheirSpan(t *testing.T) {
	r := newRig(t, fiveSeconds)
	h := hotUnits(t)
	r.p.publishTo(h)
	s := h.Subscribe("test")
	defer s.Close()
	require.NoError(t, r.send(linkedBatch(t, r.now)), "spans are remembered from now on")
	r.sendLinked("/label")
	require.Empty(t, r.sink.AllProfiles(), "it waits for spans that end now")
	r.run(15 * time.Second)
	require.Len(t, r.sink.AllProfiles(), 1)
	pd := r.sink.AllProfiles()[0]
	conformancetest.CheckFatal(t, pd, conformancetest.Options{Triggered: true, References: true})
	got := map[string]int{}
	d := dictionary.NewReader(pd.Dictionary())
	for _, s := range pd.ResourceProfiles().At(0).ScopeProfiles().At(0).Profiles().At(0).Samples().All() {
		of := map[string]string{}
		for key, value := range d.Attributes(s.AttributeIndices()) {
			of[key] = value.AsString()
		}
		got[of["http.route"]+" "+of["hotprofile.request"]]++
	}
	require.Equal(t, map[string]int{"/label failed": 1, "/cart/{id} failed": 1, "/cart/{id} normal": 2, " ": 2}, got)
	require.Equal(t, map[string]int64{"joined": 4, "unknown": 2}, r.metric("otelcol_cpu_trigger.linked.samples"))
	r.checkSum()
	require.Equal(t, []string{"hotprofile.gate.opened", "hotprofile.gate.closed duration"}, names(take(s)))
	r.run(20 * time.Second)
	events := take(s)
	require.Equal(t, []string{"hotprofile.gate.requests"}, names(events))
	require.Equal(t, "slowest requests of unknown_service:app while its gate was open by policy cpu", events[0].Body)
	var served []hotunitsextension.Request
	for _, text := range asMap(events[0].Attributes)["hotprofile.requests"].([]string) {
		var r hotunitsextension.Request
		require.NoError(t, json.Unmarshal([]byte(text), &r))
		served = append(served, r)
	}
	request := hotunitsextension.Request{TraceID: "01" + strings.Repeat("0", 30), Route: "/cart/{id}", Failed: true, Duration: 1000, CPU: 20.619}
	other := request
	other.TraceID, other.Failed = "02"+strings.Repeat("0", 30), false
	require.ElementsMatch(t, []hotunitsextension.Request{request, other}, served)
}

// TestASampleKeepsAnEmptyRoute checks that a sample never gets a second route, even if its
// route is empty.
func TestASampleKeepsAnEmptyRoute(t *testing.T) {
	r := newRig(t, fiveSeconds)
	require.NoError(t, r.send(linkedBatch(t, r.now)))
	r.sendLinked("")
	r.run(15 * time.Second)
	require.Len(t, r.sink.AllProfiles(), 1)
	pd := r.sink.AllProfiles()[0]
	var routes []string
	first := pd.ResourceProfiles().At(0).ScopeProfiles().At(0).Profiles().At(0).Samples().At(0)
	for key, value := range dictionary.NewReader(pd.Dictionary()).Attributes(first.AttributeIndices()) {
		if key == "http.route" {
			routes = append(routes, value.Str())
		}
	}
	require.Equal(t, []string{""}, routes)
}

// TestRequestsOfALastOpeningAreInAnEvent checks that the shutdown does not lose the requests
// of an opening.
func TestRequestsOfALastOpeningAreInAnEvent(t *testing.T) {
	r := newRig(t, fiveSeconds)
	h := hotUnits(t)
	r.p.publishTo(h)
	s := h.Subscribe("test")
	defer s.Close()
	require.NoError(t, r.send(linkedBatch(t, r.now)))
	r.fire(containerA)
	r.observe(1, 2)
	require.NoError(t, r.send(linkedBatch(t, r.now)))
	require.NoError(t, r.p.Shutdown(t.Context()))
	require.Equal(t, []string{"hotprofile.gate.opened", "hotprofile.gate.closed shutdown", "hotprofile.gate.requests"}, names(take(s)))
}

func TestProfilesWithLinksDoNotWaitWithoutSpans(t *testing.T) {
	r := newRig(t, fiveSeconds)
	r.fire(containerA)
	require.NoError(t, r.send(linkedBatch(t, r.now)))
	require.Len(t, r.sink.AllProfiles(), 1)
	require.Empty(t, r.metric("otelcol_cpu_trigger.linked.samples"), "only spans that pass can be unknown")
	r.checkSum()
}

func TestProfilesDoNotWaitForSpansAtShutdown(t *testing.T) {
	r := newRig(t, fiveSeconds)
	require.NoError(t, r.send(linkedBatch(t, r.now)))
	r.fire(containerA)
	r.run(15 * time.Second)
	r.observe(1, 2, 3)
	r.sink.Reset()
	require.NoError(t, r.send(linkedBatch(t, r.now)))
	require.Empty(t, r.sink.AllProfiles())
	require.NoError(t, r.p.Shutdown(t.Context()))
	require.Len(t, r.sink.AllProfiles(), 1)
}
