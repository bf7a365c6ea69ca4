// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package pprof

import (
	"context"
	"fmt"
	"net/url"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/sampler"
)

// Factory returns the factory of the sampler that pulls pprof endpoints.
func Factory(all []Config) sampler.Factory {
	return sampler.Factory{
		Key: "pprof_endpoints", Enabled: len(all) > 0,
		New: func(s *sampler.Shared) (sampler.Sampler, error) { return &endpoints{cfg: all, shared: s}, nil },
	}
}

// endpoints contains a puller for each endpoint of the receiver. Start creates the pullers,
// because a client needs extensions of the collector that have started.
type endpoints struct {
	cfg     []Config
	shared  *sampler.Shared
	pullers []*puller
}

// Start implements sampler.Sampler.
func (e *endpoints) Start(ctx context.Context) error {
	decoding := new(sync.Mutex)
	for i := range e.cfg {
		settings, err := e.settings(ctx, &e.cfg[i])
		if err != nil {
			return fmt.Errorf("pprof_endpoints[%d]: %w", i, err)
		}
		settings.Decoding = decoding
		e.pullers = append(e.pullers, New(settings))
	}
	for _, p := range e.pullers {
		p.Start()
	}
	return nil
}

// settings returns the settings of the puller for one endpoint.
func (e *endpoints) settings(ctx context.Context, cfg *Config) (one Settings, err error) {
	s := e.shared
	one = Settings{
		Config: cfg,
		Look:   s.DiscoveryInterval,
		Sink:   s.Buffer,
		Count: func(o Outcome) {
			s.Counters.CPUProfilerPprofPulls.Add(context.Background(), 1, sampler.With("outcome", o.String()))
		},
		NoRoom: func(k Kind, n int) { s.Counters.Samples(sampler.BufferFull, k.Sampler(), n) },
		Logger: s.Logger,
		Now:    time.Now,
	}
	if one.URL, err = url.Parse(cfg.ClientConfig.Endpoint); err != nil {
		return one, err
	}
	hot, why, err := cfg.When.Resolve(s.HotUnits)
	if err != nil {
		return one, err
	}
	finder, err := newSubjectFinder(cfg, s.HostInfo)
	if err != nil {
		return one, err
	}
	one.Find = finder.find
	if !cfg.KeepSampled {
		one.Sampled = s.Sampled
	}
	if one.Client, err = cfg.client(ctx, s.Host, s.Component); err != nil {
		return one, fmt.Errorf("make the client of %s: %w", one.URL, err)
	}
	if hot {
		one.Hot = s.HotUnits.Hot
		one.Changed, one.Unwatch = s.HotUnits.Watch()
	}
	s.Logger.Info("pulling a pprof endpoint", zap.Stringer("endpoint", one.URL), zap.String("socket", cfg.Socket),
		zap.String("when", why), zap.Strings("profiles", cfg.Profiles), zap.Duration("interval", cfg.Interval), zap.Duration("duration", cfg.Duration))
	return one, nil
}

// Stop ends all pulls and waits for them.
func (e *endpoints) Stop(context.Context) error {
	var all sync.WaitGroup
	for _, p := range e.pullers {
		all.Go(p.Stop)
	}
	all.Wait()
	return nil
}

// Record has no effect, because pulls are counted when they end.
func (*endpoints) Record(context.Context) {}
