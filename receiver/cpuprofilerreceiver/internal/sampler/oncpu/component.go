// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package oncpu

import (
	"context"
	"errors"
	"time"

	"go.opentelemetry.io/collector/component/componentstatus"
	"go.opentelemetry.io/otel/metric"
	"go.uber.org/zap"

	"github.com/hotprofile/hotprofile/internal/perfevent"
	"github.com/hotprofile/hotprofile/internal/samples"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/sampler"
)

// Factory returns the factory of the sampler of running threads.
func Factory(cfg Config, rate RateConfig) sampler.Factory {
	return sampler.Factory{
		Key: "cpu", Enabled: cfg.Enabled, PerfEvents: true,
		New: func(s *sampler.Shared) (sampler.Sampler, error) { return newComponent(rate, s) },
	}
}

// minWindow is the shortest time over which the cost is summed before it is
// judged, however short the export interval is.
const minWindow = 5 * time.Second

// component is the Sampler as a part of the receiver.
type component struct {
	*Sampler
	counters *sampler.Counters
	seen     Stats
}

func newComponent(rate RateConfig, s *sampler.Shared) (*component, error) {
	cfg, _, err := s.Attach(samples.OnCPU, 0, false)
	if err != nil {
		return nil, err
	}
	p := &component{counters: s.Counters}
	p.Sampler = New(Settings{
		Config:      cfg,
		Sink:        s.Buffer,
		Frequency:   rate.Frequency,
		MaxOverhead: float64(rate.MaxOverhead) / 100,
		Window:      max(2*s.ExportInterval, minWindow),
		Meter:       s.Perf.Meter,
		Status: func(err error) {
			event := componentstatus.NewEvent(componentstatus.StatusOK)
			if err != nil {
				event = componentstatus.NewRecoverableErrorEvent(err)
				s.Logger.Warn("nothing can be sampled", zap.Error(err))
			}
			componentstatus.ReportStatus(s.Host, event)
		},
		Notes: func(rights perfevent.Rights) []string {
			notes := s.HostInfo.Invisible(rights)
			if err := s.Perf.Symbols.KernelSymbols(); err != nil && rights.Kernel == nil {
				notes = append(notes, err.Error())
			}
			return notes
		},
	})
	s.Buffer.OnWake(p.Wake)
	s.Buffer.ReadUpTo(cfg.Now())
	return p, errors.Join(
		s.Counters.ObserveTargets(samples.OnCPU.Sampler, p.Targets),
		s.Counters.RegisterCPUProfilerFrequencyCallback(func(_ context.Context, o metric.Float64Observer) error {
			o.Observe(p.Stats().Frequency)
			return nil
		}),
	)
}

// Start implements sampler.Sampler, as do Stop and Record.
func (p *component) Start(context.Context) error { return p.Sampler.Start() }

// Stop ends sampling.
func (p *component) Stop(context.Context) error {
	p.Sampler.Stop()
	return nil
}

// Record adds what the sampler has counted to the telemetry.
func (p *component) Record(ctx context.Context) {
	s, seen, c := p.Stats(), &p.seen, p.counters
	c.Samples(sampler.BufferFull, samples.OnCPU.Sampler, int(s.BufferFull-seen.BufferFull))
	c.Samples(sampler.Unreadable, samples.OnCPU.Sampler, int(s.Unreadable-seen.Unreadable))
	c.CPUProfilerSamplesLost.Add(ctx, int64(s.Lost-seen.Lost))
	c.CPUProfilerFrequencyChanges.Add(ctx, int64(s.Lowered-seen.Lowered), sampler.With("direction", "lowered"))
	c.CPUProfilerFrequencyChanges.Add(ctx, int64(s.Raised-seen.Raised), sampler.With("direction", "raised"))
	c.CPUProfilerPeriodsSkipped.Add(ctx, int64(s.PeriodsSkipped-seen.PeriodsSkipped))
	c.Table(ctx, &s.Table, &seen.Table)
	p.seen = s
}
