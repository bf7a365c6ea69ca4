// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package offcpu

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/hotprofile/hotprofile/internal/perfevent"
	"github.com/hotprofile/hotprofile/internal/samples"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/oncpu"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/processes"
)

// Sink is where waits go.
type Sink interface {
	// AddValue takes a wait that ended at time (CLOCK_MONOTONIC, in nanoseconds;
	// its last one) with its value, and reports whether there was room for it.
	AddValue(k samples.Key, time, value int64) bool
	// ReadUpTo says that all there was before time has been added; oncpu.Idle,
	// that nothing is sampled.
	ReadUpTo(time int64)
	// Paused says that there is no room and sampling has to stop until there is.
	Paused() bool
	// Batch counts the batches that samples have gone to.
	Batch() uint64
	// Closing is when the batch was about to be taken last: waits in progress are to
	// be cut there, so that it has their parts.
	Closing() int64
}

// Finder says what is to be sampled now.
type Finder interface {
	Find(ctx context.Context, hostWide bool) (Finding, error)
}

// Finding is what is to be sampled at one moment.
type Finding struct {
	oncpu.Finding
	// Only, where it is set, says which processes are meant, for events that see
	// others too.
	Only func(pid int, cgroup string) bool
}

// Config is what a Sampler needs to know.
type Config struct {
	Finder Finder
	// Changed has the Finder asked at once, not only every DiscoveryInterval. May
	// be nil.
	Changed <-chan struct{}
	// Table is the processes, used by the reading goroutine alone.
	Table *processes.Table
	Sink  Sink
	// MinDuration is the length from which on waits are shown.
	MinDuration time.Duration
	// MaxEventsPerSecond bounds the stacks.
	MaxEventsPerSecond int
	// MaxThreads bounds the threads that are followed, 65,536 by default.
	MaxThreads int
	// MaxEvents bounds the perf event descriptors.
	MaxEvents         int
	DiscoveryInterval time.Duration
	Kernel            oncpu.KernelStacks
	// ThreadName and ThreadID say which attributes tell threads apart.
	ThreadName, ThreadID bool
	// When is what decides when something is sampled, for the line that says what
	// is.
	When   string
	Logger *zap.Logger
	// Now is CLOCK_MONOTONIC in nanoseconds.
	Now func() int64
	// Probe finds out what is permitted; perfevent.Probe outside of tests.
	Probe func() perfevent.Rights
	// Still says whether a thread that was not told of for long still waits; nil:
	// it is believed to.
	Still Still
}

// Still reads how often a thread has left its CPU since it began, and whether it
// runs now; ok is false where it is gone.
type Still func(pid, tid int) (switches uint64, running, ok bool)

// Stats are the counters of a Sampler since it was made.
type Stats struct {
	// BufferFull are waits that the sink had no room for, Unreadable those whose
	// process or stack could not be made out, RateLimited those whose stack was
	// not sampled; their time is in the values of others.
	BufferFull, Unreadable, RateLimited uint64
	// Lost is what the kernel could not hand over.
	Lost uint64
	// Switches are the records of switches that were read.
	Switches uint64
	// UnderWay, Forgotten, Short and LeftOut are waits that are not shown: begun
	// before sampling did; their end not seen; shorter than MinDuration; of more
	// threads than are followed.
	UnderWay, Forgotten, Short, LeftOut uint64
	// Unshared is the time that no stack was found for.
	Unshared time.Duration
	// PausedFull and PausedRate is the time without sampling, because both buffers
	// were full, and because there were too many switches to read.
	PausedFull, PausedRate time.Duration
	// Targets is what is attached now, Threads the threads that are followed,
	// Every of how many switches one is sampled.
	Targets, Threads, Every int
	// Table is what the table of processes said last.
	Table processes.Stats
}

// Sampler samples threads that do not run.
type Sampler struct {
	cfg    Config
	found  chan found
	cancel context.CancelFunc
	done   sync.WaitGroup

	// session is there while something is sampled. The reader owns it; others
	// may wake it.
	session atomic.Pointer[perfevent.Session]
	// wake is for a reader without a session.
	wake chan struct{}

	lost    atomic.Uint64
	targets atomic.Int64
	stats   atomic.Pointer[Stats]

	reader reader
}

