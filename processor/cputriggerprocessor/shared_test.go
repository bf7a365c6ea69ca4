// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package cputriggerprocessor

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/consumer/consumertest"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/pdata/ptrace"
	"go.opentelemetry.io/collector/processor"
	"go.opentelemetry.io/collector/processor/processortest"
	"go.opentelemetry.io/collector/processor/xprocessor"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/hotprofile/hotprofile/processor/cputriggerprocessor/internal/metadata"
)

// pipelines creates the component in a pipeline of each signal named, under one id.
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
			case *profilesTrigger:
				triggers = append(triggers, c.cpuTrigger)
			case tracesTap:
				triggers = append(triggers, *c.instance.triggers.Load()...)
			case metricsTap:
				triggers = append(triggers, *c.instance.triggers.Load()...)
			}
		}
		require.Len(t, triggers, 3)
		require.Same(t, triggers[0], triggers[1])
		require.Same(t, triggers[0], triggers[2])
		cfg = f.CreateDefaultConfig() // another id
	}
	require.Zero(t, logs.FilterMessageSnippet("no profiles pipeline").Len())
}

// TestEachProfilesPipelineHasATrigger: each decides for what passes in it, and all of
// them get what taps observe.
func TestEachProfilesPipelineHasATrigger(t *testing.T) {
	f := NewFactory()
	all := pipelines(t, f, f.CreateDefaultConfig(), zap.NewNop(), "profiles", "traces", "profiles")
	require.NotSame(t, all[0].(*profilesTrigger).cpuTrigger, all[2].(*profilesTrigger).cpuTrigger)
	observed := all[1].(tracesTap).instance
	require.Len(t, *observed.triggers.Load(), 2)
	require.NoError(t, all[0].Shutdown(t.Context()))
	require.NoError(t, all[0].Shutdown(t.Context()), "twice is once")
	require.Equal(t, []*cpuTrigger{all[2].(*profilesTrigger).cpuTrigger}, *observed.triggers.Load())
	require.NoError(t, all[1].Shutdown(t.Context()))
	require.NoError(t, all[2].Shutdown(t.Context()))
	require.Empty(t, observed.of.byConfig, "nothing is kept of a configuration that is gone")
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
	require.Equal(t, []*cpuTrigger{alone}, *shared.triggers.Load())
	require.NoError(t, all[0].Shutdown(t.Context()))
	require.False(t, alone.closed.Load(), "the other tap still feeds it")
	require.NoError(t, all[1].Shutdown(t.Context()))
	require.True(t, alone.closed.Load())
}

// TestPoliciesThatNeedSpansWarnWithoutThem: no condition would ever hold.
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

// TestWhatPassesInTapsStaysAsItIs: the next component gets the very same batch, and one
// that may not be changed does no harm.
func TestWhatPassesInTapsStaysAsItIs(t *testing.T) {
	f := NewFactory()
	cfg := f.CreateDefaultConfig()
	set := processortest.NewNopSettings(metadata.Type)
	var spans ptrace.Traces
	traces, err := f.CreateTraces(t.Context(), set, cfg, must(consumer.NewTraces(func(_ context.Context, td ptrace.Traces) error {
		spans = td
		return nil
	})))
	require.NoError(t, err)
	var points pmetric.Metrics
	metrics, err := f.CreateMetrics(t.Context(), set, cfg, must(consumer.NewMetrics(func(_ context.Context, md pmetric.Metrics) error {
		points = md
		return context.Canceled
	})))
	require.NoError(t, err)
	require.False(t, traces.Capabilities().MutatesData || metrics.Capabilities().MutatesData)

	td, md := ptrace.NewTraces(), pmetric.NewMetrics()
	td.MarkReadOnly()
	md.MarkReadOnly()
	require.NoError(t, traces.ConsumeTraces(t.Context(), td))
	require.Equal(t, td, spans)
	require.ErrorIs(t, metrics.ConsumeMetrics(t.Context(), md), context.Canceled, "the next component's error is returned")
	require.Equal(t, md, points)
	require.NoError(t, traces.Shutdown(t.Context()))
	require.NoError(t, metrics.Shutdown(t.Context()))
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
