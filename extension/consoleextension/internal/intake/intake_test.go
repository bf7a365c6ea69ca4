// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package intake

import (
	"context"
	"math"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/extension/extensiontest"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/plog"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/receiver/receivertest"
	"go.opentelemetry.io/otel/attribute"
	"go.uber.org/zap"

	"github.com/hotprofile/hotprofile/extension/consoleextension/internal/store"
	"github.com/hotprofile/hotprofile/extension/hotunitsextension"
	"github.com/hotprofile/hotprofile/receiver/hotunitsreceiver"
)

// recorded is the time at which the files in testdata were recorded. The files contain a
// collector's events and readings, and the collector's own logs and metrics.
var recorded = time.Date(2026, 11, 22, 15, 20, 0, 0, time.UTC)

func openStore(t testing.TB) *store.Store {
	s, err := store.Open(store.Options{Directory: t.TempDir(), Now: func() time.Time { return recorded }})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

func readLogs(t testing.TB, file string) plog.Logs {
	b, err := os.ReadFile(file)
	require.NoError(t, err)
	ld, err := new(plog.JSONUnmarshaler).UnmarshalLogs(b)
	require.NoError(t, err)
	return ld
}

func readMetrics(t testing.TB, file string) pmetric.Metrics {
	b, err := os.ReadFile(file)
	require.NoError(t, err)
	md, err := new(pmetric.JSONUnmarshaler).UnmarshalMetrics(b)
	require.NoError(t, err)
	return md
}

// TestAnOpeningLearnsItsSlowestRequests checks that the requests of a later event are
// added to the opening, and that invalid requests are omitted.
func TestAnOpeningLearnsItsSlowestRequests(t *testing.T) {
	s := openStore(t)
	require.NoError(t, Logs(t.Context(), s, readLogs(t, "testdata/logs.json")))
	before, err := s.Opening(t.Context(), "2dd146807f9948f4")
	require.NoError(t, err)
	ld := plog.NewLogs()
	rl := ld.ResourceLogs().AppendEmpty()
	for key, value := range before.Unit.Resource {
		rl.Resource().Attributes().PutStr(key, value)
	}
	r := rl.ScopeLogs().AppendEmpty().LogRecords().AppendEmpty()
	r.SetEventName("hotprofile.gate.requests")
	r.Attributes().PutStr("hotprofile.unit", before.Unit.Name)
	r.Attributes().PutStr("hotprofile.trigger.id", before.ID)
	list := r.Attributes().PutEmptySlice("hotprofile.requests")
	list.AppendEmpty().SetStr(`{"trace_id":"0af7651916cd43dd8448eb211c80319c","route":"/cart/{id}","failed":true,"duration":812.4,"cpu":604,"waits":{"lock":110}}`)
	list.AppendEmpty().SetStr(`{"trace_id":"0af7`)
	list.AppendEmpty().SetInt(7)
	require.NoError(t, Logs(t.Context(), s, ld))
	after, err := s.Opening(t.Context(), before.ID)
	require.NoError(t, err)
	require.Equal(t, []store.Request{{
		TraceID: "0af7651916cd43dd8448eb211c80319c", Route: "/cart/{id}", Failed: true, Duration: 812.4, CPU: 604, Waits: map[string]float64{"lock": 110},
	}}, after.Requests)
	after.Requests = nil
	require.Equal(t, before, after)
}

func TestEventsBecomeOpeningsAndRefusals(t *testing.T) {
	s := openStore(t)
	require.NoError(t, Logs(t.Context(), s, readLogs(t, "testdata/logs.json")))
	require.NoError(t, Logs(t.Context(), s, readLogs(t, "testdata/logs.json"))) // the logs are sent twice
	openings, err := s.Openings(t.Context(), store.OpeningQuery{})
	require.NoError(t, err)
	require.Len(t, openings, 2)
	o, err := s.Opening(t.Context(), "2dd146807f9948f4")
	require.NoError(t, err)
	require.Equal(t, "15506:2026-11-22T15:00:03.54Z", o.Unit.Name)
	require.Equal(t, "vm", o.Unit.Host)
	require.NotEmpty(t, o.Unit.Resource["service.name"])
	require.Equal(t, store.IDOf("vm", "15506:2026-11-22T15:00:03.54Z"), o.Unit.ID)
	require.Equal(t, []string{"cpu", "hot", "cpu_usage", "5s average", "duration", ""}, []string{o.Policy, o.Kind, o.Monitor, o.Window, o.Why, o.NothingExported})
	require.InDelta(t, 0.233, o.Value, 0)
	require.InDelta(t, 0.05, o.Threshold, 0)
	require.EqualValues(t, 1795360761826425722, o.Triggered.UnixNano())
	require.EqualValues(t, 1795360766826425722, o.Closed.UnixNano())
	require.Equal(t, "2026-11-22T15:19:26.826425722Z", o.Until.Format(time.RFC3339Nano))
	require.EqualValues(t, 307, o.Samples)
	require.EqualValues(t, 19989, o.Bytes)

	refusals, err := s.Refusals(t.Context(), "", 0)
	require.NoError(t, err)
	require.Len(t, refusals, 4) // events that are sent twice are counted twice
	require.Equal(t, "min_age", refusals[0].Why)
	require.Empty(t, s.Usage().Dropped)
}

// TestACloseWithoutItsOpeningIsAnOpening covers an opening whose first event was lost.
func TestACloseWithoutItsOpeningIsAnOpening(t *testing.T) {
	s := openStore(t)
	ld := readLogs(t, "testdata/logs.json")
	for _, rl := range ld.ResourceLogs().All() {
		for _, sl := range rl.ScopeLogs().All() {
			sl.LogRecords().RemoveIf(func(r plog.LogRecord) bool { return r.EventName() == "hotprofile.gate.opened" })
		}
	}
	require.NoError(t, Logs(t.Context(), s, ld))
	o, err := s.Opening(t.Context(), "2dd146807f9948f4")
	require.NoError(t, err)
	require.EqualValues(t, 1795360761826425722, o.Triggered.UnixNano())
	require.Equal(t, "cpu", o.Policy)
}

func TestPoliciesThatChangedAreKept(t *testing.T) {
	s := openStore(t)
	ld := plog.NewLogs()
	rl := ld.ResourceLogs().AppendEmpty()
	rl.Resource().Attributes().PutStr("host.name", "vm")
	r := rl.ScopeLogs().AppendEmpty().LogRecords().AppendEmpty()
	r.SetTimestamp(pcommon.NewTimestampFromTime(recorded))
	r.Attributes().PutStr("event.name", "hotprofile.policies.changed") // exporters that do not know event names write this attribute
	r.Attributes().PutStr("hotprofile.policies.version", "abc")
	r.Attributes().PutEmptySlice("hotprofile.policies.added").AppendEmpty().SetStr("cpu")
	require.NoError(t, Logs(t.Context(), s, ld))
	changes, err := s.PolicyChanges(t.Context())
	require.NoError(t, err)
	require.Equal(t, []store.PolicyChange{{At: changes[0].At, Host: "vm", Version: "abc", Added: []string{"cpu"}}}, changes)
	require.True(t, changes[0].At.Equal(recorded))
}

func TestAPolicyThatMatchesNoUnitIsKept(t *testing.T) {
	s := openStore(t)
	ld := plog.NewLogs()
	rl := ld.ResourceLogs().AppendEmpty()
	rl.Resource().Attributes().PutStr("host.name", "vm")
	r := rl.ScopeLogs().AppendEmpty().LogRecords().AppendEmpty()
	r.SetTimestamp(pcommon.NewTimestampFromTime(recorded))
	r.SetEventName("hotprofile.policy.unmatched")
	r.Attributes().PutStr("hotprofile.trigger.policy", "cpu")
	r.Attributes().PutStr("hotprofile.gate.why", "servce.name: shop: did you mean service.name?")
	require.NoError(t, Logs(t.Context(), s, ld))
	changes, err := s.PolicyChanges(t.Context())
	require.NoError(t, err)
	require.Equal(t, []store.PolicyChange{{At: changes[0].At, Host: "vm", Unmatched: "cpu", Why: "servce.name: shop: did you mean service.name?"}}, changes)
}

func TestReadingsOfUnits(t *testing.T) {
	s := openStore(t)
	Metrics(s, readMetrics(t, "testdata/units.json"))
	u, err := s.Unit(store.IDOf("vm", "/demo-hot"))
	require.NoError(t, err)
	require.Equal(t, "demo-hot", u.Resource["service.name"])
	require.Equal(t, map[string]string{"cpu": "watching"}, u.States)
	require.Len(t, u.Readings, 1)
	require.Equal(t, store.Condition{Policy: "cpu", Monitor: "cpu_usage", Window: "5s average"}, u.Readings[0].Condition)
	require.InDelta(t, 0.2988236, u.Readings[0].Value, 0)
	require.InDelta(t, 0.05, u.Readings[0].Threshold, 0)
}

// TestAReadingAndItsThresholdMayComeInTwoBatches sends a reading and its threshold
// separately, as if a batch processor had split them.
func TestAReadingAndItsThresholdMayComeInTwoBatches(t *testing.T) {
	s := openStore(t)
	for _, name := range []string{"hotprofile.unit.reading", "hotprofile.unit.threshold"} {
		md := readMetrics(t, "testdata/units.json")
		for _, rm := range md.ResourceMetrics().All() {
			rm.ScopeMetrics().At(0).Metrics().RemoveIf(func(m pmetric.Metric) bool { return m.Name() != name })
		}
		Metrics(s, md)
	}
	id := store.IDOf("vm", "/demo-hot")
	u, err := s.Unit(id)
	require.NoError(t, err)
	require.InDelta(t, 0.2988236, u.Readings[0].Value, 0)
	require.InDelta(t, 0.05, u.Readings[0].Threshold, 0)
	trends, err := s.Trends(t.Context(), id, time.Time{}, time.Time{}, 10)
	require.NoError(t, err)
	require.Len(t, trends[0].Points, 1)
	require.InDelta(t, 0.2988236, trends[0].Points[0].Mean, 1e-6)
	require.False(t, math.IsNaN(trends[0].Points[0].Threshold))
}

func TestACollectorsOwnTelemetry(t *testing.T) {
	s := openStore(t)
	require.NoError(t, Logs(t.Context(), s, readLogs(t, "testdata/logs.json")))
	Metrics(s, readMetrics(t, "testdata/own-1.json"))
	Metrics(s, readMetrics(t, "testdata/own-2.json"))
	all, err := s.Instances(t.Context())
	require.NoError(t, err)
	require.Len(t, all, 1)
	i := all[0]
	require.Equal(t, "otelcol-hotprofile", i.Service)
	require.Equal(t, "0.1.0", i.Version)
	samples := find(i.Metrics, "otelcol_cpu_profiler.samples")
	require.InDelta(t, 2839, samples.Value, 0)
	require.Equal(t, map[string]string{"outcome": "exported", "sampler": "on_cpu"}, samples.Attributes)
	require.InDelta(t, (2839-1891)/5.0, samples.PerSecond, 1)
	require.Positive(t, find(i.Metrics, "otelcol_cpu_trigger.evaluation.duration").Value) // a histogram
	require.Empty(t, find(i.Metrics, "http.server.request.duration").Name)
	var started *store.Log
	for _, l := range i.Logs {
		if l.Body == "sampling started" {
			started = &l
		}
		require.NotContains(t, l.Attributes, "code.file.path")
	}
	require.NotNil(t, started)
	require.Equal(t, "receiver cpu_profiler", started.Component)
	require.Equal(t, "INFO", started.Severity)
	require.Equal(t, "97", started.Attributes["frequency"])
}

func find(all []store.Metric, name string) store.Metric {
	for _, m := range all {
		if m.Name == name {
			return m
		}
	}
	return store.Metric{}
}

// TestTheTelemetryOfProgramsIsIgnored checks that the logs and metrics of a service add no
// collectors or units to the store.
func TestTheTelemetryOfProgramsIsIgnored(t *testing.T) {
	s := openStore(t)
	ld := readLogs(t, "testdata/logs.json")
	for _, rl := range ld.ResourceLogs().All() {
		for _, sl := range rl.ScopeLogs().All() {
			sl.Scope().SetName("com.example.Shop")
			for _, r := range sl.LogRecords().All() {
				r.SetEventName("")
			}
		}
	}
	require.NoError(t, Logs(t.Context(), s, ld))
	md := readMetrics(t, "testdata/own-1.json")
	for _, rm := range md.ResourceMetrics().All() {
		for _, sm := range rm.ScopeMetrics().All() {
			for _, m := range sm.Metrics().All() {
				m.SetName("shop." + m.Name())
			}
		}
	}
	Metrics(s, md)
	all, err := s.Instances(t.Context())
	require.NoError(t, err)
	require.Empty(t, all)
	units := s.Units()
	require.Empty(t, units)
}

// FuzzLogs reads arbitrary OTLP logs. Reading must not panic,
// and queries must work afterwards.
func FuzzLogs(f *testing.F) {
	for _, file := range []string{"testdata/logs.json"} {
		b, err := new(plog.ProtoMarshaler).MarshalLogs(readLogs(f, file))
		require.NoError(f, err)
		f.Add(b)
	}
	s := openStore(f)
	f.Fuzz(func(t *testing.T, b []byte) {
		ld, err := new(plog.ProtoUnmarshaler).UnmarshalLogs(b)
		if err != nil {
			return
		}
		require.NoError(t, Logs(t.Context(), s, ld))
		readAll(t, s)
	})
}

func FuzzMetrics(f *testing.F) {
	for _, file := range []string{"testdata/own-1.json", "testdata/units.json"} {
		b, err := new(pmetric.ProtoMarshaler).MarshalMetrics(readMetrics(f, file))
		require.NoError(f, err)
		f.Add(b)
	}
	s := openStore(f)
	f.Fuzz(func(t *testing.T, b []byte) {
		md, err := new(pmetric.ProtoUnmarshaler).UnmarshalMetrics(b)
		if err != nil {
			return
		}
		Metrics(s, md)
		readAll(t, s)
	})
}

func readAll(t *testing.T, s *store.Store) {
	_, err := s.Openings(t.Context(), store.OpeningQuery{All: true})
	require.NoError(t, err)
	_, err = s.Instances(t.Context())
	require.NoError(t, err)
	s.Policies()
	units := s.Units()
	if len(units) > 0 {
		_, err = s.Trends(t.Context(), units[0].ID, time.Time{}, time.Time{}, 100)
		require.NoError(t, err)
	}
}

// TestPeersOfUnits uses metrics of peers that the hot_units receiver emits.
func TestPeersOfUnits(t *testing.T) {
	set := extensiontest.NewNopSettings(hotunitsextension.NewFactory().Type())
	ext, err := hotunitsextension.NewFactory().Create(t.Context(), set, hotunitsextension.NewFactory().CreateDefaultConfig())
	require.NoError(t, err)
	host := hostWith{set.ID: ext}
	require.NoError(t, ext.Start(t.Context(), host))
	defer func() { require.NoError(t, ext.Shutdown(t.Context())) }()
	s := openStore(t)

	hot := hotunitsextension.Find(host, zap.NewNop())
	calls := int64(0)
	emitted := make(chan struct{}, 100)
	defer hot.ServeReadings(func(dst []hotunitsextension.UnitReadings, _ int) ([]hotunitsextension.UnitReadings, int) {
		calls++
		at := recorded.Add(time.Duration(calls) * time.Second)
		return append(dst, hotunitsextension.UnitReadings{
			Unit: "4f1c", Resource: []attribute.KeyValue{attribute.String("host.name", "vm"), attribute.String("service.name", "shop")}, Time: at,
			Peers: []hotunitsextension.PeerReading{
				{
					Address: netip.MustParseAddr("10.1.2.3"), Outbound: true, Port: 5432, Transport: "tcp", Unit: "77aa", Service: "db", Start: recorded,
					Sent: 1000 * calls, Received: 2000 * calls, Connects: 3 * calls, ConnectFailures: calls, Segments: 50 * calls, Retransmits: 5 * calls,
					Connections: 6, SendQueue: 7, ReceiveQueue: 8, ReceiverWindow: time.Duration(calls) * time.Second,
					RTT: 20 * time.Millisecond, RTTVariation: 5 * time.Millisecond, HasRTT: true,
				},
				{Start: recorded, Sent: calls},
			},
		}), 0
	})()
	f := hotunitsreceiver.NewFactory()
	cfg := f.CreateDefaultConfig().(*hotunitsreceiver.Config)
	cfg.CollectionInterval = 10 * time.Millisecond
	next, err := consumer.NewMetrics(func(_ context.Context, md pmetric.Metrics) error {
		Metrics(s, md)
		select {
		case emitted <- struct{}{}:
		default:
		}
		return nil
	})
	require.NoError(t, err)
	r, err := f.CreateMetrics(t.Context(), receivertest.NewNopSettings(f.Type()), cfg, next)
	require.NoError(t, err)
	require.NoError(t, r.Start(t.Context(), host))
	for range 3 {
		<-emitted
	}
	require.NoError(t, r.Shutdown(t.Context()))

	id := store.IDOf("vm", "4f1c")
	s.PutReadings(store.Unit{Host: "vm", Name: "77aa"}, nil, nil)
	check := func(s *store.Store) {
		t.Helper()
		list, err := s.Peers(t.Context(), id, recorded, recorded.Add(time.Hour))
		require.NoError(t, err)
		require.Len(t, list, 2)
		db := list[0]
		require.Equal(t, store.PeerKey{Address: "10.1.2.3", Direction: "outbound", Port: 5432, Transport: "tcp"}, db.PeerKey)
		require.Equal(t, store.PeerName{Service: "db", Name: "77aa"}, db.PeerName)
		require.Equal(t, store.IDOf("vm", "77aa"), db.Unit)
		require.Equal(t, []int64{1000 * calls, 2000 * calls, 3 * calls, calls, 50 * calls, 5 * calls}, []int64{db.Sent, db.Received, db.Connects, db.ConnectFailures, db.Segments, db.Retransmits})
		require.Equal(t, []int64{6, 7, 8}, []int64{db.Connections, db.SendQueue, db.ReceiveQueue})
		require.Equal(t, time.Duration(calls)*time.Second, db.ReceiverWindow)
		require.Equal(t, 20*time.Millisecond, db.RTT.Round(time.Microsecond))
		require.Equal(t, 5*time.Millisecond, db.RTTVariation.Round(time.Microsecond))
		require.True(t, db.To.Equal(recorded.Add(time.Duration(calls)*time.Second)))
		require.Equal(t, calls, list[1].Sent)
		require.Zero(t, list[1].PeerKey)

		list, err = s.Peers(t.Context(), id, recorded.Add(time.Hour), recorded.Add(2*time.Hour))
		require.NoError(t, err)
		require.Empty(t, list)
	}
	check(s)
}

type hostWith map[component.ID]component.Component

func (h hostWith) GetExtensions() map[component.ID]component.Component { return h }
