// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package allocs

import (
	"context"
	"fmt"
	"sync"
	"time"

	"go.opentelemetry.io/collector/config/configoptional"
	"go.uber.org/zap"

	"github.com/hotprofile/hotprofile/internal/cgroup"
	"github.com/hotprofile/hotprofile/internal/procfs"
	"github.com/hotprofile/hotprofile/internal/samples"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/attach"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/buffer"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/processes"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/sampler"
)

// Factory returns the factory of the sampler of Go programs' allocations.
func Factory(cfg configoptional.Optional[Config]) sampler.Factory {
	return sampler.Factory{
		Key: "allocations", Enabled: cfg.HasValue(), PerfEvents: true,
		New: func(s *sampler.Shared) (sampler.Sampler, error) { return newComponent(cfg.Get(), s) },
	}
}

// stackBytes bounds the memory of its stacks: few are kept.
const stackBytes = 8 << 20

// component is the Sampler as a part of the receiver: it looks for the processes that
// the Sampler samples.
type component struct {
	sampler *Sampler
	finder  finder
	every   time.Duration
	logger  *zap.Logger

	// changed receives when the hot units have changed, until unwatch.
	changed <-chan struct{}
	unwatch func()
	cancel  context.CancelFunc
	done    sync.WaitGroup
	failing bool

	counters *sampler.Counters
	seen     Stats
}

func newComponent(cfg *Config, s *sampler.Shared) (*component, error) {
	known, err := s.Processes(stackBytes)
	if err != nil {
		return nil, err
	}
	hot, why, err := cfg.When.Resolve(s.HotUnits)
	if err != nil {
		return nil, fmt.Errorf("allocations: %w", err)
	}
	own := buffer.New(int(cfg.BufferSize), buffer.SystemClock{})
	p := &component{
		finder:   finder{targets: processes.NewFinder(known, false), tree: s.HostInfo.Tree},
		every:    s.DiscoveryInterval,
		logger:   s.Logger,
		unwatch:  func() {},
		cancel:   func() {},
		counters: s.Counters,
	}
	p.sampler = New(Settings{
		Root:       s.HostInfo.Root,
		Table:      processes.NewTable(known),
		Sink:       own,
		Limit:      cfg.MaxSamplesPerMinute,
		Interval:   s.ExportInterval,
		MaxEvents:  s.Perf.MaxEvents,
		ThreadName: s.ThreadName,
		ThreadID:   s.ThreadID,
		When:       why,
		Logger:     s.Logger,
		Now:        buffer.SystemClock{}.Monotonic,
	})
	if hot {
		p.finder.hot = attach.NewHotFinder(s.HotUnits, known, nil)
		p.changed, p.unwatch = s.HotUnits.Watch()
	}
	s.AddBuffer("allocations", own, p.sampler.Flush)
	return p, s.Counters.ObserveTargets(samples.AllocSpace.Sampler, func() int { return p.sampler.Stats().Processes })
}

// Start implements sampler.Sampler, as do Stop and Record.
func (p *component) Start(context.Context) error {
	ctx, cancel := context.WithCancel(context.Background())
	p.cancel = cancel
	p.sampler.Start()
	p.done.Go(func() { p.follow(ctx) })
	return nil
}

// Stop ends sampling; what was kept is in the buffer then.
func (p *component) Stop(context.Context) error {
	p.unwatch()
	p.cancel()
	p.done.Wait()
	p.sampler.Stop()
	return nil
}

// Record adds what the sampler has counted to the telemetry.
func (p *component) Record(ctx context.Context) {
	s, seen, c := p.sampler.Stats(), &p.seen, p.counters
	c.Samples(sampler.BufferFull, samples.AllocSpace.Sampler, int(s.BufferFull-seen.BufferFull))
	c.Samples(sampler.Unreadable, samples.AllocSpace.Sampler, int(s.Unreadable-seen.Unreadable))
	c.Samples(sampler.RateLimited, samples.AllocSpace.Sampler, int(s.Limited-seen.Limited))
	c.CPUProfilerSamplesLost.Add(ctx, int64(s.Lost-seen.Lost))
	c.Table(ctx, &s.Table, &seen.Table)
	p.seen = s
}

// follow sets what is sampled until ctx is done.
func (p *component) follow(ctx context.Context) {
	tick := time.NewTicker(p.every)
	defer tick.Stop()
	for {
		found, err := p.finder.find(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case err == nil:
			p.sampler.Set(found)
		case !p.failing:
			p.logger.Warn("looking for programs that allocate failed; what is sampled stays as it is",
				zap.Error(err), zap.Duration("retry_interval", p.every))
		}
		p.failing = err != nil
		select {
		case <-tick.C:
		case <-p.changed:
		case <-ctx.Done():
			return
		}
	}
}

// finder finds the processes of the targets, or those of them that are hot. The
// Sampler finds out which of them are Go programs.
type finder struct {
	targets *processes.Finder
	tree    *cgroup.Tree      // nil if cgroups cannot be read
	hot     *attach.HotFinder // nil if all are sampled
}

func (f *finder) find(ctx context.Context) (found []procfs.Process, err error) {
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

// hotPIDs returns the processes of the hot units. A cgroup that cannot be listed
// is ignored: it may have been removed.
func (f *finder) hotPIDs(ctx context.Context) (map[int]bool, error) {
	groups, alone := f.hot.Groups()
	among, err := f.hot.Processes(ctx, alone)
	if err != nil {
		return nil, err
	}
	pids := make(map[int]bool)
	for _, m := range among {
		pids[m.PID] = true
	}
	for _, g := range groups {
		of, err := f.tree.Processes(g)
		if err != nil {
			continue
		}
		for pid := range of {
			pids[pid] = true
		}
	}
	return pids, nil
}
