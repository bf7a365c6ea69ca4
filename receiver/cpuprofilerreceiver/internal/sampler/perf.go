// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package sampler

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"time"

	"go.uber.org/zap"

	"github.com/hotprofile/hotprofile/extension/hotunitsextension"
	"github.com/hotprofile/hotprofile/internal/interpreter"
	"github.com/hotprofile/hotprofile/internal/otlpprofiles/attr"
	"github.com/hotprofile/hotprofile/internal/perfevent"
	"github.com/hotprofile/hotprofile/internal/procfs"
	"github.com/hotprofile/hotprofile/internal/samples"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/buffer"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/cputime"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/golabels"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/languages"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/mappedfile"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/perftargets"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/processes"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/stuckread"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/symbolizer"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/unwind"
)

// PerfConfig is the common configuration of all samplers that use perf events.
type PerfConfig struct {
	// MaxEvents is the maximum number of perf event descriptors of each sampler.
	MaxEvents int
	Kernel    perftargets.KernelStacks
	Unwind    unwind.Mode
	// Languages lists the languages whose functions appear in the stacks of hot units.
	Languages []string
	// Labels are the keys of the goroutine labels that become attributes.
	// Without keys, labels are not read.
	Labels []string
	// MaxMemory is the maximum memory for processes, files and names, including garbage.
	// FileShare is the maximum CPU time for reading files, as a share of one core. A
	// FileShare of 0 means no limit.
	MaxMemory int64
	FileShare float64
}

// Perf is shared by all samplers that use perf events. It resolves the names of addresses
// and finds the frames of copied stacks.
type Perf struct {
	PerfConfig
	// Symbols lives longer than any sampler.
	Symbols *symbolizer.Symbolizer
	// Meters measure the CPU time of profiling.
	Meters *Meters

	access   mappedfile.Access
	logger   *zap.Logger
	counters *Counters
	shares   shares
	hotUnits *hotunitsextension.HotUnits // nil without the hot_units extension
	tables   *unwind.Cache               // for copied stacks, and for thread entry functions in stripped files

	seenSymbols symbolizer.Counters
	seenUnwind  unwind.Stats
	seenWaits   uint64
	seenReads   stuckread.Stats
}

// NewPerf returns the shared part of samplers that use perf events. It must be stopped after
// the samplers.
func NewPerf(cfg PerfConfig, s *Shared, meters *Meters) *Perf {
	logger, status := s.Logger, s.Status
	p := &Perf{
		PerfConfig: cfg, Meters: meters, logger: logger, counters: s.Counters, hotUnits: s.HotUnits,
		shares: shareOut(cfg.MaxMemory),
		access: mappedfile.Access{Root: s.HostInfo.Root, Budget: cputime.NewBudget(cfg.FileShare, logger, time.Now), Meter: &meters.Files},
	}
	p.access.Runner = stuckread.New(logger, func(waiting int) {
		if waiting == 0 {
			status.Report(Reading, nil)
			return
		}
		status.Report(Reading, fmt.Errorf("%d reads of files or of the memory of processes do not return; see \"a file does not answer\" in the log", waiting))
	}, nil)
	p.Symbols = symbolizer.New(symbolizer.Config{
		Access: p.access,
		// Half of the file descriptors are reserved for perf events. The rest of the
		// collector needs file descriptors too.
		MaxObjects: max(1, min(symbolizer.DefaultMaxObjects, procfs.OpenFileLimit()/4)),
		CacheBytes: p.shares.symbols,
		Logger:     logger,
	})
	p.tables = unwind.NewCache(unwind.Config{
		Access: p.access,
		Open: func(c *stuckread.Call, m *samples.Mapping) (*os.File, mappedfile.ID, error) {
			return mappedfile.Open(c, p.access.Root, m)
		},
		VDSO:     mappedfile.VDSO,
		MaxBytes: p.shares.tables,
		Logger:   logger,
	})
	return p
}

// WaitingReads returns the number of reads that did not return in time.
func (p *Perf) WaitingReads() int { return p.access.Runner.Stats().Stuck }

// Start implements Sampler, because the shared part starts, stops and counts like a
// sampler.
func (*Perf) Start(context.Context) error { return nil }

// Stop frees the unwind tables and the names.
func (p *Perf) Stop(context.Context) error {
	p.tables.Close()
	p.Symbols.Close()
	return nil
}

