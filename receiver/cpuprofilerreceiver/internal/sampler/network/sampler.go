// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package network

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/collector/config/configoptional"

	"github.com/hotprofile/hotprofile/internal/perfevent"
	"github.com/hotprofile/hotprofile/internal/samples"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/perftargets"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/sampler"
)

// Factory returns the factory of the sampler for calls on sockets.
func Factory(cfg configoptional.Optional[Config]) sampler.Factory {
	return sampler.Factory{
		Key: "network", Enabled: cfg.HasValue(), PerfEvents: true, Weight: 1,
		New: func(s *sampler.Shared) (sampler.Sampler, error) { return newSampler(cfg.Get(), s) },
	}
}

// Settings configures a Sampler.
type Settings struct {
	perftargets.Config // without Type, Refused, Tracepoints, Everywhere and Lost
	Sink               perftargets.Sink
	// Root is the folder where the host's root is mounted. tracefs is read below Root.
	Root string
	// MaxEventsPerSecond bounds the number of sampled calls.
	MaxEventsPerSecond int
}

// Stats are the counters of a Sampler since it was created.
type Stats struct {
	// Counts counts calls. RateLimited counts calls that the sample of another call
	// represents, and calls after the last sample.
	perftargets.Counts
	// Paused is the time during which sampling paused because both batches were full.
	Paused time.Duration
	// Every is the largest number of calls per sample among all targets.
	Every int
}

// Sampler samples calls on sockets.
type Sampler struct {
	*perftargets.Loop
	reader   reader
	counters *sampler.Counters
	seen     Stats // counters at the last Record

	// sources is nil until the tracepoints were found.
	sources atomic.Pointer[sources]
}

// New returns a sampler that has not started.
func New(cfg Settings) *Sampler {
	s := &Sampler{}
	cfg.Type, cfg.Refused, cfg.Lost = samples.NetSent, s.refused, perftargets.KernelLost
	cfg.Tracepoints, cfg.Everywhere = targetEvents, everywhereEvents
	r := &s.reader
	r.cfg, r.intN, r.found, r.sources = cfg, rand.IntN, &s.sources, &sources{}

	s.Loop = perftargets.NewLoop(cfg.Config, cfg.Sink, r)
	r.loop = s.Loop
	return s
}

// newSampler returns the sampler of a receiver.
func newSampler(cfg *Config, s *sampler.Shared) (*Sampler, error) {
	attached, err := s.AttachWhen(cfg.When, samples.NetSent, "network")
	if err != nil {
		return nil, err
	}
	p := New(Settings{
		Config:             attached,
		Sink:               s.Buffer.NewPosition(),
		Root:               s.HostInfo.Root,
		MaxEventsPerSecond: cfg.MaxEventsPerSecond,
	})
	p.counters = s.Counters
	s.Buffer.OnWake(p.Wake)
	return p, s.Counters.ObserveTargets(samples.NetSent.Sampler, p.Targets)
}

// Stats returns the counters. It is safe for concurrent use.
func (s *Sampler) Stats() Stats { return s.reader.published.Get() }

// Record adds the sampler's counters to the telemetry.
func (s *Sampler) Record(ctx context.Context) {
	now, seen, c := s.Stats(), &s.seen, s.counters
	c.Count(ctx, samples.NetSent, &now.Counts, &seen.Counts)
	c.CPUProfilerNetworkPaused.Add(ctx, (now.Paused - seen.Paused).Seconds())
	s.seen = now
}

// errKernel is the reason why network sampling needs more rights than on-CPU sampling.
var errKernel = errors.New("tracepoints need the right to sample the kernel")

// refused returns the reason why calls cannot be sampled, or nil. It also searches for the
// tracepoints. Only one goroutine calls it.
func (s *Sampler) refused(r perfevent.Rights) error {
	if err := errors.Join(r.Kernel, r.HostWide); err != nil {
		return errors.Join(err, errKernel)
	}
	if s.sources.Load() != nil {
		return nil // tracepoints do not change while the kernel runs
	}
	found, err := findSources(s.reader.cfg.Root)
	if err != nil {
		return err
	}
	s.sources.Store(found)
	return nil
}
