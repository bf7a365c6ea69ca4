// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package cputriggerprocessor

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/consumer/consumertest"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/pdata/ptrace"
	"go.opentelemetry.io/collector/processor"
	"go.opentelemetry.io/collector/processor/processortest"
	"go.opentelemetry.io/collector/processor/xprocessor"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/hotprofile/hotprofile/processor/cputriggerprocessor/internal/metadata"
	"github.com/hotprofile/hotprofile/test/identifytest"
)

// pipelines creates one component per signal. All components have the same id.
func pipelines(t *testing.T, f processor.Factory, cfg component.Config, log *zap.Logger, signals ...string) (out []component.Component) {
	t.Helper()
	set := processortest.NewNopSettings(metadata.Type)
	set.Logger = log
	for _, signal := range signals {
		var c component.Component
		var err error
		switch signal {
		case "profiles":
			c, err = f.(xprocessor.Factory).CreateProfiles(t.Context(), set, cfg, consumertest.NewNop())
		case "traces":
			c, err = f.CreateTraces(t.Context(), set, cfg, consumertest.NewNop())
		case "metrics":
			c, err = f.CreateMetrics(t.Context(), set, cfg, consumertest.NewNop())
		}
		require.NoError(t, err)
		out = append(out, c)
	}
	return out
}

func TestPipelinesOfAllSignalsShareOneInstance(t *testing.T) {
	f := NewFactory()
	cfg := f.CreateDefaultConfig()
	core, logs := observer.New(zapcore.WarnLevel)
	for _, order := range [][]string{{"traces", "profiles", "metrics"}, {"profiles", "metrics", "traces"}} {
		var triggers []*cpuTrigger
		for _, c := range pipelines(t, f, cfg, zap.New(core), order...) {
			require.NoError(t, c.Start(t.Context(), componenttest.NewNopHost()))
			t.Cleanup(func() { require.NoError(t, c.Shutdown(context.Background())) })
			switch c := c.(type) {
			case *cpuTrigger:
				triggers = append(triggers, c)
			case tracesTap:
				triggers = append(triggers, c.triggers...)
			case metricsTap:
				triggers = append(triggers, c.triggers...)
			}
		}
		require.Len(t, triggers, 3)
		require.Same(t, triggers[0], triggers[1])
		require.Same(t, triggers[0], triggers[2])
		cfg = f.CreateDefaultConfig() // another id
	}
	require.Zero(t, logs.FilterMessageSnippet("no profiles pipeline").Len())
}

// TestEachProfilesPipelineHasATrigger checks that each trigger handles only the profiles
// of its own pipeline. All triggers receive the spans and metrics that the taps observe.
func TestEachProfilesPipelineHasATrigger(t *testing.T) {
	f := NewFactory()
	all := pipelines(t, f, f.CreateDefaultConfig(), zap.NewNop(), "profiles", "traces", "profiles")
	require.NotSame(t, all[0], all[2])
	require.Len(t, all[1].(tracesTap).triggers, 2)
	require.NoError(t, all[0].Shutdown(t.Context()))
	require.NoError(t, all[0].Shutdown(t.Context()), "twice is once")
	require.True(t, all[0].(*cpuTrigger).closed.Load(), "it observes nothing more")
	require.False(t, all[2].(*cpuTrigger).closed.Load())
	require.NoError(t, all[1].Shutdown(t.Context()))
	require.NoError(t, all[2].Shutdown(t.Context()))
}

func TestWithoutAProfilesPipelineItDecidesAndWarns(t *testing.T) {
	f := NewFactory()
	core, logs := observer.New(zapcore.WarnLevel)
	all := pipelines(t, f, f.CreateDefaultConfig(), zap.New(core), "traces", "metrics")
	for _, c := range all {
		require.NoError(t, c.Start(t.Context(), componenttest.NewNopHost()))
	}
	require.Equal(t, 1, logs.FilterMessage("no profiles pipeline has this component: gates open and no profile leaves").Len())
	shared := all[0].(tracesTap).instance
	alone := shared.alone
	require.Equal(t, []*cpuTrigger{alone}, shared.triggers)
	require.NoError(t, all[0].Shutdown(t.Context()))
	require.False(t, alone.closed.Load(), "the other tap still feeds it")
	require.NoError(t, all[1].Shutdown(t.Context()))
	require.True(t, alone.closed.Load())
}

