// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package oncpu

import (
	"errors"
	"fmt"
	"time"

	"github.com/hotprofile/hotprofile/internal/perfevent"
	"github.com/hotprofile/hotprofile/internal/samples"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/attach"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/cputime"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/processes"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/unwind"
)

// Sink is the buffer that samples go to.
type Sink interface {
	attach.Sink
	// Add adds an event at time (CLOCK_MONOTONIC, in nanoseconds) and reports whether
	// there was room for it.
	Add(k samples.Key, time int64) bool
}

// Settings configures a Sampler.
type Settings struct {
	attach.Config // without Type, Refused and Lost
	Sink          Sink
	// Frequency is samples per second of CPU time.
	Frequency int
	// MaxOverhead bounds what Meter measures, as a share of a core per sampled CPU:
	// above it the frequency is lowered. 0 means no bound.
	MaxOverhead float64
	// Window is the time over which the cost is summed before it is judged.
	Window time.Duration
	// Meter measures all that samples cost; the sampler adds the cost of reading
	// them. May be nil without MaxOverhead.
	Meter *cputime.Meter
	// Status is called with an error when nothing can be sampled, and with nil when
	// something can be again.
	Status func(error)
	// Notes returns what else cannot be seen with these rights, and what would allow
	// it, for the log.
	Notes func(perfevent.Rights) []string
}

// Stats are the counters of a Sampler since it was made.
type Stats struct {
	// Read is the number of samples of targets that were read. Each of them is in the
	// sink, or in BufferFull or Unreadable.
	Read uint64
	// BufferFull are samples that the sink had no room for, Unreadable those without
	// a known process or stack, Lost those that the kernel lost.
	BufferFull, Unreadable, Lost uint64
	// Lowered and Raised are the numbers of times that the frequency was halved and
	// doubled again.
	Lowered, Raised uint64
	// PeriodsSkipped is the number of sampling periods that passed while paused.
	PeriodsSkipped uint64
	// Targets is the number of attached targets, Frequency what they are sampled with.
	Targets   int
	Frequency float64
	// Table has the counters of the table of processes.
	Table processes.Stats
}

// Sampler samples running threads.
type Sampler struct {
	cfg    Settings
	loop   *attach.Loop
	reader reader
}

// New returns a sampler that does nothing yet.
func New(cfg Settings) *Sampler {
	if cfg.Stacks == nil {
		cfg.Stacks = unwind.NewStacks(unwind.StacksConfig{})
	}
	cfg.Type, cfg.Refused, cfg.Lost = samples.OnCPU, refused, kernelLost
	s := &Sampler{cfg: cfg}
	s.loop = attach.NewLoop(cfg.Config, cfg.Sink, &s.reader)
	s.reader.cfg, s.reader.loop = cfg, s.loop
	s.reader.full = time.Second / time.Duration(cfg.Frequency)
	s.reader.pace = newPace(cfg.MaxOverhead, cfg.Window, cfg.Frequency)
	return s
}

// refused returns why not even a process may be sampled.
func refused(r perfevent.Rights) error {
	if r.HostWide == nil {
		return nil
	}
	return r.Own
}

// Start finds out what is permitted and begins. If nothing is, it calls Status and
// keeps trying; only kernel stacks that are required and not permitted are an
// error.
func (s *Sampler) Start() error {
	rights := s.cfg.Probe()
	if s.cfg.Kernel == attach.KernelDemanded && rights.Kernel != nil {
		return fmt.Errorf("kernel_stacks is true: %w", rights.Kernel)
	}
	s.loop.Begin(rights)
	return nil
}

// Stop ends sampling and waits for its goroutines.
func (s *Sampler) Stop() { s.loop.Stop() }

// Wake makes the sampler check whether it has to pause or may resume.
func (s *Sampler) Wake() { s.loop.Wake() }

// Targets returns the number of attached targets.
func (s *Sampler) Targets() int { return s.loop.Targets() }

// Stats returns the counters. It is safe for concurrent use.
func (s *Sampler) Stats() Stats {
	r := &s.reader
	st := Stats{
		Read:           r.read.Load(),
		BufferFull:     r.bufferFull.Load(),
		Unreadable:     r.unreadable.Load(),
		Lost:           s.loop.Lost(),
		Lowered:        r.lowered.Load(),
		Raised:         r.raised.Load(),
		PeriodsSkipped: r.skipped.Load(),
		Targets:        s.loop.Targets(),
	}
	if t := r.table.Load(); t != nil {
		st.Table = *t
	}
	if st.Targets > 0 {
		st.Frequency = r.frequency(int(r.halvings.Load()))
	}
	return st
}

var errNothingPermitted = errors.New("nothing can be sampled")

// frequency returns the samples per second after so many halvings.
func (r *reader) frequency(halvings int) float64 {
	return float64(r.cfg.Frequency) / float64(int64(1)<<halvings)
}
