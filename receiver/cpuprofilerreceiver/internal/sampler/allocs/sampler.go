// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package allocs

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/hotprofile/hotprofile/internal/perfevent/uprobe"
	"github.com/hotprofile/hotprofile/internal/procfs"
	"github.com/hotprofile/hotprofile/internal/samples"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/attach"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/processes"
)

// Sink is where samples go.
type Sink interface {
	// AddBoth takes an allocation, which is an event of two types, at time
	// (CLOCK_MONOTONIC, in nanoseconds), and reports whether there was room for
	// both.
	AddBoth(objects, space samples.Key, time, count, bytes int64) bool
	// KernelLost says that the kernel could not hand over n events of a type's
	// sampler.
	KernelLost(t *samples.Type, n uint64)
	// ReadUpTo says that all there was before time has been added.
	ReadUpTo(time int64)
}

// Settings are what a Sampler needs to know.
type Settings struct {
	// Root is where the host's root is mounted; "" is "/".
	Root string
	// Table is the processes, used by the reading goroutine alone.
	Table *processes.Table
	Sink  Sink
	// Limit is how many samples of a process are kept per minute; 0 means all.
	Limit int
	// Interval is how often Flush is called.
	Interval time.Duration
	// MaxEvents bounds the perf event descriptors: one per CPU, and one per CPU
	// for each program.
	MaxEvents int
	// ThreadName and ThreadID say which attributes tell threads apart.
	ThreadName, ThreadID bool
	// When says on what it runs, for the line that says what is sampled.
	When   string
	Logger *zap.Logger
	// Now is CLOCK_MONOTONIC in nanoseconds.
	Now func() int64
	// Random is the source of chance, used by the reading goroutine alone; nil is
	// one with a seed of its own.
	Random *rand.Rand
	// Quiet is how long a program is sampled without an event until that is said;
	// 0 means a minute.
	Quiet time.Duration
}

// Stats are the counters of a Sampler since it was made.
type Stats struct {
	// Read are the allocations of wanted processes that were read; each of them is
	// in the sink, waits for Flush, or is counted by one of the next three.
	Read uint64
	// BufferFull are those that the sink had no room for, Limited those that the
	// limiter left out, Unreadable those whose stack, size or process could not be
	// made out.
	BufferFull, Limited, Unreadable uint64
	// Lost is what the kernel could not hand over.
	Lost uint64
	// Processes are the processes that are sampled, Programs those that a probe is
	// in.
	Processes, Programs int
	// Table is what the table of processes said last.
	Table processes.Stats
}

// Sampler samples allocations of the processes that Set names.
type Sampler struct {
	cfg   Settings
	files files
	// most is how many samples of a process are kept between two calls of Flush; 0
	// means all.
	most int

	cancel  context.CancelFunc
	started atomic.Bool
	done    sync.WaitGroup
	// stopped is closed when the reader will answer no more.
	stopped chan struct{}

	// wanted holds the last Set that was not looked at yet.
	wanted chan []procfs.Process
	// asked are requests to the reader, wake is for a reader without uprobes.
	asked chan request
	wake  chan struct{}
	// again makes the attacher look at the same processes once more.
	again chan struct{}

	// uprobes is there while anything is sampled, members who is. The attacher
	// owns both; the reader reads them.
	uprobes atomic.Pointer[uprobe.Session]
	members atomic.Pointer[map[int]*member]

	read, bufferFull, limited, unreadable, lost atomic.Uint64
	processes, programs                         atomic.Int64
	table                                       atomic.Pointer[processes.Stats]

	attacher attacher
	reader   reader
}

// request asks the reader to read what is in the rings, and maybe to hand over
// what it has kept.
type request struct {
	flush bool
	done  chan struct{}
}

// New returns a sampler that does nothing yet.
func New(cfg Settings) *Sampler {
	if cfg.Root == "" {
		cfg.Root = "/"
	}
	if cfg.Quiet <= 0 {
		cfg.Quiet = time.Minute
	}
	if cfg.Random == nil {
		cfg.Random = rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64()))
	}
	s := &Sampler{
		cfg:     cfg,
		files:   files{procfs.At(cfg.Root)},
		stopped: make(chan struct{}),
		wanted:  make(chan []procfs.Process, 1),
		asked:   make(chan request),
		wake:    make(chan struct{}, 1),
		again:   make(chan struct{}, 1),
	}
	if cfg.Limit > 0 {
		s.most = max(1, int(float64(cfg.Limit)*cfg.Interval.Minutes()))
	}
	s.members.Store(&map[int]*member{})
	s.attacher.Sampler, s.reader.Sampler = s, s
	s.reader.losses = attach.NewLosses(cfg.Logger, samples.AllocSpace.Sampler)
	s.attacher.prepare()
	return s
}

// Start begins; nothing is sampled until Set.
func (s *Sampler) Start() {
	ctx, cancel := context.WithCancel(context.Background())
	s.cancel = cancel
	s.done.Go(func() { s.attacher.run(ctx) })
	s.done.Go(func() { s.reader.run(ctx) })
	s.started.Store(true)
}

// Set says which processes are to be sampled from now on. What they run is looked
// at soon after, on another goroutine, and again with each Set, so call it every
// discovery interval though nothing has changed.
func (s *Sampler) Set(wanted []procfs.Process) {
	for {
		select {
		case s.wanted <- wanted:
			return
		default:
		}
		select {
		case <-s.wanted: // is out of date
		default:
		}
	}
}

// Flush puts what was kept since the last Flush into the sink. Call it right
// before the sink's content is taken.
func (s *Sampler) Flush() { s.ask(true) }

// ask has the reader read what is there, and waits for it.
func (s *Sampler) ask(flush bool) {
	if !s.started.Load() { // whoever flushes may run before
		return
	}
	req := request{flush: flush, done: make(chan struct{})}
	s.nudge()
	for {
		select {
		case s.asked <- req:
			<-req.done
			return
		case <-s.stopped:
			return
		case <-time.After(askAgain): // it may have been nudged before it waited
			s.nudge()
		}
	}
}

// askAgain bounds how long a request may go unheard.
const askAgain = 20 * time.Millisecond

// nudge makes the reader look at once at what there is to do.
func (s *Sampler) nudge() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
	if u := s.uprobes.Load(); u != nil {
		u.Wake()
	}
}

// Stop ends sampling, takes the probes away, hands over what was kept, and waits
// for the sampler's goroutines.
func (s *Sampler) Stop() {
	if s.cancel == nil {
		return
	}
	s.cancel()
	s.nudge()
	s.done.Wait()
}

// Stats returns the counters; from any goroutine.
func (s *Sampler) Stats() Stats {
	st := Stats{
		Read:       s.read.Load(),
		BufferFull: s.bufferFull.Load(),
		Limited:    s.limited.Load(),
		Unreadable: s.unreadable.Load(),
		Lost:       s.lost.Load(),
		Processes:  int(s.processes.Load()),
		Programs:   int(s.programs.Load()),
	}
	if t := s.table.Load(); t != nil {
		st.Table = *t
	}
	return st
}
