// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package hotunitsreceiver

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/component/componentstatus"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/confmap"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/consumer/consumertest"
	"go.opentelemetry.io/collector/extension/extensiontest"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/plog"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/receiver"
	"go.opentelemetry.io/collector/receiver/receivertest"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.opentelemetry.io/otel/sdk/metric/metricdata/metricdatatest"
	"go.opentelemetry.io/otel/trace"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
	"go.yaml.in/yaml/v3"

	"github.com/hotprofile/hotprofile/extension/hotunitsextension"
	"github.com/hotprofile/hotprofile/receiver/hotunitsreceiver/internal/metadata"
	"github.com/hotprofile/hotprofile/receiver/hotunitsreceiver/internal/metadatatest"
)

const wait = time.Minute

// rig is a host with the extension. It also collects the logs and metrics of a receiver.
type rig struct {
	*hotunitsextension.HotUnits
	logs      *observer.ObservedLogs
	telemetry *componenttest.Telemetry
	set       receiver.Settings
	statuses  []*componentstatus.Event
}

func newRig(t *testing.T) *rig {
	t.Helper()
	core, logs := observer.New(zapcore.InfoLevel)
	r := &rig{logs: logs, telemetry: componenttest.NewTelemetry()}
	r.set = receivertest.NewNopSettings(metadata.Type)
	r.set.TelemetrySettings = r.telemetry.NewTelemetrySettings()
	r.set.Logger = zap.New(core)
	factory := hotunitsextension.NewFactory()
	set := extensiontest.NewNopSettings(factory.Type())
	set.TelemetrySettings = r.set.TelemetrySettings
	ext, err := factory.Create(t.Context(), set, factory.CreateDefaultConfig())
	require.NoError(t, err)
	require.NoError(t, ext.Start(t.Context(), r))
	r.HotUnits = ext.(*hotunitsextension.HotUnits)
	t.Cleanup(func() {
		require.NoError(t, ext.Shutdown(context.Background()))
		require.NoError(t, r.telemetry.Shutdown(context.Background()))
	})
	return r
}

func (r *rig) GetExtensions() map[component.ID]component.Component {
	return map[component.ID]component.Component{component.MustNewID("hot_units"): r.HotUnits}
}

func (r *rig) Report(e *componentstatus.Event) { r.statuses = append(r.statuses, e) }

// load parses and validates the configuration in a text.
func load(t *testing.T, text string) (*Config, error) {
	t.Helper()
	var raw map[string]any
	require.NoError(t, yaml.Unmarshal([]byte(text), &raw))
	cfg := createDefaultConfig()
	if err := confmap.NewFromStringMap(raw).Unmarshal(cfg); err != nil {
		return nil, err
	}
	return cfg, cfg.Validate()
}

func (r *rig) startLogs(t *testing.T, config string, next consumer.Logs) receiver.Logs {
	t.Helper()
	return r.startLogsWithin(t, callTimeout, config, next)
}

// startLogsWithin starts a receiver like startLogs, but with another timeout for calls.
func (r *rig) startLogsWithin(t *testing.T, timeout time.Duration, config string, next consumer.Logs) receiver.Logs {
	t.Helper()
	cfg, err := load(t, config)
	require.NoError(t, err)
	l, err := NewFactory().CreateLogs(t.Context(), r.set, cfg, next)
	require.NoError(t, err)
	l.(*logs).timeout = timeout
	require.NoError(t, l.Start(t.Context(), r))
	return l
}

// metric returns the sum of a counter.
func (r *rig) metric(name string) (sum int64) {
	m, err := r.telemetry.GetMetric(name)
	if err != nil {
		return 0
	}
	for _, p := range m.Data.(metricdata.Sum[int64]).DataPoints {
		sum += p.Value
	}
	return sum
}

func (r *rig) refused() int64 { return r.metric("otelcol_receiver_refused_log_records") }

func (r *rig) dropped() int64 { return r.metric("otelcol_hot_units.events.dropped") }

var opened = hotunitsextension.Event{
	Name: hotunitsextension.GateOpened, Time: time.Unix(100, 5), Body: "gate of checkout opened",
	Resource: []attribute.KeyValue{attribute.String("service.name", "checkout")},
	Attributes: []attribute.KeyValue{
		attribute.String("hotprofile.unit", "4f1c"), attribute.Float64("hotprofile.trigger.value", 93.5), attribute.Int("hotprofile.gate.samples", 7),
		attribute.Bool("bool", true), attribute.StringSlice("hotprofile.profile.functions", []string{"a 50.0%", "b 1.0%"}),
	},
	TraceID: trace.TraceID{1, 2}, SpanID: trace.SpanID{3}, Dropped: 2,
}

