// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package oncpu

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/hotprofile/hotprofile/internal/perfevent"
	"github.com/hotprofile/hotprofile/internal/samples"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/processes"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/unwind"
)

// Sink is where samples go.
type Sink interface {
	// Add takes an event at time (CLOCK_MONOTONIC, in nanoseconds) and reports
	// whether there was room for it.
	Add(k samples.Key, time int64) bool
	// ReadUpTo says that all there was before time has been added; Idle, that
	// nothing is sampled.
	ReadUpTo(time int64)
	// Paused says that there is no room and sampling has to stop until there is.
	Paused() bool
	// Batch counts the batches that samples have gone to.
	Batch() uint64
}

// Idle is what ReadUpTo is told while nothing is sampled, and so nothing is to be
// waited for.
const Idle = int64(1<<63 - 1)

// KernelStacks says whether the kernel's part of stacks is sampled.
type KernelStacks uint8

// What may be asked for.
const (
	// KernelAuto samples it where that is permitted.
	KernelAuto KernelStacks = iota
	// KernelDemanded does not start without.
	KernelDemanded
	// KernelNever leaves it out. Time in the kernel still counts, for the
	// function that called the kernel, where that is permitted.
	KernelNever
)

// Config is what a Sampler needs to know.
type Config struct {
	// Finder says what the targets mean now.
	Finder Finder
	// Table is the processes, used by the reading goroutine alone.
	Table *processes.Table
	Sink  Sink
	// Frequency is samples per second of CPU time.
	Frequency int
	// MaxEvents bounds the perf event descriptors.
	MaxEvents         int
	DiscoveryInterval time.Duration
	Kernel            KernelStacks
	Unwinding         Unwinding
	// StackBytes is what is copied of each stack, and Tables what to walk the
	// copies by; not needed with FramePointers.
	StackBytes int
	Tables     *unwind.Cache
	// ThreadName and ThreadID say which attributes tell threads apart.
	ThreadName, ThreadID bool
	Logger               *zap.Logger
	// Status is told when nothing can be sampled, and, with nil, when something
	// can again.
	Status func(error)
	// Notes says what else cannot be seen with these rights, and what would allow
	// it, for the line that says what is sampled.
	Notes func(perfevent.Rights) []string
	// Now is CLOCK_MONOTONIC in nanoseconds.
	Now func() int64
	// Probe finds out what is permitted; perfevent.Probe outside of tests.
	Probe func() perfevent.Rights
}

// Stats are the counters of a Sampler since it was made.
type Stats struct {
	// Read are the samples of targets that were read; each of them is in the
	// sink, or counted by one of the next two.
	Read uint64
	// BufferFull are samples that the sink had no room for, Unreadable those
	// whose process or stack could not be made out, Lost what the kernel could
	// not hand over.
	BufferFull, Unreadable, Lost uint64
	// PeriodsSkipped are the sampling periods that passed while paused.
	PeriodsSkipped uint64
	// Targets is what is attached now, Frequency what it is sampled with.
	Targets   int
	Frequency float64
	// Table is what the table of processes said last.
	Table processes.Stats
}

// Sampler samples running threads.
type Sampler struct {
	cfg    Config
	period time.Duration

	found  chan found
	cancel context.CancelFunc
	done   sync.WaitGroup

	// session is there while something is sampled. The reader owns it; others
	// may wake it.
	session atomic.Pointer[perfevent.Session]
	// wake is for a reader without a session.
	wake chan struct{}

	read, bufferFull, unreadable, lost, skipped atomic.Uint64
	targets                                     atomic.Int64
	table                                       atomic.Pointer[processes.Stats]

	reader reader
}

// New returns a sampler that does nothing yet.
func New(cfg Config) *Sampler {
	s := &Sampler{
		cfg:    cfg,
		period: time.Second / time.Duration(cfg.Frequency),
		found:  make(chan found, 1),
		wake:   make(chan struct{}, 1),
	}
	s.reader = reader{Sampler: s, attached: newAttached(), unwinder: unwind.NewUnwinder(cfg.Tables)}
	return s
}

// Start finds out what is permitted and begins. Where nothing is, it says so
// through Status and goes on trying; only kernel stacks that are demanded and
// not permitted are an error.
func (s *Sampler) Start() error {
	rights := s.cfg.Probe()
	if s.cfg.Kernel == KernelDemanded && rights.Kernel != nil {
		return fmt.Errorf("kernel_stacks is true: %w", rights.Kernel)
	}
	ctx, cancel := context.WithCancel(context.Background())
	s.cancel = cancel
	s.done.Go(func() { s.discover(ctx, rights) })
	s.done.Go(func() { s.reader.run(ctx) })
	return nil
}

// Stop ends sampling, after a last look into the rings, and waits for the
// sampler's goroutines.
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
	st := Stats{
		Read:           s.read.Load(),
		BufferFull:     s.bufferFull.Load(),
		Unreadable:     s.unreadable.Load(),
		Lost:           s.lost.Load(),
		PeriodsSkipped: s.skipped.Load(),
		Targets:        int(s.targets.Load()),
	}
	if t := s.table.Load(); t != nil {
		st.Table = *t
	}
	if st.Targets > 0 {
		st.Frequency = float64(s.cfg.Frequency)
	}
	return st
}

// kernel is what a session samples of the kernel.
func (s *Sampler) kernel(r perfevent.Rights) perfevent.Kernel {
	return r.KernelMode(s.cfg.Kernel != KernelNever)
}

var errNothingPermitted = errors.New("nothing can be sampled")
