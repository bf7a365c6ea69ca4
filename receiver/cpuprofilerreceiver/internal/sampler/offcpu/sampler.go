// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package offcpu

import (
	"errors"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/hotprofile/hotprofile/internal/perfevent"
	"github.com/hotprofile/hotprofile/internal/samples"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/attach"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/processes"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/unwind"
)

// Sink is where waits go.
type Sink interface {
	// AddValue takes a wait that ended at time (CLOCK_MONOTONIC, in nanoseconds;
	// its last one) with its value, and reports whether there was room for it.
	AddValue(k samples.Key, time, value int64) bool
	// KernelLost says that the kernel could not hand over n events of a type's
	// sampler.
	KernelLost(t *samples.Type, n uint64)
	// ReadUpTo says that all there was before time has been added; buffer.Idle,
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

// Settings are what a Sampler needs to know.
type Settings struct {
	Finder attach.Finder
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
	Kernel            attach.KernelStacks
	// Stacks finds the stacks of samples, on the reading goroutine alone; by frame
	// pointers where it is nil.
	Stacks *unwind.Stacks
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
	*attach.Loop
	cfg Settings

	lost  atomic.Uint64
	stats atomic.Pointer[Stats]

	reader reader
}

const (
	defaultMaxThreads = 1 << 16
	// maxCopied bounds the bytes per second that are copied of stacks, so that they
	// fit the rings: a thousand stacks of 16 KiB.
	maxCopied = 16 << 20
	// maxHeld bounds the waits that are held until their value is known.
	maxHeld = 1 << 16
)

// New returns a sampler that does nothing yet.
func New(cfg Settings) *Sampler {
	if cfg.MaxThreads <= 0 {
		cfg.MaxThreads = defaultMaxThreads
	}
	if cfg.Stacks == nil {
		cfg.Stacks = unwind.NewStacks(unwind.StacksConfig{})
	}
	s := &Sampler{cfg: cfg}
	s.reader = reader{Sampler: s, intN: rand.IntN, losses: attach.NewLosses(cfg.Logger, samples.OffCPU.Sampler)}
	s.reader.scaler = newScaler(maxHeld, s.reader.emit)
	s.reader.waits = newWaits(cfg.MinDuration, cfg.MaxThreads, s.reader.add)
	if cfg.Still != nil {
		s.reader.waits.still = s.reader.still
	}
	s.Loop = attach.NewLoop(attach.Config{
		Finder:    cfg.Finder,
		Changed:   cfg.Changed,
		Interval:  cfg.DiscoveryInterval,
		MaxEvents: cfg.MaxEvents,
		Refused:   refused,
		Probe:     cfg.Probe,
		Logger:    cfg.Logger,
		Sampler:   samples.OffCPU.Sampler,
	}, &s.reader)
	return s
}

// Start begins. What is not permitted is said, and tried again; it is no error,
// since the other samplers go on.
func (s *Sampler) Start() { s.Begin(s.cfg.Probe()) }

// Stats returns the counters; from any goroutine.
func (s *Sampler) Stats() Stats {
	var st Stats
	if published := s.stats.Load(); published != nil {
		st = *published
	}
	st.Lost = s.lost.Load()
	st.Targets = s.Targets()
	return st
}

// errKernel says why off-CPU sampling needs more than on-CPU sampling.
var errKernel = errors.New("threads are switched in the kernel, and events that leave it out count none of it")

// refused says why nothing may be sampled off the CPU.
func refused(r perfevent.Rights) error {
	if r.Kernel == nil {
		return nil
	}
	return errors.Join(r.Kernel, errKernel)
}