// Record adds the counters of names and unwind tables to the telemetry.
func (p *Perf) Record(ctx context.Context) {
	p.recordSymbols(ctx, p.Symbols.Counters())
	waits := p.access.Budget.Waits()
	p.counters.LimitHit(ctx, "file_cpu_time", waits-p.seenWaits)
	p.seenWaits = waits
	u := p.tables.Stats()
	p.counters.Memory(ctx, "unwind_tables", u.Bytes-p.seenUnwind.Bytes)
	p.counters.LimitHit(ctx, "unwind_files", u.Evicted-p.seenUnwind.Evicted)
	p.counters.LimitHit(ctx, "unwind_requests", u.Dropped-p.seenUnwind.Dropped)
	p.counters.LimitHit(ctx, "unwind_tables", u.Incomplete+u.LeftOut-p.seenUnwind.Incomplete-p.seenUnwind.LeftOut)
	p.seenUnwind = u
	reads := p.access.Runner.Stats()
	p.counters.LimitHit(ctx, "waiting_reads", reads.Refused-p.seenReads.Refused)
	p.seenReads = reads
}

func (p *Perf) recordSymbols(ctx context.Context, y symbolizer.Counters) {
	p.counters.Memory(ctx, "files", y.FileBytes-p.seenSymbols.FileBytes)
	p.counters.Memory(ctx, "perf_maps", y.MapBytes-p.seenSymbols.MapBytes)
	p.counters.Memory(ctx, "kernel_symbols", y.KernelBytes-p.seenSymbols.KernelBytes)
	p.counters.LimitHit(ctx, "files", y.Evictions-p.seenSymbols.Evictions)
	p.counters.LimitHit(ctx, "file_requests", y.Dropped-p.seenSymbols.Dropped)
	for o, n := range y.Locations {
		Add(ctx, p.counters.CPUProfilerSymbols, n-p.seenSymbols.Locations[o], "outcome", symbolizer.Outcome(o).String())
	}
	for d, n := range y.DebugFiles {
		Add(ctx, p.counters.CPUProfilerDebugFiles, n-p.seenSymbols.DebugFiles[d], "outcome", symbolizer.DebugFile(d).String())
	}
	p.seenSymbols = y
}

// Begin begins a batch.
func (p *Perf) Begin(batch *samples.Batch) {
	hot := p.hotProcesses(batch)
	p.Symbols.Begin(hot)
	if p.access.Budget.SetHot(hot) {
		p.tables.RetryLeftOut()
	}
}

// hotProcesses returns the name of the hot unit of each process in a batch, by pid. The
// name is empty if the process belongs to no hot unit. The map is nil if no unit is hot.
func (p *Perf) hotProcesses(batch *samples.Batch) map[int]string {
	if p.hotUnits == nil {
		return nil
	}
	units := p.hotUnits.Hot()
	if len(units) == 0 {
		return nil
	}
	hot := make(map[int]string)
	for k := range batch.Keys() {
		r := k.Resource
		if _, known := hot[r.PID]; known || k.Type.Sent {
			continue
		}
		hot[r.PID] = ""
		if i := hotUnit(units, procfs.Process{PID: r.PID}, r.Text(attr.Cgroup), r.Text(attr.ContainerID)); i >= 0 {
			u := &units[i]
			hot[r.PID] = cmp.Or(u.Name, u.ContainerID, u.Cgroup, "process")
		}
	}
	return hot
}

// hot implements processes.Config.Hot.
func (p *Perf) hot() func(*processes.Process) bool {
	if p.hotUnits == nil {
		return func(*processes.Process) bool { return false }
	}
	units := p.hotUnits.Hot()
	return func(process *processes.Process) bool {
		return IsHot(units, procfs.Process{PID: process.PID}, process.Cgroup, process.ContainerID())
	}
}

// Sparing returns a function that selects the processes of hot units. The stacks
// of these processes are unwound even if other stacks are spared. Sparing returns
// nil if all stacks must be unwound, because the user has configured this or
// because hot units are unknown.
func (p *Perf) Sparing() func() func(*processes.Process) bool {
	if p.Unwind != unwind.CopiesWhereNeeded || p.hotUnits == nil {
		return nil
	}
	return p.hot
}

// Release releases the names of an emitted batch.
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

// Take runs work that calls Name. The work ends early if reading a file blocks.
func (p *Perf) Take(work func()) error { return p.Symbols.Take(work) }

// Name resolves the addresses of a stack.
func (p *Perf) Name(pid int, s *samples.Stack) {
	for _, l := range s.Locations {
		if !l.Resolved {
			p.Symbols.Resolve(pid, l)
		}
	}
}

// Mark marks a stack as truncated or whole, based on its names. If the outermost function
// has no name, Mark uses the unwind table of the function's file.
func (p *Perf) Mark(s *samples.Stack) {
	processes.MarkTruncated(s)
	if end := processes.NamelessEnd(s); end != nil && p.tables.Root(end) {
		s.Truncated = false
	}
}

// stackBytes is the size of a copied stack. If the size may change, stackBytes is the
// initial size.
const stackBytes = 16 << 10