func TestAnEventIsALogRecord(t *testing.T) {
	r := newRig(t)
	sink := &consumertest.LogsSink{}
	l := r.startLogs(t, "", sink)
	before := time.Now()
	r.PublishEvent(opened)
	require.Eventually(t, func() bool { return sink.LogRecordCount() == 1 }, wait, time.Millisecond)
	rl := sink.AllLogs()[0].ResourceLogs().At(0)
	require.Equal(t, map[string]any{"service.name": "checkout"}, rl.Resource().Attributes().AsRaw())
	require.Equal(t, "github.com/hotprofile/hotprofile/receiver/hotunitsreceiver", rl.ScopeLogs().At(0).Scope().Name())
	record := rl.ScopeLogs().At(0).LogRecords().At(0)
	require.Equal(t, "hotprofile.gate.opened", record.EventName())
	require.True(t, opened.Time.Equal(record.Timestamp().AsTime()))
	require.False(t, record.ObservedTimestamp().AsTime().Before(before))
	require.Equal(t, plog.SeverityNumberInfo, record.SeverityNumber())
	require.Equal(t, opened.Body, record.Body().Str())
	require.Equal(t, map[string]any{
		"hotprofile.unit": "4f1c", "hotprofile.trigger.value": 93.5, "hotprofile.gate.samples": int64(7), "bool": true,
		"hotprofile.profile.functions": []any{"a 50.0%", "b 1.0%"},
	}, record.Attributes().AsRaw())
	require.Equal(t, pcommon.TraceID{1, 2}, record.TraceID())
	require.Equal(t, pcommon.SpanID{3}, record.SpanID())
	require.EqualValues(t, 2, record.DroppedAttributesCount())
	require.NoError(t, l.Shutdown(t.Context()))
	require.NoError(t, l.Shutdown(t.Context()), "again")
	require.False(t, r.Listening())
}

func TestEventsThatAreNotWantedTakeNoRoom(t *testing.T) {
	r := newRig(t)
	sink := &consumertest.LogsSink{}
	l := r.startLogs(t, "events: [hotprofile.gate.closed]", sink)
	closed := opened
	closed.Name = hotunitsextension.GateClosed
	r.PublishEvent(opened)
	r.PublishEvent(closed)
	require.NoError(t, l.Shutdown(t.Context()))
	require.Equal(t, 1, sink.LogRecordCount())
	require.Equal(t, closed.Name, sink.AllLogs()[0].ResourceLogs().At(0).ScopeLogs().At(0).LogRecords().At(0).EventName())
}

func TestEventsOfOneUnitShareAResource(t *testing.T) {
	r := newRig(t)
	l, err := newLogs(r.set, createDefaultConfig(), consumertest.NewNop())
	require.NoError(t, err)
	other := opened
	other.Resource = nil
	ld := l.records([]hotunitsextension.Event{opened, opened, other, opened}, time.Now())
	var got []string
	for _, rl := range ld.ResourceLogs().All() {
		got = append(got, fmt.Sprint(rl.Resource().Attributes().Len(), " ", rl.ScopeLogs().At(0).LogRecords().Len()))
	}
	require.Equal(t, []string{"1 2", "0 1", "1 1"}, got)
}

func TestWhatTheNextComponentRefusesIsCountedAndLoggedOnce(t *testing.T) {
	r := newRig(t)
	l := r.startLogs(t, "", consumertest.NewErr(errors.New("full")))
	for i := range 3 {
		r.PublishEvent(opened)
		require.Eventually(t, func() bool { return r.refused() == int64(i+1) }, wait, time.Millisecond)
	}
	entries := r.logs.FilterMessage("next component failed, data lost").All()
	require.Len(t, entries, 1)
	require.Equal(t, map[string]any{"data": "events", "lost": int64(1), "error": "full"}, entries[0].ContextMap())
	require.NoError(t, l.Shutdown(t.Context()))
}

// TestAStormWhileTheNextComponentHangs publishes many events while the next component
// hangs until its deadline. The publisher must not be blocked. Each event must be counted
// as emitted, refused or dropped.
func TestAStormWhileTheNextComponentHangs(t *testing.T) {
	r := newRig(t)
	hanging := make(chan struct{}, 1)
	next, err := consumer.NewLogs(func(ctx context.Context, _ plog.Logs) error {
		select {
		case hanging <- struct{}{}:
		default:
		}
		<-ctx.Done()
		return ctx.Err()
	})
	require.NoError(t, err)
	l := r.startLogsWithin(t, 50*time.Millisecond, "", next)
	r.PublishEvent(opened)
	<-hanging
	const storm = 10_000
	for range storm {
		r.PublishEvent(opened)
	}
	require.NoError(t, l.Shutdown(t.Context()))
	require.Positive(t, r.dropped())
	require.EqualValues(t, storm+1, r.refused()+r.dropped())
}

