// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package sampler

import (
	"context"
	"fmt"
	"os"

	"go.uber.org/zap"

	"github.com/hotprofile/hotprofile/internal/perfevent"
	"github.com/hotprofile/hotprofile/internal/procfs"
	"github.com/hotprofile/hotprofile/internal/samples"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/attach"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/buffer"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/cputime"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/mapped"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/processes"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/symbolizer"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/unwind"
)

// PerfConfig configures what all samplers on perf events share.
type PerfConfig struct {
	// MaxEvents bounds the perf event descriptors of a sampler.
	MaxEvents int
	Kernel    attach.KernelStacks
	Unwind    unwind.Mode
	// StackBytes is the size of a stack's copy.
	StackBytes int
}

// Perf is shared by the samplers on perf events: it gives addresses their names and
// finds the frames of copied stacks.
type Perf struct {
	PerfConfig
	// Symbols outlives every sampler.
	Symbols *symbolizer.Symbolizer
	// Meter measures the CPU time that samples of running threads cost.
	Meter *cputime.Meter

	logger   *zap.Logger
	counters *Counters
	tables   *unwind.Cache // of copied stacks; nil if none are copied
	roots    *unwind.Cache // finds the functions that threads begin with, in stripped files

	seenSymbols symbolizer.Counters
	seenUnwind  unwind.Stats
}

// maxRoots bounds the memory of roots: some hundred bytes a file.
const maxRoots = 4 << 20

// NewPerf returns what samplers on perf events share. Stop it after them.
func NewPerf(cfg PerfConfig, at HostInfo, counters *Counters, meter *cputime.Meter, logger *zap.Logger) (*Perf, error) {
	p := &Perf{PerfConfig: cfg, Meter: meter, logger: logger, counters: counters}
	var err error
	if p.Symbols, err = symbolizer.New(symbolizer.Config{
		Root: at.Root,
		// Half of the files are for perf events, and the rest of the collector needs some.
		MaxObjects: max(1, min(symbolizer.DefaultMaxObjects, procfs.OpenFileLimit()/4)),
		Logger:     logger,
		Meter:      meter,
	}); err != nil {
		return nil, fmt.Errorf("start the symbolizer: %w", err)
	}
	tables := unwind.Config{
		Open:     func(m *samples.Mapping) (*os.File, mapped.ID, error) { return mapped.Open(at.Root, m) },
		VDSO:     symbolizer.VDSO,
		VDSOPath: symbolizer.VDSOPath,
		Meter:    meter,
		Logger:   logger,
	}
	if cfg.Unwind != unwind.FramePointers {
		p.tables = unwind.NewCache(tables)
	}
	tables.RootsOnly, tables.MaxBytes = true, maxRoots
	p.roots = unwind.NewCache(tables)
	return p, nil
}

// Start implements Sampler, as do Stop and Record: what is shared lives and counts
// as samplers do.
func (*Perf) Start(context.Context) error { return nil }

// Stop frees what was shared.
func (p *Perf) Stop(context.Context) error {
	if p.tables != nil {
		p.tables.Close()
	}
	p.roots.Close()
	p.Symbols.Close()
	return nil
}

// Record counts names and unwind tables.
func (p *Perf) Record(ctx context.Context) {
	p.recordSymbols(ctx, p.Symbols.Counters())
	u := p.roots.Stats()
	if p.tables != nil {
		t := p.tables.Stats()
		u.Evicted += t.Evicted
		u.Dropped += t.Dropped
		u.Incomplete += t.Incomplete
	}
	p.counters.LimitHit(ctx, "unwind_files", u.Evicted-p.seenUnwind.Evicted)
	p.counters.LimitHit(ctx, "unwind_requests", u.Dropped-p.seenUnwind.Dropped)
	p.counters.LimitHit(ctx, "unwind_tables", u.Incomplete-p.seenUnwind.Incomplete)
	p.seenUnwind = u
}