const (
	defaultMaxThreads = 1 << 16
	// maxHeld bounds the waits that are held until their value is known.
	maxHeld = 1 << 16
)

// New returns a sampler that does nothing yet.
func New(cfg Config) *Sampler {
	if cfg.MaxThreads <= 0 {
		cfg.MaxThreads = defaultMaxThreads
	}
	s := &Sampler{cfg: cfg, found: make(chan found, 1), wake: make(chan struct{}, 1)}
	s.reader = reader{Sampler: s, attached: oncpu.NewAttachments(), intN: rand.IntN}
	s.reader.scaler = newScaler(maxHeld, s.reader.emit)
	s.reader.waits = newWaits(cfg.MinDuration, cfg.MaxThreads, s.reader.add)
	if cfg.Still != nil {
		s.reader.waits.still = s.reader.still
	}
	return s
}

// Start begins. What is not permitted is said, and tried again; it is no error,
// since the other samplers go on.
func (s *Sampler) Start() {
	ctx, cancel := context.WithCancel(context.Background())
	s.cancel = cancel
	s.done.Go(func() { s.discover(ctx) })
	s.done.Go(func() { s.reader.run(ctx) })
}

// Stop ends sampling, after a last look into the rings and with waits in progress
// shown up to now, and waits for the sampler's goroutines.
func (s *Sampler) Stop() {
	if s.cancel == nil {
		return
	}
	s.cancel()
	s.Wake()
	s.done.Wait()
}

// Wake makes the reader look at once at what there is to do.
func (s *Sampler) Wake() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
	if session := s.session.Load(); session != nil {
		session.Wake()
	}
}

// Stats returns the counters; from any goroutine.
func (s *Sampler) Stats() Stats {
	var st Stats
	if published := s.stats.Load(); published != nil {
		st = *published
	}
	st.Lost = s.lost.Load()
	st.Targets = int(s.targets.Load())
	return st
}

// found is a Finding and what is to be done about it.
type found struct {
	Finding
	rights perfevent.Rights
	plan   perfevent.Plan
	// err says why nothing can be sampled; nil where something can.
	err error
	// failed says that err is a failure to look: nothing is known.
	failed bool
}

// discover looks for targets, and for rights that were missing, until ctx is
// done.
func (s *Sampler) discover(ctx context.Context) {
	tick := time.NewTicker(s.cfg.DiscoveryInterval)
	defer tick.Stop()
	rights := s.cfg.Probe()
	for {
		f := s.find(ctx, rights)
		if ctx.Err() != nil {
			return
		}
		select {
		case <-s.found: // what the reader has not looked at yet is out of date
		default:
		}
		s.found <- f
		s.Wake()
		select {
		case <-tick.C:
		case <-s.cfg.Changed:
		case <-ctx.Done():
			return
		}
		if rights.Own != nil || rights.HostWide != nil || rights.Kernel != nil {
			rights = s.cfg.Probe()
		}
	}
}

// errKernel says why off-CPU sampling needs more than on-CPU sampling.
var errKernel = errors.New("threads are switched in the kernel, and events that leave it out count none of it")

// find plans what to sample.
func (s *Sampler) find(ctx context.Context, rights perfevent.Rights) found {
	f := found{rights: rights}
	if rights.Kernel != nil {
		f.err = errors.Join(rights.Kernel, errKernel)
		return f
	}
	cpus, err := perfevent.OnlineCPUs()
	if err == nil {
		f.Finding, err = s.cfg.Finder.Find(ctx, rights.HostWide == nil)
	}
	if err != nil {
		f.err, f.failed = err, true
		return f
	}
	f.plan = perfevent.NewPlan(f.Wanted, perfevent.Limits{
		CPUs:      cpus,
		MaxEvents: s.cfg.MaxEvents,
		OpenFiles: perfevent.OpenFileLimit(),
		HostWide:  rights.HostWide,
	})
	return f
}