// TestShutdownWhileTheNextComponentIgnoresItsContext covers a next component that ignores
// its context. A shutdown must not wait for this component.
func TestShutdownWhileTheNextComponentIgnoresItsContext(t *testing.T) {
	r := newRig(t)
	release, hanging := make(chan struct{}), make(chan struct{})
	next, err := consumer.NewLogs(func(context.Context, plog.Logs) error {
		close(hanging)
		<-release
		return nil
	})
	require.NoError(t, err)
	l := r.startLogsWithin(t, time.Millisecond, "", next)
	r.PublishEvent(opened)
	<-hanging
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, l.Shutdown(ctx), context.Canceled)
	close(release)
	<-l.(*logs).done
}

func TestWithoutTheExtensionNothingIsEmittedAndTheStatusSaysSo(t *testing.T) {
	r := newRig(t)
	r.HotUnits = nil
	host := &bare{}
	cfg := createDefaultConfig()
	l, err := newLogs(r.set, cfg, consumertest.NewNop())
	require.NoError(t, err)
	require.NoError(t, l.Start(t.Context(), host))
	require.NoError(t, l.Shutdown(t.Context()))
	require.Len(t, host.statuses, 1)
	require.ErrorContains(t, host.statuses[0].Err(), "add hot_units to extensions and to service.extensions")
	require.Equal(t, 1, r.logs.FilterMessage("no hot_units extension, nothing to emit").Len())
	r.HotUnits = newRig(t).HotUnits // the cleanup needs an extension
}

type bare struct{ statuses []*componentstatus.Event }

func (*bare) GetExtensions() map[component.ID]component.Component { return nil }
func (b *bare) Report(e *componentstatus.Event)                   { b.statuses = append(b.statuses, e) }

// points returns the data points in the form "resource name{attributes} value".
func points(md pmetric.Metrics) (out []string) {
	for _, rm := range md.ResourceMetrics().All() {
		for _, m := range rm.ScopeMetrics().At(0).Metrics().All() {
			var of pmetric.NumberDataPointSlice
			if m.Type() == pmetric.MetricTypeSum {
				of = m.Sum().DataPoints()
			} else {
				of = m.Gauge().DataPoints()
			}
			for _, p := range of.All() {
				value := p.DoubleValue()
				if p.ValueType() == pmetric.NumberDataPointValueTypeInt {
					value = float64(p.IntValue())
				}
				out = append(out, fmt.Sprint(rm.Resource().Attributes().AsRaw(), " ", m.Name(), p.Attributes().AsRaw(), " ", value))
			}
		}
	}
	return out
}