func (p *Perf) recordSymbols(ctx context.Context, y symbolizer.Counters) {
	p.counters.LimitHit(ctx, "files", y.Evictions-p.seenSymbols.Evictions)
	p.counters.LimitHit(ctx, "file_requests", y.Dropped-p.seenSymbols.Dropped)
	for _, o := range symbolizer.Outcomes() {
		if n := y.Locations[o] - p.seenSymbols.Locations[o]; n > 0 {
			p.counters.CPUProfilerSymbols.Add(ctx, int64(n), With("outcome", o.String()))
		}
	}
	p.seenSymbols = y
}

// Begin begins a batch.
func (p *Perf) Begin(*samples.Batch) { p.Symbols.Begin(nil) }

// Release takes back the names of a batch that was emitted.
func (p *Perf) Release(batch *samples.Batch) {
	for k := range batch.Keys() {
		if k.Type.Sent {
			continue
		}
		for _, l := range k.Stack.Locations {
			symbolizer.Release(l)
		}
	}
}

// Name resolves the addresses of a stack and then marks it as truncated or whole,
// by its names or, if its outermost function has no name, by what its file says of
// that function.
func (p *Perf) Name(pid int, s *samples.Stack) {
	for _, l := range s.Locations {
		if !l.Resolved {
			p.Symbols.Resolve(pid, l)
		}
	}
	processes.MarkTruncated(s)
	if end := processes.NamelessEnd(s); end != nil && p.roots.Root(end) {
		s.Truncated = false
	}
}

// stacks returns what finds the stacks of a sampler's samples.
func (p *Perf) stacks(sampler string) *unwind.Stacks {
	return unwind.NewStacks(unwind.StacksConfig{
		Mode:   p.Unwind,
		Bytes:  p.StackBytes,
		Tables: p.tables,
		What:   sampler,
		Logger: p.logger,
	})
}

// Processes returns what a sampler on perf events needs to know about processes.
// stackBytes bounds the memory of its stacks; 0 is the default.
//
// Each sampler has a table of processes of its own, made from this: a table
// follows the records of one session, in their order, and is read for every sample
// by the goroutine that reads this session's rings. Sessions see different
// processes (hot units, or all targets), at different times, and lose different
// records. One table for all would need a lock around every sample and record, on
// the hot path, and would mix forks and ends of one session with mappings of
// another that has not read as far.
func (s *Shared) Processes(stackBytes int) (processes.Config, error) {
	wanted, err := processes.NewMatcher(s.Targets, os.Getpid())
	return processes.Config{
		Root:     s.HostInfo.Root,
		Tree:     s.HostInfo.Tree,
		Track:    s.Perf.Symbols.Track,
		Wanted:   wanted,
		HostName: s.HostInfo.Name,
		HostID:   s.HostInfo.ID,
		Limits:   processes.Limits{StackBytes: stackBytes},
	}, err
}

// Attach returns what a sampler of a type needs to sample the targets by perf events;
// if hot, as far as they are hot. stackBytes is as in Processes. unwatch ends the
// search for hot units.
func (s *Shared) Attach(of *samples.Type, stackBytes int, hot bool) (cfg attach.Config, unwatch func(), err error) {
	unwatch = func() {}
	known, err := s.Processes(stackBytes)
	if err != nil {
		return cfg, unwatch, err
	}
	targets, err := attach.NewTargetFinder(known, s.Targets)
	if err != nil {
		return cfg, unwatch, err
	}
	cfg = attach.Config{
		Type:              of,
		Finder:            targets,
		DiscoveryInterval: s.DiscoveryInterval,
		Table:             processes.NewTable(known),
		MaxEvents:         s.Perf.MaxEvents,
		Kernel:            s.Perf.Kernel,
		Stacks:            s.Perf.stacks(of.Sampler),
		ThreadName:        s.ThreadName,
		ThreadID:          s.ThreadID,
		Logger:            s.Logger,
		Now:               buffer.SystemClock{}.Monotonic,
		Probe:             perfevent.Probe,
	}
	if hot {
		cfg.Finder = attach.NewHotFinder(s.HotUnits, known, targets)
		cfg.Changed, unwatch = s.HotUnits.Watch()
	}
	return cfg, unwatch, nil
}