// TestPoliciesThatNeedSpansWarnWithoutThem checks that a warning is logged if no spans or
// metrics can arrive, because the conditions of the policies can then never hold.
func TestPoliciesThatNeedSpansWarnWithoutThem(t *testing.T) {
	f := NewFactory()
	for want, signals := range map[int][]string{1: {"profiles"}, 0: {"profiles", "metrics"}} {
		core, logs := observer.New(zapcore.WarnLevel)
		cfg, err := load(t, "policies: [{name: slow, any_of: [{monitor: http_response_time, threshold: 500}]}]")
		require.NoError(t, err)
		for _, c := range pipelines(t, f, cfg, zap.New(core), signals...) {
			require.NoError(t, c.Start(t.Context(), componenttest.NewNopHost()))
			require.NoError(t, c.Shutdown(t.Context()))
		}
		require.Equal(t, want, logs.FilterMessageSnippet("policies need spans or metrics").Len())
	}
}

// TestWhatPassesInTapsStaysAsItIs checks that the next component receives the same batch
// while a trigger observes the batch. The batch may be read-only.
func TestWhatPassesInTapsStaysAsItIs(t *testing.T) {
	f := NewFactory()
	cfg, err := load(t, `policies: [{name: slow, any_of: [
  {monitor: http_response_time, threshold: 500, uri: {list: ["/cart/*"]}},
  {monitor: metric, name: sum, statistic: rate, threshold: 5}, {monitor: metric, name: gauge, statistic: last, threshold: 5},
  {monitor: metric, name: exponential, statistic: percentile, percentile: 50, threshold: 5}, {monitor: metric, name: summary, statistic: mean, threshold: 5}]}]`)
	require.NoError(t, err)
	telemetry := componenttest.NewTelemetry()
	set := processor.Settings{ID: processortest.NewNopSettings(metadata.Type).ID, TelemetrySettings: telemetry.NewTelemetrySettings()}
	trigger, err := f.(xprocessor.Factory).CreateProfiles(t.Context(), set, cfg, consumertest.NewNop())
	require.NoError(t, err)
	var spans, points []byte
	traces, err := f.CreateTraces(t.Context(), set, cfg, must(consumer.NewTraces(func(_ context.Context, td ptrace.Traces) error {
		spans = bytesOfSpans(td)
		return nil
	})))
	require.NoError(t, err)
	metrics, err := f.CreateMetrics(t.Context(), set, cfg, must(consumer.NewMetrics(func(_ context.Context, md pmetric.Metrics) error {
		points = bytesOfPoints(md)
		return context.Canceled
	})))
	require.NoError(t, err)
	require.False(t, traces.Capabilities().MutatesData || metrics.Capabilities().MutatesData)
	for _, c := range []component.Component{trigger, traces, metrics} {
		require.NoError(t, c.Start(t.Context(), componenttest.NewNopHost()))
	}

	for _, readOnly := range []bool{false, true} {
		td, md := serverSpans(50, time.Now()), pointsOfAllTypes(time.Now())
		if readOnly {
			td.MarkReadOnly()
			md.MarkReadOnly()
		}
		before := bytesOfSpans(td)
		require.NoError(t, traces.ConsumeTraces(t.Context(), td))
		require.NotEmpty(t, spans)
		require.Equal(t, before, spans)
		before = bytesOfPoints(md)
		require.ErrorIs(t, metrics.ConsumeMetrics(t.Context(), md), context.Canceled, "the next component's error is returned")
		require.NotEmpty(t, points)
		require.Equal(t, before, points)
	}
	for _, c := range []component.Component{traces, metrics, trigger} {
		require.NoError(t, c.Shutdown(t.Context()))
	}
	counted := int64(0)
	m, err := telemetry.GetMetric("otelcol_cpu_trigger.items")
	require.NoError(t, err)
	for _, p := range m.Data.(metricdata.Sum[int64]).DataPoints {
		counted += p.Value
	}
	require.GreaterOrEqual(t, counted, int64(50+5), "those of the first batches, at least: metrics are preferred from then on")
	require.NoError(t, telemetry.Shutdown(context.Background()))
}

