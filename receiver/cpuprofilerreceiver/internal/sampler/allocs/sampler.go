// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package allocs

import (
	"cmp"
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"
	"go.opentelemetry.io/collector/config/configoptional"

	"github.com/hotprofile/hotprofile/internal/perfevent"
	"github.com/hotprofile/hotprofile/internal/procfs"
	"github.com/hotprofile/hotprofile/internal/samples"
	"github.com/hotprofile/hotprofile/internal/token"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/buffer"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/mappedfile"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/perftargets"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/processes"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/sampler"
)

// Factory returns the factory of the sampler for allocations of Go programs.
func Factory(cfg configoptional.Optional[Config]) sampler.Factory {
	return sampler.Factory{
		Key: "allocations", Enabled: cfg.HasValue(), PerfEvents: true, Weight: 1,
		New: func(s *sampler.Shared) (sampler.Sampler, error) { return newSampler(cfg.Get(), s) },
	}
}

// Sink is the buffer that samples go to.
type Sink interface {
	// AddBoth adds an allocation as two events at time (CLOCK_MONOTONIC, in nanoseconds).
	// It reports whether both events fit.
	AddBoth(objects, space samples.Key, time, count, bytes int64) bool
	// KernelLost adds n to the number of events that the kernel lost. t is the type of the
	// sampler.
	KernelLost(t *samples.Type, n uint64)
	// ReadUpTo sets the time before which all samples have been added.
	ReadUpTo(time int64)
}

// Settings configures a Sampler.
type Settings struct {
	// Config is the common configuration of samplers that use perf events. Only the reading
	// goroutine uses its table. Its Finder is not used.
	perftargets.Config
	// Root is the folder where the host's root is mounted. "" means "/".
	Root string
	// Find returns the processes to sample. Find is called whenever Changed receives, and
	// also every DiscoveryInterval, because a process may execute another program.
	Find func(context.Context) ([]procfs.Process, error)
	Sink Sink
	// Sampled remembers which processes were sampled. It may be nil.
	Sampled *sampler.Sampled
	// Limit is the number of samples per process and minute that are kept. 0 means all.
	Limit int
	// Interval is the time between two calls of Flush.
	Interval time.Duration
	// Random is the source of random numbers. Only the reading goroutine uses it. If it is
	// nil, the sampler creates a source with a random seed.
	Random *rand.Rand
	// Quiet is the time without events after which the missing events of a program are logged.
	// 0 means one minute.
	Quiet time.Duration
}

// Stats are the counters of a Sampler since it was created.
type Stats struct {
	perftargets.Counts
	// Read is the number of allocations of wanted processes that were read. Each of them is
	// in the sink, is waiting for Flush, or is counted in BufferFull, Unreadable or
	// RateLimited.
	Read uint64
	// Processes is the number of sampled processes. Programs is the number of programs with
	// a uprobe.
	Processes, Programs int
}

// Sampler samples allocations of the processes that Find returns.
type Sampler struct {
	link
	attacher attacher
	reader   reader

	cancel   context.CancelFunc
	started  atomic.Bool
	done     sync.WaitGroup
	counters *sampler.Counters
	seen     Stats // counters at the last Record
}

// link contains the channels and the state that the attacher and the reader share.
type link struct {
	// asked receives requests to the reader. wake wakes a reader without uprobes.
	asked chan request
	wake  chan struct{}
	// stopped is closed when the reader no longer answers requests.
	stopped chan struct{}
	// again makes the attacher check the same processes again.
	again chan struct{}

	// uprobes is nil while sampling is off. members contains the sampled processes. The
	// attacher writes uprobes and members, and the reader reads uprobes and members.
	uprobes atomic.Pointer[perfevent.Session]
	members atomic.Pointer[map[int]*member]
}

// request makes the reader read the rings. If flush is set, the reader also emits the kept
// samples.
type request struct {
	flush bool
	done  chan struct{}
}

