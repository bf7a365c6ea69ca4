// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package cputriggerprocessor

import (
	"context"
	"sync"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/consumer/xconsumer"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/pdata/ptrace"
	"go.opentelemetry.io/collector/processor"
	"go.opentelemetry.io/collector/processor/xprocessor"
	"go.uber.org/zap"

	"github.com/hotprofile/hotprofile/processor/cputriggerprocessor/internal/metadata"
)

// instance is cpu_trigger under one component id. It has one trigger for each profiles
// pipeline. Traces and metrics pipelines have taps, which pass telemetry to every trigger.
// Without a profiles pipeline, there is one trigger, which the first tap starts and the
// last tap stops.
//
// The collector creates all components before it starts the first component, one after the
// other. A tap receives telemetry only after its Start. The fields signals and triggers
// therefore need no lock.
type instance struct {
	signals  map[string]bool // signals of the pipelines
	triggers []*cpuTrigger   // triggers ignore telemetry after their shutdown

	mu    sync.Mutex
	taps  int         // number of started taps
	alone *cpuTrigger // the trigger of the taps if there is no profiles pipeline
}

// createProfiles creates the trigger of a profiles pipeline.
func createProfiles(set processor.Settings, cfg *Config, next xconsumer.Profiles) (*cpuTrigger, error) {
	i := cfg.instance
	t, err := newProcessor(set, cfg, next)
	if err != nil {
		return nil, err
	}
	i.signals["profiles"] = true
	i.triggers = append(i.triggers, t)
	return t, nil
}

// tap is cpu_trigger in a traces or metrics pipeline. It observes telemetry without
// modifying it.
type tap struct {
	*instance
	set     processor.Settings
	cfg     *Config
	started bool
}

func newTap(set processor.Settings, cfg *Config, signal string) *tap {
	cfg.instance.signals[signal] = true
	return &tap{instance: cfg.instance, set: set, cfg: cfg}
}

// Capabilities declares that no telemetry is modified.
func (*tap) Capabilities() consumer.Capabilities { return consumer.Capabilities{} }

// Start starts a trigger if no profiles pipeline has this component.
func (t *tap) Start(ctx context.Context, host component.Host) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.started = true
	t.taps++
	if t.signals["profiles"] || t.alone != nil {
		return nil
	}
	t.set.Logger.Warn("no profiles pipeline has this component: gates open and no profile leaves", zap.Stringer("component", t.set.ID))
	alone, err := newProcessor(t.set, t.cfg, nil)
	if err != nil {
		return err
	}
	if err := alone.Start(ctx, host); err != nil {
		return err
	}
	t.alone = alone
	t.triggers = append(t.triggers, alone)
	return nil
}

// Shutdown stops the trigger of the taps when the last tap stops. It may be called more
// than once.
func (t *tap) Shutdown(ctx context.Context) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.started {
		return nil
	}
	t.started = false
	if t.taps--; t.taps > 0 || t.alone == nil {
		return nil
	}
	alone := t.alone
	t.alone = nil
	return alone.Shutdown(ctx)
}

type tracesTap struct {
	*tap
	next consumer.Traces
}

// ConsumeTraces observes spans and passes the batch on.
func (t tracesTap) ConsumeTraces(ctx context.Context, td ptrace.Traces) error {
	for _, trigger := range t.triggers {
		if !trigger.closed.Load() {
			trigger.requests.ObserveTraces(td)
		}
	}
	return t.next.ConsumeTraces(ctx, td)
}

type metricsTap struct {
	*tap
	next consumer.Metrics
}

// ConsumeMetrics observes data points and passes the batch on.
func (t metricsTap) ConsumeMetrics(ctx context.Context, md pmetric.Metrics) error {
	for _, trigger := range t.triggers {
		if !trigger.closed.Load() {
			trigger.requests.ObserveMetrics(md)
		}
	}
	return t.next.ConsumeMetrics(ctx, md)
}

// NewFactory returns the factory of `cpu_trigger`. If pipelines of several signals use the
// same component id, they share one instance.
func NewFactory() processor.Factory {
	return xprocessor.NewFactory(
		metadata.Type,
		func() component.Config { return createDefaultConfig() },
		xprocessor.WithTraces(func(_ context.Context, set processor.Settings, cfg component.Config, next consumer.Traces) (processor.Traces, error) {
			return tracesTap{newTap(set, cfg.(*Config), "traces"), next}, nil
		}, metadata.TracesStability),
		xprocessor.WithMetrics(func(_ context.Context, set processor.Settings, cfg component.Config, next consumer.Metrics) (processor.Metrics, error) {
			return metricsTap{newTap(set, cfg.(*Config), "metrics"), next}, nil
		}, metadata.MetricsStability),
		xprocessor.WithProfiles(func(_ context.Context, set processor.Settings, cfg component.Config, next xconsumer.Profiles) (xprocessor.Profiles, error) {
			return createProfiles(set, cfg.(*Config), next)
		}, metadata.ProfilesStability),
	)
}
