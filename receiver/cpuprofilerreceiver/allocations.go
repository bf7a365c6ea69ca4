// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package cpuprofilerreceiver

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/hotprofile/hotprofile/extension/hotunitsextension"
	"github.com/hotprofile/hotprofile/internal/bytesize"
	"github.com/hotprofile/hotprofile/internal/cgroup"
	"github.com/hotprofile/hotprofile/internal/otlpprofiles/attr"
	"github.com/hotprofile/hotprofile/internal/procfs"
	"github.com/hotprofile/hotprofile/internal/samples"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/processes"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/sampler/allocs"
)

// AllocationsConfig is about who allocates in Go programs. It needs CAP_SYS_ADMIN, or
// CAP_PERFMON with kernels that take it for probes in programs.
type AllocationsConfig struct {
	// When is hot (only the units that cpu_trigger says are hot, which needs a
	// hot_units extension) or always. Default hot with that extension, else always.
	// While attached it costs the profiled programs, and others that run the same
	// file, some microseconds per 512 KiB that they allocate.
	When When `mapstructure:"when"`
	// MaxSamplesPerMinute is how many samples are kept of a process, chosen at
	// random, 0 to 1000000; the values are scaled. Default 200; 0 keeps all.
	MaxSamplesPerMinute int `mapstructure:"max_samples_per_minute"`
	// BufferSize is the size of each of the two buffers that allocations have for
	// themselves. Default 200KiB.
	BufferSize bytesize.Size `mapstructure:"buffer_size"`

	// prevents unkeyed literal initialization
	_ struct{}
}

const maxMaxSamplesPerMinute = 1_000_000

func defaultAllocations() AllocationsConfig {
	return AllocationsConfig{MaxSamplesPerMinute: 200, BufferSize: 200 * bytesize.KiB}
}

// Validate reports every fault; the collector names the block.
func (cfg *AllocationsConfig) Validate() error {
	errs := []error{cfg.When.validate()}
	if cfg.MaxSamplesPerMinute < 0 || cfg.MaxSamplesPerMinute > maxMaxSamplesPerMinute {
		errs = append(errs, fmt.Errorf("max_samples_per_minute: %d is not between 0 and %d", cfg.MaxSamplesPerMinute, maxMaxSamplesPerMinute))
	}
	if cfg.BufferSize < minBufferSize || cfg.BufferSize > maxBufferSize {
		errs = append(errs, fmt.Errorf("buffer_size: %v is not between %v and %v", cfg.BufferSize, minBufferSize, maxBufferSize))
	}
	return errors.Join(errs...)
}

// allocations is the sampler of allocations with its buffer, and what tells it
// which processes to sample.
type allocations struct {
	sampler *allocs.Sampler
	buffer  *buffer
	limit   int // of the buffer
	finder  allocatingFinder
	every   time.Duration
	logger  *zap.Logger

	// changed is told when other units are hot, unwatch ends that.
	changed <-chan struct{}
	unwatch func()
	cancel  context.CancelFunc
	done    sync.WaitGroup
	failing bool
}

// newAllocations joins the sampler's parts; hot is nil where there is no such
// extension.
func (p *profiler) newAllocations(at place, hot hotunitsextension.HotUnits) (*allocations, error) {
	cfg := p.cfg.Allocations.Get()
	known, _, err := p.known(at)
	if err != nil {
		return nil, err
	}
	known.Limits.StackBytes = 8 << 20 // few stacks are kept
	isHot, why, err := cfg.When.resolve(hot)
	if err != nil {
		return nil, fmt.Errorf("allocations: %w", err)
	}
	a := &allocations{
		buffer: newBuffer(int(cfg.BufferSize), systemClock{}, func() {}),
		limit:  int(cfg.BufferSize),
		finder: allocatingFinder{targets: processes.NewFinder(processes.FinderConfig{Config: known}), tree: at.tree},
		every:  p.cfg.DiscoveryInterval,
		logger: p.logger,
	}
	a.sampler = allocs.New(allocs.Config{
		Root:       at.root,
		Table:      processes.NewTable(known),
		Sink:       a.buffer,
		Limit:      cfg.MaxSamplesPerMinute,
		Interval:   p.cfg.ExportInterval,
		MaxEvents:  p.cfg.MaxPerfEvents,
		ThreadName: slices.Contains(p.cfg.ThreadAttributes, attr.ThreadName),
		ThreadID:   slices.Contains(p.cfg.ThreadAttributes, attr.ThreadID),
		When:       why,
		Logger:     p.logger,
		Now:        systemClock{}.Monotonic,
	})
	if isHot {
		a.finder.hot = &hotFinder{hot: hot, tree: at.tree, known: known}
		a.changed, a.unwatch = hot.Watch()
	}
	return a, nil
}

