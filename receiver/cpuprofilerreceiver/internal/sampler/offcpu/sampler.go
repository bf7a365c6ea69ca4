// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package offcpu

import (
	"cmp"
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"go.opentelemetry.io/collector/config/configoptional"

	"github.com/hotprofile/hotprofile/internal/perfevent"
	"github.com/hotprofile/hotprofile/internal/samples"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/perftargets"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/sampler"
)

// Factory returns the factory of the off-CPU sampler, which samples threads that are not
// running.
func Factory(cfg configoptional.Optional[Config]) sampler.Factory {
	return sampler.Factory{
		Key: "off_cpu", Enabled: cfg.HasValue(), PerfEvents: true, Weight: 2,
		New: func(s *sampler.Shared) (sampler.Sampler, error) { return newSampler(cfg.Get(), s) },
	}
}

// Sink is the buffer for waits. The time of a wait is its last nanosecond.
type Sink interface {
	perftargets.Sink
	// Closing returns the time up to which waits in progress must be added to the batch.
	// This time changes whenever a batch is about to be taken.
	Closing() int64
}

// Settings configures a Sampler.
type Settings struct {
	perftargets.Config // without Type, Refused, Lost and Switches
	Sink               Sink
	// MinDuration is the minimum length of a sampled wait.
	MinDuration time.Duration
	// MaxEventsPerSecond bounds the stacks.
	MaxEventsPerSecond int
	// MaxThreads bounds the number of followed threads. The default is 65,536.
	MaxThreads int
	// NoWaits explains why samples do not contain the wait reasons of threads. It is nil if
	// samples contain them.
	NoWaits error
	// Still reads the state of a thread without recent records. If it is nil, such a thread
	// is assumed to wait.
	Still still
}

// still returns the number of context switches of a thread since its start, and whether it
// is running now. ok is false if the thread has ended.
type still func(pid, tid int) (switches uint64, running, ok bool)

// Stats are the counters of a Sampler since it was created.
type Stats struct {
	// Counts counts waits. RateLimited counts waits without a sampled stack. The time of
	// these waits is included in the values of other waits of the thread, or is emitted
	// without a stack. Lost counts samples and switches.
	perftargets.Counts
	WaitCounts
	// Unshared is the time that was emitted without a stack.
	Unshared time.Duration
	// PausedFull is the time during which sampling paused because both batches were full.
	// PausedRate is the time during which sampling paused because there were too many
	// switches to read.
	PausedFull, PausedRate time.Duration
	// Threads is the number of followed threads. Watched is the number of threads whose
	// switches are all sampled. For all other threads, one in Every switches is sampled.
	Threads, Watched, Every int
}

// Sampler samples threads that are not running.
type Sampler struct {
	*perftargets.Loop
	reader   reader
	counters *sampler.Counters
	seen     Stats // counters at the last Record
}

const (
	defaultMaxThreads = 1 << 16
	// maxHeld bounds the number of waits that are held until their values are known.
	maxHeld = 1 << 16
)

// New returns a sampler that has not started.
func New(cfg Settings) *Sampler {
	cfg.MaxThreads = cmp.Or(cfg.MaxThreads, defaultMaxThreads)
	cfg.Type, cfg.Refused, cfg.Lost, cfg.Switches = samples.OffCPU, refused, perftargets.KernelLost, true
	s := &Sampler{}
	r := &s.reader
	r.cfg, r.intN = cfg, rand.IntN
	r.scaler = newScaler(maxHeld, r.emit)
	r.waits = newWaits(cfg.MinDuration, cfg.MaxThreads, r.add)
	if cfg.Still != nil {
		r.waits.still = r.still
	}
	s.Loop = perftargets.NewLoop(cfg.Config, cfg.Sink, r)
	r.loop = s.Loop
	return s
}

// newSampler returns the sampler of a receiver.
func newSampler(cfg *Config, s *sampler.Shared) (*Sampler, error) {
	attached, err := s.AttachWhen(cfg.When, samples.OffCPU, "off_cpu")
	if err != nil {
		return nil, err
	}
	p := New(Settings{
		Config:             attached,
		Sink:               s.Buffer.NewPosition(),
		MinDuration:        cfg.MinDuration,
		MaxEventsPerSecond: cfg.MaxEventsPerSecond,
		NoWaits:            noWaits(attached.Kernel, s.Perf.Symbols.KernelSymbols()),
		Still:              newStill(s.HostInfo.Root),
	})
	p.counters = s.Counters
	s.Buffer.OnWake(p.Wake)
	return p, s.Counters.ObserveTargets(samples.OffCPU.Sampler, p.Targets)
}

// Stats returns the counters. It is safe for concurrent use.
func (s *Sampler) Stats() Stats { return s.reader.published.Get() }

// Record adds the sampler's counters to the telemetry.
func (s *Sampler) Record(ctx context.Context) {
	now, seen, c := s.Stats(), &s.seen, s.counters
	c.Count(ctx, samples.OffCPU, &now.Counts, &seen.Counts)
	hidden := func(reason string, n uint64) { sampler.Add(ctx, c.CPUProfilerOffCPUHidden, n, "reason", reason) }
	hidden("forgotten", now.Forgotten-seen.Forgotten)
	hidden("left_out", now.LeftOut-seen.LeftOut)
	hidden("short", now.Short-seen.Short)
	hidden("under_way", now.UnderWay-seen.UnderWay)
	c.CPUProfilerOffCPUUnshared.Add(ctx, (now.Unshared - seen.Unshared).Seconds())
	c.CPUProfilerOffCPUPaused.Add(ctx, (now.PausedFull - seen.PausedFull).Seconds(), sampler.With("reason", string(sampler.BufferFull)))
	c.CPUProfilerOffCPUPaused.Add(ctx, (now.PausedRate - seen.PausedRate).Seconds(), sampler.With("reason", string(sampler.RateLimited)))
	c.Walks(ctx, s.reader.cfg.Languages)
	s.seen = now
}

// errKernel is the reason why off-CPU sampling needs more rights than on-CPU sampling.
var errKernel = errors.New("context switches happen in the kernel, so they need the right to sample it")

// refused returns the reason why threads that are off the CPU cannot be sampled, or nil.
func refused(r perfevent.Rights) error {
	if r.Kernel == nil {
		return nil
	}
	return errors.Join(r.Kernel, errKernel)
}
