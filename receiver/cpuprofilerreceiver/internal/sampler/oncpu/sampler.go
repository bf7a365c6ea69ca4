// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package oncpu

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/hotprofile/hotprofile/internal/perfevent"
	"github.com/hotprofile/hotprofile/internal/samples"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/attach"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/cputime"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/processes"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/unwind"
)

// Sink is where samples go.
type Sink interface {
	// Add takes an event at time (CLOCK_MONOTONIC, in nanoseconds) and reports
	// whether there was room for it.
	Add(k samples.Key, time int64) bool
	// ReadUpTo says that all there was before time has been added; buffer.Idle, that
	// nothing is sampled.
	ReadUpTo(time int64)
	// KernelLost says that the kernel could not hand over n events of a type's
	// sampler.
	KernelLost(t *samples.Type, n uint64)
	// Paused says that there is no room and sampling has to stop until there is.
	Paused() bool
	// Batch counts the batches that samples have gone to.
	Batch() uint64
}

// Settings are what a Sampler needs to know.
type Settings struct {
	// Finder says what the targets mean now.
	Finder attach.Finder
	// Table is the processes, used by the reading goroutine alone.
	Table *processes.Table
	Sink  Sink
	// Frequency is samples per second of CPU time.
	Frequency int
	// MaxOverhead bounds what Meter measures, as a share of a core per CPU that is
	// sampled: above it the frequency is lowered. 0 means no bound.
	MaxOverhead float64
	// Window is how long the cost is added up before it is judged.
	Window time.Duration
	// Meter measures all that samples cost; the sampler adds what reading them
	// does. May be nil without MaxOverhead.
	Meter *cputime.Meter
	// MaxEvents bounds the perf event descriptors.
	MaxEvents         int
	DiscoveryInterval time.Duration
	Kernel            attach.KernelStacks
	// Stacks finds the stacks of samples, on the reading goroutine alone; by frame
	// pointers where it is nil.
	Stacks *unwind.Stacks
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
	// Lowered and Raised are how often the frequency was halved, and doubled again.
	Lowered, Raised uint64
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
	*attach.Loop
	cfg Settings
	// full is the sampling period without MaxOverhead, halvings how often the
	// frequency is halved now.
	full     time.Duration
	halvings atomic.Int64

	read, bufferFull, unreadable, lost, skipped, lowered, raised atomic.Uint64
	table                                                        atomic.Pointer[processes.Stats]

	reader reader
}

// New returns a sampler that does nothing yet.
func New(cfg Settings) *Sampler {
	if cfg.Stacks == nil {
		cfg.Stacks = unwind.NewStacks(unwind.StacksConfig{})
	}
	s := &Sampler{cfg: cfg, full: time.Second / time.Duration(cfg.Frequency)}
	s.reader = reader{
		Sampler: s,
		pace:    newPace(cfg.MaxOverhead, cfg.Window, cfg.Frequency),
		losses:  attach.NewLosses(cfg.Logger, samples.OnCPU.Sampler),
	}
	s.Loop = attach.NewLoop(attach.Config{
		Finder:    cfg.Finder,
		Interval:  cfg.DiscoveryInterval,
		MaxEvents: cfg.MaxEvents,
		Refused:   refused,
		Probe:     cfg.Probe,
		Logger:    cfg.Logger,
		Sampler:   samples.OnCPU.Sampler,
	}, &s.reader)
	return s
}

// refused says why not even a process may be sampled.
func refused(r perfevent.Rights) error {
	if r.HostWide == nil {
		return nil
	}
	return r.Own
}

// Start finds out what is permitted and begins. Where nothing is, it says so
// through Status and goes on trying; only kernel stacks that are demanded and
// not permitted are an error.
func (s *Sampler) Start() error {
	rights := s.cfg.Probe()
	if s.cfg.Kernel == attach.KernelDemanded && rights.Kernel != nil {
		return fmt.Errorf("kernel_stacks is true: %w", rights.Kernel)
	}
	s.Begin(rights)
	return nil
}

// Stats returns the counters; from any goroutine.
func (s *Sampler) Stats() Stats {
	st := Stats{
		Read:           s.read.Load(),
		BufferFull:     s.bufferFull.Load(),
		Unreadable:     s.unreadable.Load(),
		Lost:           s.lost.Load(),
		Lowered:        s.lowered.Load(),
		Raised:         s.raised.Load(),
		PeriodsSkipped: s.skipped.Load(),
		Targets:        s.Targets(),
	}
	if t := s.table.Load(); t != nil {
		st.Table = *t
	}
	if st.Targets > 0 {
		st.Frequency = s.frequency(int(s.halvings.Load()))
	}
	return st
}

var errNothingPermitted = errors.New("nothing can be sampled")

// frequency is samples per second after so many halvings.
func (s *Sampler) frequency(halvings int) float64 {
	return float64(s.cfg.Frequency) / float64(int64(1)<<halvings)
}