func TestReadingsAreDataPoints(t *testing.T) {
	r := newRig(t)
	cfg, err := load(t, "max_units: 1")
	require.NoError(t, err)
	sink := &consumertest.MetricsSink{}
	m, err := newMetrics(r.set, cfg, sink)
	require.NoError(t, err)
	m.hot, m.ctx = r.HotUnits, t.Context()
	defer func() { require.NoError(t, m.Shutdown(t.Context())) }()
	m.emit()
	require.Empty(t, sink.AllMetrics(), "there is nothing to emit")

	at := time.Unix(1000, 0)
	reading := hotunitsextension.UnitReadings{
		Unit: "4f1c", ContainerID: "4f1c", Time: at, CPUTime: at, CPUSeconds: 10, WorkingSet: 5e6,
		Resource: []attribute.KeyValue{attribute.String("service.name", "checkout")},
		Conditions: []hotunitsextension.ConditionReading{
			{Policy: "cpu", Monitor: "cpu_utilization", Window: "30s average", Value: 93.5, Known: true, Threshold: 80},
			{Policy: "cpu", Monitor: "cpu_throttling", Window: "30s average", Threshold: 25},
		},
		Policies: []hotunitsextension.PolicyState{{Policy: "cpu", State: "profiling"}},
	}
	left := 0
	stop := r.ServeReadings(func(dst []hotunitsextension.UnitReadings, most int) ([]hotunitsextension.UnitReadings, int) {
		require.Equal(t, 1, most)
		return append(dst, reading), left
	})
	defer stop()
	m.emit()
	const resource = "map[service.name:checkout] "
	want := []string{
		resource + "hotprofile.unit.readingmap[hotprofile.trigger.monitor:cpu_utilization hotprofile.trigger.policy:cpu hotprofile.trigger.window:30s average hotprofile.unit:4f1c] 93.5",
		resource + "hotprofile.unit.statemap[hotprofile.policy.state:watching hotprofile.trigger.policy:cpu hotprofile.unit:4f1c] 0",
		resource + "hotprofile.unit.statemap[hotprofile.policy.state:profiling hotprofile.trigger.policy:cpu hotprofile.unit:4f1c] 1",
		resource + "hotprofile.unit.statemap[hotprofile.policy.state:cooling_down hotprofile.trigger.policy:cpu hotprofile.unit:4f1c] 0",
		resource + "hotprofile.unit.thresholdmap[hotprofile.trigger.monitor:cpu_utilization hotprofile.trigger.policy:cpu hotprofile.trigger.window:30s average hotprofile.unit:4f1c] 80",
		resource + "hotprofile.unit.thresholdmap[hotprofile.trigger.monitor:cpu_throttling hotprofile.trigger.policy:cpu hotprofile.trigger.window:30s average hotprofile.unit:4f1c] 25",
	}
	require.Equal(t, want, points(sink.AllMetrics()[0]))

	reading.CPUTime, reading.CPUSeconds, left = at.Add(10*time.Second), 25, 3
	m.emit()
	m.emit()
	require.Equal(t, append([]string{resource + "container.cpu.usagemap[hotprofile.unit:4f1c] 1.5"}, want...), points(sink.AllMetrics()[1]))
	require.Equal(t, want, points(sink.AllMetrics()[2]), "no time has passed")
	metadatatest.AssertEqualHotUnitsReadingsCut(t, r.telemetry, []metricdata.DataPoint[int64]{{Value: 6}}, metricdatatest.IgnoreTimestamp())
	require.Equal(t, 1, r.logs.FilterMessage("too many units for readings").Len())

	reading.CPUTime, reading.CPUSeconds = at.Add(20*time.Second), 5
	m.emit()
	require.Equal(t, want, points(sink.AllMetrics()[3]), "its counter began anew")

	reading.MemoryTime = at.Add(20 * time.Second)
	m.emit()
	require.Equal(t, append([]string{resource + "container.memory.working_setmap[hotprofile.unit:4f1c] 5e+06"}, want...), points(sink.AllMetrics()[4]), "at once")
	memory := sink.AllMetrics()[4].ResourceMetrics().At(0).ScopeMetrics().At(0).Metrics().At(0)
	require.Equal(t, "By", memory.Unit())
	require.False(t, memory.Sum().IsMonotonic())
	m.emit()
	require.Equal(t, want, points(sink.AllMetrics()[5]), "it was not read anew")
	reading.MemoryTime, reading.ContainerID = at.Add(30*time.Second), ""
	m.emit()
	require.Equal(t, want, points(sink.AllMetrics()[6]), "it is no container")
}

func TestReadingsComeEachInterval(t *testing.T) {
	r := newRig(t)
	stop := r.ServeReadings(func(dst []hotunitsextension.UnitReadings, _ int) ([]hotunitsextension.UnitReadings, int) {
		return append(dst, hotunitsextension.UnitReadings{Unit: "a", Policies: []hotunitsextension.PolicyState{{Policy: "cpu", State: "watching"}}}), 0
	})
	defer stop()
	cfg, err := load(t, "{collection_interval: 1s, metrics: {hotprofile.unit.state: {enabled: true}}}")
	require.NoError(t, err)
	sink := &consumertest.MetricsSink{}
	m, err := NewFactory().CreateMetrics(t.Context(), r.set, cfg, sink)
	require.NoError(t, err)
	require.NoError(t, m.Start(t.Context(), r))
	require.Eventually(t, func() bool { return len(sink.AllMetrics()) >= 2 }, wait, 10*time.Millisecond)
	require.NoError(t, m.Shutdown(t.Context()))
}

func TestConfigurationIsChecked(t *testing.T) {
	for text, want := range map[string]string{
		"events: [gate.opened]":    `events[0]: "gate.opened" is not one of hotprofile.gate.opened`,
		"events: []":               "events: names no event; leave it out for all",
		"collection_interval: 1ms": "collection_interval: 1ms is not between 1s and 1h0m0s",
		"max_units: 0":             "max_units: 0 is not between 1 and 10000",
		"export_timeout: 5s":       "export_timeout: this key is gone, remove it: the next component has 5 seconds",
		"unknown: 1":               "unknown",
		"metrics: {no.such: {}}":   "no.such",
	} {
		_, err := load(t, text)
		require.ErrorContains(t, err, want, text)
	}
}