// stacks returns the unwinder for samples of a type. By default, all stacks of running
// threads are copied, and the size of the copies adapts to the programs. Other samplers have
// too many stacks to copy all of them, so they start to copy stacks only when they sample a
// program without frame pointers.
func (p *Perf) stacks(of *samples.Type) *unwind.Stacks {
	mode := p.Unwind
	if mode == unwind.CopiesWhereNeeded && of == samples.OnCPU {
		mode = unwind.CopiesAsNeeded
	}
	return unwind.NewStacks(unwind.StacksConfig{
		Mode:   mode,
		Bytes:  stackBytes,
		Tables: p.tables,
		What:   of.Sampler,
		Logger: p.logger,
	})
}

// walker returns the walker of interpreted frames for samples of a type. It returns nil if
// these frames are not walked.
func (p *Perf) walker(of *samples.Type) *languages.Walker {
	if of != samples.OnCPU && of != samples.OffCPU || p.hotUnits == nil || p.Unwind == unwind.FramePointers {
		return nil
	}
	return languages.NewWalker(languages.Config{
		Languages: p.Languages,
		Labels:    p.Labels,
		Access:    p.access,
		Driver:    interpreter.Registered(),
		Hot:       p.hot,
		Open: func(m *samples.Mapping) (*os.File, error) {
			f, _, err := mappedfile.Open(nil, p.access.Root, m)
			return f, err
		},
		Logger: p.logger,
		Now:    buffer.SystemClock{}.Monotonic,
	})
}

// labels returns the reader of goroutine labels for a sample type. It returns nil if
// goroutine labels are not read.
func (p *Perf) labels(of *samples.Type) *golabels.Labels {
	if of != samples.OnCPU || p.hotUnits == nil || p.Unwind == unwind.FramePointers || len(p.Labels) == 0 {
		return nil
	}
	return golabels.New(golabels.Config{
		Access: p.access,
		Keys:   p.Labels,
		Hot:    p.hot,
		Logger: p.logger,
		Now:    buffer.SystemClock{}.Monotonic,
	})
}

// Processes returns the configuration of a sampler's table of processes.
//
// Each sampler that uses perf events has its own table. A table follows the records of one
// session, in their order. The goroutine that reads the session's rings uses the table for
// every sample. Sessions record different processes (hot units or all targets), at
// different times, and lose different records. A common table would need a lock for every
// sample and record, on the hot path. It would also mix forks and ends from one session
// with mappings from another session that lags behind.
func (s *Shared) Processes() (processes.Config, error) {
	wanted, err := processes.NewMatcher(s.Targets, os.Getpid())
	return processes.Config{
		Access:   s.Perf.access,
		Tree:     s.HostInfo.Tree,
		Track:    s.Perf.Symbols.Track,
		Wanted:   wanted,
		HostName: s.HostInfo.Name,
		HostID:   s.HostInfo.ID,
		Hot:      s.Perf.hot,
		Labels:   s.Perf.Labels,
		Limits:   s.Perf.shares.limits(s.Weight, s.Weights),
	}, err
}

// AttachWhen is like Attach, but for a sampler whose configuration has a `when` key.
func (s *Shared) AttachWhen(when When, of *samples.Type, key string) (cfg perftargets.Config, err error) {
	hot, why, err := when.Resolve(s.HotUnits)
	if err != nil {
		return cfg, fmt.Errorf("%s: %w", key, err)
	}
	cfg, err = s.Attach(of, hot)
	cfg.When = why
	return cfg, err
}

// Attach returns the configuration for sampling the targets of a type with perf events. If
// hot is true, only hot targets are sampled.
func (s *Shared) Attach(of *samples.Type, hot bool) (cfg perftargets.Config, err error) {
	known, err := s.Processes()
	if err != nil {
		return cfg, err
	}
	targets, err := perftargets.NewTargetFinder(known, s.Targets)
	if err != nil {
		return cfg, err
	}
	walker := s.Perf.walker(of)
	if walker != nil {
		known.Interpreted = walker.Interpreted
	}
	cfg = perftargets.Config{
		Languages:         walker,
		Labels:            s.Perf.labels(of),
		Runner:            s.Perf.access.Runner,
		Finder:            targets,
		DiscoveryInterval: s.DiscoveryInterval,
		Missing:           s.Missing,
		Table:             processes.NewTable(known),
		MaxEvents:         s.Perf.MaxEvents,
		Kernel:            s.Perf.Kernel,
		Stacks:            s.Perf.stacks(of),
		ThreadName:        s.ThreadName,
		ThreadID:          s.ThreadID,
		Logger:            s.Logger,
		Now:               buffer.SystemClock{}.Monotonic,
		Probe:             perfevent.Probe,
	}
	if hot {
		cfg.Finder = perftargets.NewHotFinder(s.HotUnits, known, targets, s.Missing != nil)
		cfg.Changed, cfg.Unwatch = s.HotUnits.Watch()
	}
	return cfg, nil
}
