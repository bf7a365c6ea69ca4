// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package cputriggerprocessor

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/consumer/xconsumer"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/pdata/ptrace"
	"go.opentelemetry.io/collector/processor"
	"go.uber.org/zap"
)

// instances finds the instance that the pipelines of one component id share. The
// collector passes the same configuration to all these pipelines. The pointer to the
// configuration is therefore the key.
type instances struct {
	mu       sync.Mutex
	byConfig map[*Config]*instance
}

// instance is cpu_trigger under one component id. It has one trigger for each profiles
// pipeline. Traces and metrics pipelines have taps, which pass telemetry to every trigger.
// Without a profiles pipeline, there is one trigger, which the first tap starts and the
// last tap stops.
type instance struct {
	of  *instances
	cfg *Config

	mu       sync.Mutex
	users    int // components that were created and not yet shut down
	signals  map[string]bool
	taps     int         // number of started taps
	alone    *cpuTrigger // the trigger of the taps if there is no profiles pipeline
	triggers atomic.Pointer[[]*cpuTrigger]
}

// join registers one more component with the instance of a configuration, and returns the
// instance.
func (s *instances) join(cfg *Config, signal string) *instance {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := s.byConfig[cfg]
	if i == nil {
		i = &instance{of: s, cfg: cfg, signals: map[string]bool{}}
		i.triggers.Store(&[]*cpuTrigger{})
		s.byConfig[cfg] = i
	}
	i.users++
	i.mu.Lock()
	defer i.mu.Unlock()
	i.signals[signal] = true
	return i
}

// leave undoes one join.
func (i *instance) leave() {
	i.of.mu.Lock()
	defer i.of.mu.Unlock()
	if i.users--; i.users == 0 {
		delete(i.of.byConfig, i.cfg)
	}
}

// has reports whether a pipeline of a signal contains a component of this instance. All
// components are created before the first component is started.
func (i *instance) has(signal string) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.signals[signal]
}

// add adds a trigger. From then on, taps also pass telemetry to this trigger. A trigger
// that was shut down ignores the telemetry.
func (i *instance) add(t *cpuTrigger) {
	all := append(slices.Clone(*i.triggers.Load()), t)
	i.triggers.Store(&all)
}

// createProfiles creates the trigger of a profiles pipeline.
func (s *instances) createProfiles(set processor.Settings, cfg *Config, next xconsumer.Profiles) (*profilesTrigger, error) {
	i := s.join(cfg, "profiles")
	t, err := newProcessor(set, cfg, next)
	if err != nil {
		i.leave()
		return nil, err
	}
	t.signals = i.has
	i.mu.Lock()
	defer i.mu.Unlock()
	i.add(t)
	return &profilesTrigger{cpuTrigger: t, instance: i}, nil
}

// profilesTrigger is a trigger that belongs to an instance.
type profilesTrigger struct {
	*cpuTrigger
	instance *instance
	left     sync.Once
}

// Shutdown shuts the trigger down.
func (p *profilesTrigger) Shutdown(ctx context.Context) error {
	p.left.Do(p.instance.leave)
	return p.cpuTrigger.Shutdown(ctx)
}

// tap is cpu_trigger in a traces or metrics pipeline. It observes telemetry without
// modifying it.
type tap struct {
	set      processor.Settings
	instance *instance
	started  atomic.Bool
	left     sync.Once
}

func (s *instances) newTap(set processor.Settings, cfg *Config, signal string) *tap {
	return &tap{set: set, instance: s.join(cfg, signal)}
}

// Capabilities declares that no telemetry is modified.
func (*tap) Capabilities() consumer.Capabilities { return consumer.Capabilities{} }

// Start starts a trigger if no profiles pipeline has this component.
func (t *tap) Start(ctx context.Context, host component.Host) error {
	i := t.instance
	i.mu.Lock()
	defer i.mu.Unlock()
	t.started.Store(true)
	i.taps++
	if i.signals["profiles"] || i.alone != nil {
		return nil
	}
	t.set.Logger.Warn("no profiles pipeline has this component: gates open and no profile leaves", zap.Stringer("component", t.set.ID))
	alone, err := newProcessor(t.set, i.cfg, nil)
	if err != nil {
		return err
	}
	signals := i.signals // no more components are created
	alone.signals = func(signal string) bool { return signals[signal] }
	if err := alone.Start(ctx, host); err != nil {
		return err
	}
	i.alone = alone
	i.add(alone)
	return nil
}

// Shutdown stops the trigger of the taps when the last tap stops.
func (t *tap) Shutdown(ctx context.Context) (err error) {
	t.left.Do(func() {
		i := t.instance
		defer i.leave()
		i.mu.Lock()
		defer i.mu.Unlock()
		if !t.started.Load() {
			return
		}
		if i.taps--; i.taps == 0 && i.alone != nil {
			err = i.alone.Shutdown(ctx)
			i.alone = nil
		}
	})
	return err
}

type tracesTap struct {
	*tap
	next consumer.Traces
}

// ConsumeTraces observes spans and passes the batch on.
func (t tracesTap) ConsumeTraces(ctx context.Context, td ptrace.Traces) error {
	for _, trigger := range *t.instance.triggers.Load() {
		trigger.observeTraces(td)
	}
	return t.next.ConsumeTraces(ctx, td)
}

type metricsTap struct {
	*tap
	next consumer.Metrics
}

// ConsumeMetrics observes data points and passes the batch on.
func (t metricsTap) ConsumeMetrics(ctx context.Context, md pmetric.Metrics) error {
	for _, trigger := range *t.instance.triggers.Load() {
		trigger.observeMetrics(md)
	}
	return t.next.ConsumeMetrics(ctx, md)
}
