// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

// Package oncpu samples running threads.
package oncpu

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.opentelemetry.io/otel/metric"
	"go.uber.org/zap"

	"github.com/hotprofile/hotprofile/internal/perfevent"
	"github.com/hotprofile/hotprofile/internal/samples"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/cputime"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/golabels"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/perftargets"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/processes"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/sampler"
)

// Factory returns the factory of the sampler for running threads.
func Factory(cfg Config, rate RateConfig) sampler.Factory {
	return sampler.Factory{
		Key: "cpu", Enabled: cfg.Enabled, PerfEvents: true, Weight: 4,
		New: func(s *sampler.Shared) (sampler.Sampler, error) { return newSampler(rate, s) },
	}
}

// minCostInterval is the minimum time over which the cost is summed before it is judged,
// even if the export interval is shorter.
const minCostInterval = 5 * time.Second

// Settings configures a Sampler.
type Settings struct {
	perftargets.Config // without Type, Refused and Lost
	Sink               perftargets.Sink
	// Frequency is the number of samples per second of CPU time.
	Frequency int
	// MaxOverhead bounds the sum of Meter and Names, as a fraction of one core per sampled
	// CPU. Above the bound, the frequency is lowered. 0 means no bound.
	MaxOverhead float64
	// CostInterval is the time over which the cost is summed before it is judged.
	CostInterval time.Duration
	// Meter measures the cost of reading samples, which the sampler adds. Names measures the
	// cost of naming samples and building profiles. Both meters may be nil if MaxOverhead is
	// 0.
	Meter, Names *cputime.Meter
	// Sparing returns a function that reports whether a process currently belongs to a hot
	// unit. The sampler calls this function when it cannot unwind all stacks. Sparing is nil
	// if all stacks must be unwound.
	Sparing func() func(*processes.Process) bool
	// Sampled remembers which processes were sampled. It may be nil.
	Sampled *sampler.Sampled
	// Status is called with an error when sampling becomes impossible, and with nil when it
	// is possible again.
	Status func(error)
	// Notes returns log notes about data that the collector cannot see with the given rights.
	// Each note also explains how to make the data visible.
	Notes func(perfevent.Rights) []string
}

// Stats are the counters of a Sampler since it was created.
type Stats struct {
	perftargets.Counts
	// Read is the number of samples of targets that were read. Each of them is in the sink,
	// or is counted in BufferFull or Unreadable.
	Read uint64
	// Lowered is the number of times the frequency was halved. Raised is the number of times
	// the frequency was doubled.
	Lowered, Raised uint64
	// Spared is the number of samples whose stacks were not unwound, to save CPU time or
	// memory.
	Spared uint64
	// PeriodsSkipped is the number of sampling periods that fell into pauses.
	PeriodsSkipped uint64
	// Frequency is the current sampling frequency of all targets.
	Frequency float64
}

// Sampler samples running threads.
type Sampler struct {
	*perftargets.Loop
	reader   reader
	counters *sampler.Counters
	seen     Stats // counters at the last Record
}

// New returns a sampler that has not started.
func New(cfg Settings) *Sampler {
	cfg.Type, cfg.Refused, cfg.Lost = samples.OnCPU, refused, kernelLost
	s := &Sampler{}
	s.Loop = perftargets.NewLoop(cfg.Config, cfg.Sink, &s.reader)
	s.reader.cfg, s.reader.loop = cfg, s.Loop
	s.reader.full = time.Second / time.Duration(cfg.Frequency)
	s.reader.pace = newPace(cfg.MaxOverhead, cfg.CostInterval, cfg.Frequency)
	s.reader.pace.maySpare = cfg.Sparing != nil
	return s
}

// newSampler returns the sampler of a receiver.
func newSampler(rate RateConfig, s *sampler.Shared) (*Sampler, error) {
	cfg, err := s.Attach(samples.OnCPU, false)
	if err != nil {
		return nil, err
	}
	p := New(Settings{
		Config:       cfg,
		Sink:         s.Buffer,
		Frequency:    rate.Frequency,
		MaxOverhead:  float64(rate.MaxOverhead) / 100,
		CostInterval: max(2*s.ExportInterval, minCostInterval),
		Sparing:      s.Perf.Sparing(),
		Sampled:      s.Sampled[sampler.PprofCPU],
		Meter:        &s.Perf.Meters.Samples,
		Names:        &s.Perf.Meters.Names,
		Status: func(err error) {
			if err != nil {
				s.Logger.Warn("nothing can be sampled", zap.Error(err))
			}
			s.Status.Report(sampler.Sampling, err)
		},
		Notes: func(rights perfevent.Rights) []string {
			notes := s.HostInfo.Invisible(rights)
			if err := s.Perf.Symbols.KernelSymbols(); err != nil && rights.Kernel == nil {
				notes = append(notes, err.Error())
			}
			return notes
		},
	})
	p.counters = s.Counters
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

// refused returns the reason why no process can be sampled, not even processes of the
// same user. It returns nil if processes can be sampled.
func refused(r perfevent.Rights) error {
	if r.HostWide == nil {
		return nil
	}
	return r.Own
}

// Start probes the collector's rights and starts sampling. Without any right, it calls
// Status and keeps retrying. It returns an error only if kernel stacks are required but not
// permitted.
func (s *Sampler) Start(context.Context) error {
	rights := s.reader.cfg.Probe()
	if s.reader.cfg.Kernel == perftargets.KernelDemanded && rights.Kernel != nil {
		return fmt.Errorf("kernel_stacks is true: %w", rights.Kernel)
	}
	s.Begin(rights)
	return nil
}

// Stats returns the counters. It is safe for concurrent use.
func (s *Sampler) Stats() Stats {
	st := s.reader.published.Get()
	if s.Targets() == 0 {
		st.Frequency = 0
	}
	return st
}

// Record adds the sampler's counters to the telemetry.
func (s *Sampler) Record(ctx context.Context) {
	now, seen, c := s.Stats(), &s.seen, s.counters
	c.Count(ctx, samples.OnCPU, &now.Counts, &seen.Counts)
	c.CPUProfilerFrequencyChanges.Add(ctx, int64(now.Lowered-seen.Lowered), sampler.With("direction", "lowered"))
	c.CPUProfilerFrequencyChanges.Add(ctx, int64(now.Raised-seen.Raised), sampler.With("direction", "raised"))
	c.LimitHit(ctx, "unwound_stacks", now.Spared-seen.Spared)
	c.CPUProfilerPeriodsSkipped.Add(ctx, int64(now.PeriodsSkipped-seen.PeriodsSkipped))
	s.seen = now
	labels := s.reader.cfg.Labels
	sampler.Add(ctx, c.CPUProfilerGoroutineLabels, labels.Count(golabels.Proven), "outcome", "proven")
	sampler.Add(ctx, c.CPUProfilerGoroutineLabels, labels.Count(golabels.Unproven), "outcome", "unproven")
	c.LimitHit(ctx, "goroutine_label_values", labels.Count(golabels.Cut))
	c.LimitHit(ctx, "goroutine_label_changes", labels.Count(golabels.Frequent))
	c.Walks(ctx, s.reader.cfg.Languages)
}

var errNothingPermitted = errors.New("nothing can be sampled")

// frequency returns the samples per second after the given number of halvings.
func (r *reader) frequency(halvings int) float64 {
	return float64(r.cfg.Frequency) / float64(int64(1)<<halvings)
}