// start begins to sample.
func (a *allocations) start() {
	ctx, cancel := context.WithCancel(context.Background())
	a.cancel = cancel
	a.sampler.Start()
	a.done.Go(func() { a.follow(ctx) })
}

// stop ends sampling and waits; what was kept is in the buffer then.
func (a *allocations) stop() {
	if a.unwatch != nil {
		a.unwatch()
	}
	if a.cancel != nil {
		a.cancel()
		a.done.Wait()
		a.sampler.Stop()
	}
}

// follow tells the sampler what to sample until ctx is done.
func (a *allocations) follow(ctx context.Context) {
	tick := time.NewTicker(a.every)
	defer tick.Stop()
	for {
		found, err := a.finder.find(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case err == nil:
			a.sampler.Set(found)
		case !a.failing:
			a.logger.Warn("Looking for programs that allocate failed; what is sampled stays as it is",
				zap.Error(err), zap.Duration("tried_again_every", a.every))
		}
		a.failing = err != nil
		select {
		case <-tick.C:
		case <-a.changed:
		case <-ctx.Done():
			return
		}
	}
}

// allocatingFinder finds the processes of the targets, or those of them that are
// hot. Which of them are Go programs is the sampler's to find out.
type allocatingFinder struct {
	targets *processes.Finder
	tree    *cgroup.Tree // nil where cgroups cannot be read
	hot     *hotFinder   // nil where all are sampled
}

func (f *allocatingFinder) find(ctx context.Context) (found []procfs.Process, err error) {
	wanted := func(int) bool { return true }
	if f.hot != nil {
		pids, err := f.hotPIDs(ctx)
		if err != nil || len(pids) == 0 {
			return nil, err
		}
		wanted = func(pid int) bool { return pids[pid] }
	}
	matches, _, err := f.targets.Find(ctx)
	if err != nil {
		return nil, fmt.Errorf("look for processes: %w", err)
	}
	for _, m := range matches {
		if wanted(m.PID) {
			found = append(found, m.Process)
		}
	}
	return found, nil
}

// hotPIDs are the processes of the hot units. One whose cgroup cannot be listed,
// as it may be gone by now, has none.
func (f *allocatingFinder) hotPIDs(ctx context.Context) (map[int]bool, error) {
	units, alone := f.hot.units()
	among, err := f.hot.processes(ctx, alone)
	if err != nil {
		return nil, err
	}
	pids := make(map[int]bool)
	for _, m := range among {
		pids[m.PID] = true
	}
	for _, u := range units {
		of, err := f.tree.Processes(u)
		if err != nil {
			continue
		}
		for pid := range of {
			pids[pid] = true
		}
	}
	return pids, nil
}

// AddBoth takes an allocation, as its count and as its bytes, or neither. Nothing
// is held back in the buffer of allocations: one sampler alone writes to it.
func (b *buffer) AddBoth(objects, space samples.Key, time, count, bytes int64) bool {
	return b.put(func(batch *samples.Batch) bool {
		return b.widen(batch, time, batch.AddBoth(objects, space, time+b.offset, count, bytes))
	})
}
