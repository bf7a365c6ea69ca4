// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package offcpu

import (
	"context"
	"fmt"

	"go.opentelemetry.io/collector/config/configoptional"

	"github.com/hotprofile/hotprofile/internal/samples"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/sampler"
)

// Factory returns the factory of the sampler of threads that do not run.
func Factory(cfg configoptional.Optional[Config]) sampler.Factory {
	return sampler.Factory{
		Key: "off_cpu", Enabled: cfg.HasValue(), PerfEvents: true,
		New: func(s *sampler.Shared) (sampler.Sampler, error) { return newComponent(cfg.Get(), s) },
	}
}

// stackBytes bounds the memory of its stacks: half of what the stacks of running
// threads may take, beside them.
const stackBytes = 16 << 20

// component is the Sampler as a part of the receiver.
type component struct {
	sampler  *Sampler
	unwatch  func()
	counters *sampler.Counters
	seen     Stats
}

func newComponent(cfg *Config, s *sampler.Shared) (*component, error) {
	hot, why, err := cfg.When.Resolve(s.HotUnits)
	if err != nil {
		return nil, fmt.Errorf("off_cpu: %w", err)
	}
	attached, unwatch, err := s.Attach(samples.OffCPU, stackBytes, hot)
	if err != nil {
		return nil, err
	}
	p := &component{counters: s.Counters, unwatch: unwatch}
	p.sampler = New(Settings{
		Config:             attached,
		Sink:               s.Buffer.Another(),
		MinDuration:        cfg.MinDuration,
		MaxEventsPerSecond: cfg.MaxEventsPerSecond,
		When:               why,
		Still:              NewStill(s.HostInfo.Root),
	})
	s.Buffer.OnWake(p.sampler.Wake)
	return p, s.Counters.ObserveTargets(samples.OffCPU.Sampler, p.sampler.Targets)
}

// Start implements sampler.Sampler, as do Stop and Record.
func (p *component) Start(context.Context) error {
	p.sampler.Start()
	return nil
}

// Stop ends sampling.
func (p *component) Stop(context.Context) error {
	p.unwatch()
	p.sampler.Stop()
	return nil
}

// Record adds what the sampler has counted to the telemetry.
func (p *component) Record(ctx context.Context) {
	s, seen, c := p.sampler.Stats(), &p.seen, p.counters
	c.Samples(sampler.BufferFull, samples.OffCPU.Sampler, int(s.BufferFull-seen.BufferFull))
	c.Samples(sampler.Unreadable, samples.OffCPU.Sampler, int(s.Unreadable-seen.Unreadable))
	c.Samples(sampler.RateLimited, samples.OffCPU.Sampler, int(s.RateLimited-seen.RateLimited))
	c.CPUProfilerSamplesLost.Add(ctx, int64(s.Lost-seen.Lost))
	for _, h := range [...]struct {
		reason string
		n      uint64
	}{
		{"forgotten", s.Forgotten - seen.Forgotten},
		{"left_out", s.LeftOut - seen.LeftOut},
		{"short", s.Short - seen.Short},
		{"under_way", s.UnderWay - seen.UnderWay},
	} {
		if h.n > 0 {
			c.CPUProfilerOffCPUHidden.Add(ctx, int64(h.n), sampler.With("reason", h.reason))
		}
	}
	c.CPUProfilerOffCPUUnshared.Add(ctx, (s.Unshared - seen.Unshared).Seconds())
	c.CPUProfilerOffCPUPaused.Add(ctx, (s.PausedFull - seen.PausedFull).Seconds(), sampler.With("reason", string(sampler.BufferFull)))
	c.CPUProfilerOffCPUPaused.Add(ctx, (s.PausedRate - seen.PausedRate).Seconds(), sampler.With("reason", string(sampler.RateLimited)))
	c.Table(ctx, &s.Table, &seen.Table)
	p.seen = s
}