// New returns a sampler that has not started.
func New(cfg Settings) *Sampler {
	cfg.Root = cmp.Or(cfg.Root, "/")
	cfg.Quiet = cmp.Or(cfg.Quiet, time.Minute)
	cfg.Random = cmp.Or(cfg.Random, rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64())))
	s := &Sampler{
		link: link{
			stopped: make(chan struct{}),
			asked:   make(chan request),
			wake:    make(chan struct{}, 1),
			again:   make(chan struct{}, 1),
		},
	}
	s.members.Store(&map[int]*member{})
	a := &s.attacher
	a.cfg, a.link, a.files = cfg, &s.link, procfs.At(cfg.Root)
	a.access = mappedfile.Access{Root: cfg.Root, Runner: cfg.Runner}
	a.attached = make(map[int]*member)
	a.known, _ = simplelru.NewLRU[mappedfile.ID, *program](maxPrograms, nil) // fails only for a size below 1
	s.reader.cfg, s.reader.link = cfg, &s.link
	if cfg.Limit > 0 {
		s.reader.most = max(1, int(float64(cfg.Limit)*cfg.Interval.Minutes()))
	}
	s.reader.losses = perftargets.NewLosses(cfg.Logger, samples.AllocSpace, perftargets.KernelLost, cfg.Sink)
	return s
}

// newSampler returns the sampler of a receiver.
func newSampler(cfg *Config, s *sampler.Shared) (*Sampler, error) {
	attached, err := s.AttachWhen(cfg.When, samples.AllocSpace, "allocations")
	if err != nil {
		return nil, err
	}
	known, err := s.Processes()
	if err != nil {
		return nil, err
	}
	own := buffer.New(max(s.BufferSize/16, int(buffer.MinSize)), buffer.SystemClock{})
	find := finder{targets: processes.NewFinder(known, false), tree: s.HostInfo.Tree, missing: s.Missing}
	find.hot, _ = attached.Finder.(*perftargets.HotFinder)
	p := New(Settings{
		Config:   attached,
		Root:     s.HostInfo.Root,
		Find:     find.find,
		Sink:     own,
		Sampled:  s.Sampled[sampler.PprofAllocs],
		Limit:    cfg.MaxSamplesPerMinute,
		Interval: s.ExportInterval,
	})
	p.counters = s.Counters
	s.AddBuffer("allocations", own, p.Flush)
	return p, s.Counters.ObserveTargets(samples.AllocSpace.Sampler, func() int { return p.Stats().Processes })
}

// Start starts the sampler's goroutines.
func (s *Sampler) Start(context.Context) error {
	ctx, cancel := context.WithCancel(context.Background())
	s.cancel = cancel
	s.done.Go(func() { s.attacher.run(ctx) })
	s.done.Go(func() { s.reader.run(ctx) })
	s.started.Store(true)
	return nil
}

// Flush adds the samples that were kept since the last Flush to the sink. Call Flush right
// before the sink's batch is taken. Before Start, Flush has no effect.
func (s *Sampler) Flush() {
	if s.started.Load() {
		s.ask(true)
	}
}

// ask makes the reader read the rings, and waits until the reader has done so.
func (l *link) ask(flush bool) {
	req := request{flush: flush, done: make(chan struct{})}
	l.notify()
	for {
		select {
		case l.asked <- req:
			<-req.done
			return
		case <-l.stopped:
			return
		case <-time.After(askAgain): // the reader may have been notified before it started to wait
			l.notify()
		}
	}
}

// askAgain is the time after which ask wakes the reader again.
const askAgain = 20 * time.Millisecond

// notify makes the reader check for work at once.
func (l *link) notify() {
	token.Put(l.wake)
	if u := l.uprobes.Load(); u != nil {
		u.Wake()
	}
}

// Stop ends sampling, removes the uprobes, emits the kept samples, and waits for the
// sampler's goroutines.
func (s *Sampler) Stop(context.Context) error {
	if unwatch := s.reader.cfg.Unwatch; unwatch != nil {
		unwatch()
	}
	if s.cancel != nil {
		s.cancel()
		s.notify()
		s.done.Wait()
	}
	return nil
}

// Stats returns the counters. It is safe for concurrent use.
func (s *Sampler) Stats() Stats {
	st := s.reader.published.Get()
	st.Processes, st.Programs = int(s.attacher.processes.Load()), int(s.attacher.programs.Load())
	return st
}

// Record adds the sampler's counters to the telemetry.
func (s *Sampler) Record(ctx context.Context) {
	now := s.Stats()
	s.counters.Count(ctx, samples.AllocSpace, &now.Counts, &s.seen.Counts)
	s.seen = now
}