func bytesOfSpans(td ptrace.Traces) []byte {
	return must((&ptrace.ProtoMarshaler{}).MarshalTraces(td))
}

func bytesOfPoints(md pmetric.Metrics) []byte {
	return must((&pmetric.ProtoMarshaler{}).MarshalMetrics(md))
}

// resourceOfService fills a resource like an SDK does.
func resourceOfService(resource pcommon.Resource) {
	a := resource.Attributes()
	a.PutStr("container.id", identifytest.ContainerA)
	a.PutStr("service.name", "shop")
	a.PutStr("host.name", "here")
	a.PutInt("process.pid", 200)
	a.PutEmptySlice("process.command_args").AppendEmpty().SetStr("shop")
}

// serverSpans returns a batch of n server spans that ended at the given time.
func serverSpans(n int, end time.Time) ptrace.Traces {
	td := ptrace.NewTraces()
	rs := td.ResourceSpans().AppendEmpty()
	resourceOfService(rs.Resource())
	spans := rs.ScopeSpans().AppendEmpty().Spans()
	for i := range n {
		s := spans.AppendEmpty()
		s.SetKind(ptrace.SpanKindServer)
		s.SetName("GET /cart/{id}")
		s.SetTraceID(pcommon.TraceID{byte(i), 1})
		s.TraceState().FromRaw("ot=th:8")
		s.SetEndTimestamp(pcommon.NewTimestampFromTime(end))
		s.SetStartTimestamp(pcommon.NewTimestampFromTime(end.Add(-time.Second)))
		s.Events().AppendEmpty().SetName("exception")
		a := s.Attributes()
		a.PutStr("http.request.method", "GET")
		a.PutStr("url.path", fmt.Sprint("/cart/", i))
		a.PutStr("http.route", "/cart/{id}")
		a.PutInt("http.response.status_code", 500)
		a.PutStr("server.address", "shop.example.org")
	}
	return td
}

// pointsOfAllTypes returns a batch with one point of each metric type.
func pointsOfAllTypes(at time.Time) pmetric.Metrics {
	md := pmetric.NewMetrics()
	rm := md.ResourceMetrics().AppendEmpty()
	resourceOfService(rm.Resource())
	metrics := rm.ScopeMetrics().AppendEmpty().Metrics()
	stamp := pcommon.NewTimestampFromTime(at)
	add := func(name string) pmetric.Metric {
		m := metrics.AppendEmpty()
		m.SetName(name)
		return m
	}
	sum := add("sum").SetEmptySum()
	sum.SetIsMonotonic(true)
	sum.SetAggregationTemporality(pmetric.AggregationTemporalityCumulative)
	for _, p := range []pmetric.NumberDataPoint{sum.DataPoints().AppendEmpty(), add("gauge").SetEmptyGauge().DataPoints().AppendEmpty()} {
		p.SetIntValue(7)
		p.SetTimestamp(stamp)
		p.Attributes().PutStr("queue", "mail")
	}
	histogram := add("http.server.request.duration").SetEmptyHistogram()
	histogram.SetAggregationTemporality(pmetric.AggregationTemporalityDelta)
	h := histogram.DataPoints().AppendEmpty()
	h.ExplicitBounds().FromRaw([]float64{1, 2})
	h.BucketCounts().FromRaw([]uint64{1, 2, 3})
	h.SetCount(6)
	h.SetSum(12)
	h.SetTimestamp(stamp)
	h.Attributes().PutStr("http.request.method", "GET")
	h.Attributes().PutStr("http.route", "/cart/{id}")
	h.Exemplars().AppendEmpty().SetTraceID(pcommon.TraceID{1})
	exponential := add("exponential").SetEmptyExponentialHistogram()
	exponential.SetAggregationTemporality(pmetric.AggregationTemporalityCumulative)
	e := exponential.DataPoints().AppendEmpty()
	e.SetScale(3)
	e.Positive().BucketCounts().FromRaw([]uint64{1, 2})
	e.SetZeroCount(1)
	e.SetCount(4)
	e.SetTimestamp(stamp)
	summary := add("summary").SetEmptySummary().DataPoints().AppendEmpty()
	summary.SetCount(4)
	summary.SetSum(9)
	summary.SetTimestamp(stamp)
	return md
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
