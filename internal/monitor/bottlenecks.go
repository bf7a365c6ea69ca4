// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package monitor

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hotprofile/hotprofile/internal/cgroup"
	"github.com/hotprofile/hotprofile/internal/perfevent"
	"github.com/hotprofile/hotprofile/internal/perfevent/switches"
	"github.com/hotprofile/hotprofile/internal/procfs"
)

const (
	defaultMaxSwitches = 200_000
	// maxFollowed bounds the units that are followed at once.
	maxFollowed = 256

	// readEvery is the most time between two rounds of reading; with what a
	// round leaves for the next one and takes itself, figures are at most 100 ms
	// old.
	readEvery = 50 * time.Millisecond
	lag       = 100 * time.Millisecond
	// What is looked up of processes each round, and in turn each turnEvery:
	// about 10 µs each.
	queuedPerRound, inTurn = 64, 10
	turnEvery              = 100 * time.Millisecond

	retryFirst, retryMost = time.Minute, 16 * time.Minute
)

// switchStream is a [switches.Session].
type switchStream interface {
	CPUs() []int
	Stale(cpus []int) bool
	Snapshot() error
	Wait(timeout time.Duration) error
	Wake()
	Read(*switches.Record) bool
	Through() int64
	Close() error
}

// bottleneckOptions are what bottlenecks are made with.
type bottleneckOptions struct {
	// Least is the lowest threshold in use, in %.
	Least float64
	// MaxSwitches is how many switches a second the host may have; 0 means
	// 200,000.
	MaxSwitches int
}

// bottlenecks follow the switches of all CPUs on behalf of the units that use
// enough CPU time for it to matter, in a goroutine of their own.
//
// At 200,000 switches a second that takes 2 % of a core here, and about 0.3 µs of
// each switch in the kernel, which writes the records (BenchmarkHostFollowing).
// While nothing is followed it takes nothing.
//
// The figures are those of the records: a thread is on a CPU until the moment at
// which the next one is about to take its place. The kernel's own account of CPU
// time ends where the scheduler begins to choose that one, some 0.5 µs earlier,
// so that the two differ by as much for each switch between a unit and others.
type bottlenecks struct {
	least       float64
	maxSwitches int
	lookup      lookup
	open        func() (switchStream, error)
	online      func() ([]int, error)
	after       func(time.Duration) <-chan time.Time

	once sync.Once // starts the goroutine
	stop chan struct{}
	wake chan struct{} // something is to be followed
	done chan struct{}

	// wants counts changes of followed, which the goroutine looks for.
	wants atomic.Uint64

	mu       sync.Mutex // held for moments only
	followed map[*followed]struct{}
	stream   switchStream // nil while nothing is attached
	err      error        // why nothing is attached
	stats    bottleneckStats

	// Of the goroutine alone.

	sim     *simultaneity
	census  *census
	tallies map[*followed]*tally
	seen    uint64 // of wants
	lost    uint64
}

// bottleneckStats is what following switches found out about itself.
type bottleneckStats struct {
	Attached        uint64 // how often
	Switches, Lost  uint64
	Late, Surprises uint64 // see simultaneity
	Overflows       uint64 // of the census
	TooManySwitches uint64 // how often it was given up for that
	Processes       int    // in the census
	UnknownCPUs     int
	Through         int64 // what was read, as CLOCK_MONOTONIC
	Known           int64 // nanoseconds without a gap
}

// followed is a unit that is followed; what it holds is guarded by
// bottlenecks.mu.
type followed struct {
	unit    string
	process procfs.Process
	at      []int64 // by k, as of the last round
}

// newBottlenecks makes them for the units of a source. Nothing runs before a
// unit is busy enough.
func newBottlenecks(s *Source, o bottleneckOptions) *bottlenecks {
	b := &bottlenecks{
		least:       o.Least,
		maxSwitches: o.MaxSwitches,
		lookup:      procLookup{s},
		open: func() (switchStream, error) {
			if s.clocks == nil || perfevent.Probe().ForeignPIDNamespace {
				return nil, ForeignPIDs
			}
			return switches.Open(switches.Options{})
		},
		online: perfevent.OnlineCPUs,
		after:  time.After,
	}
	return b.prepare()
}

func (b *bottlenecks) prepare() *bottlenecks {
	if b.maxSwitches <= 0 {
		b.maxSwitches = defaultMaxSwitches
	}
	b.stop, b.wake, b.done = make(chan struct{}), make(chan struct{}, 1), make(chan struct{})
	b.followed, b.tallies = map[*followed]struct{}{}, map[*followed]*tally{}
	b.err = errFollowing
	b.sim = newSimultaneity(0)
	b.census = newCensus(b.sim, b.lookup)
	return b
}

// unit returns the reader for a unit that is a cgroup, by its id.
func (b *bottlenecks) unit(id string) *bottleneck {
	return &bottleneck{of: b, what: followed{unit: id}}
}

// process returns the reader for a unit that is a process.
func (b *bottlenecks) process(p procfs.Process) *bottleneck {
	return &bottleneck{of: b, what: followed{process: p}}
}

// close stops the goroutine and waits for it. Nothing is read after it.
func (b *bottlenecks) close() {
	b.once.Do(func() { close(b.done) }) // it was never started
	select {
	case <-b.stop:
	default:
		close(b.stop)
	}
	b.mu.Lock()
	if b.stream != nil {
		b.stream.Wake()
	}
	b.mu.Unlock()
	<-b.done
}

// Stats returns what was found out since the beginning.
func (b *bottlenecks) Stats() bottleneckStats {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.stats
}

func (b *bottlenecks) follow(f *followed) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.followed) >= maxFollowed {
		return false
	}
	b.followed[f] = struct{}{}
	b.wants.Add(1)
	b.once.Do(func() { go b.run() })
	select {
	case b.wake <- struct{}{}:
	default:
	}
	return true
}

func (b *bottlenecks) unfollow(f *followed) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.followed, f)
	b.wants.Add(1)
	if len(b.followed) == 0 && b.stream != nil {
		b.stream.Wake()
	}
}

func (b *bottlenecks) wanted() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.followed) > 0
}

func (b *bottlenecks) stopped() bool {
	select {
	case <-b.stop:
		return true
	default:
		return false
	}
}

// run attaches while something is to be followed.
func (b *bottlenecks) run() {
	defer close(b.done)
	retry := retryFirst
	for {
		select {
		case <-b.stop:
			return
		case <-b.wake:
		}
		for b.wanted() && !b.stopped() {
			lasted, err := b.attach()
			if err == nil {
				continue // nothing to follow any more, or other CPUs
			}
			if lasted {
				retry = retryFirst
			}
			b.setErr(err)
			select {
			case <-b.stop:
				return
			case <-b.after(retry):
			}
			retry = min(2*retry, retryMost)
		}
	}
}

func (b *bottlenecks) setErr(err error) {
	var reason cgroup.Unavailable
	if !errors.As(err, &reason) {
		err = cgroup.Unavailable(err.Error())
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.err = err
}

// attach follows switches until there is nothing to follow, or something stands
// in the way. lasted says that it went well for as long as it takes to try again.
func (b *bottlenecks) attach() (lasted bool, err error) {
	stream, err := b.open()
	if err != nil {
		return false, err
	}
	b.mu.Lock()
	b.stream, b.err = stream, errFollowing
	b.stats.Attached++
	b.mu.Unlock()
	defer func() {
		b.mu.Lock()
		b.stream = nil
		b.mu.Unlock()
		_ = stream.Close() // of what was only read
		// Exits are not told of while nothing is attached.
		b.sim.reset(0, b.sim.now)
		b.census.clear()
	}()
	if b.stopped() || !b.wanted() {
		return false, nil // that was while the stream was opened, so nothing woke it
	}
	b.sim.reset(len(stream.CPUs()), b.sim.now)
	if err := stream.Snapshot(); err != nil {
		return false, err
	}
	return b.read(stream)
}

// read is the life of a stream.
func (b *bottlenecks) read(stream switchStream) (lasted bool, err error) {
	var (
		rec            switches.Record
		rate           = rateLimit{most: b.maxSwitches}
		begun, checked int64
		turned         int64
	)
	defer func() { lasted = begun != 0 && checked-begun >= int64(retryFirst) }()
	for {
		if err := stream.Wait(readEvery); err != nil {
			return false, err
		}
		if b.stopped() || !b.sync() {
			return false, nil
		}
		for stream.Read(&rec) {
			if rec.Kind == switches.Switch && !rate.allow(rec.Time) {
				b.mu.Lock()
				b.stats.TooManySwitches++
				b.mu.Unlock()
				return false, cgroup.Unavailable(fmt.Sprintf(
					"the host has more than %d switches between threads a second (max_switches_per_second); tried again later", b.maxSwitches))
			}
			b.handle(&rec)
		}
		through := stream.Through()
		b.sim.advance(through)
		b.census.check(queuedPerRound)
		if through-turned >= int64(turnEvery) {
			turned = through
			b.census.checkInTurn(inTurn)
		}
		b.publish(through, rate.take())
		if begun == 0 {
			begun, checked = through, through
		}
		if through-checked < int64(time.Second) {
			continue
		}
		checked = through
		if online, err := b.online(); err == nil && stream.Stale(online) {
			return false, nil // attach anew
		}
		if b.sim.unknown > 0 {
			if err := stream.Snapshot(); err != nil {
				return false, err
			}
		}
	}
}

// handle tells the census and the simultaneity of one record.
func (b *bottlenecks) handle(rec *switches.Record) {
	switch rec.Kind {
	case switches.Switch:
		b.sim.runs(rec.CPU, b.census.seen(rec.PID, rec.TID), rec.Time, rec.OtherPID)
	case switches.Running: // it was there before it was looked at
		b.sim.runs(rec.CPU, b.census.seen(rec.PID, rec.TID), rec.Time, rec.PID)
	case switches.Fork:
		b.census.forked(rec.PID, rec.OtherPID)
	case switches.Exec:
		b.census.executed(rec.PID)
	case switches.Exit:
		b.census.exited(rec.PID)
	case switches.Lost:
		b.sim.lose(rec.CPU, rec.Time)
		b.lost += rec.Count
	}
}

// sync takes over what is to be followed; false: nothing.
func (b *bottlenecks) sync() bool {
	wants := b.wants.Load()
	if wants == b.seen {
		return len(b.tallies) > 0
	}
	b.mu.Lock()
	now := make(map[*followed]struct{}, len(b.followed))
	for f := range b.followed {
		now[f] = struct{}{}
	}
	b.mu.Unlock()
	b.seen = wants
	for f, t := range b.tallies {
		if _, ok := now[f]; !ok {
			b.census.unfollow(f.unit, f.process, t)
			delete(b.tallies, f)
		}
	}
	for f := range now {
		if _, ok := b.tallies[f]; !ok {
			b.tallies[f] = b.census.follow(f.unit, f.process)
		}
	}
	return len(b.tallies) > 0
}

// publish lets readers have what is known through a moment.
func (b *bottlenecks) publish(through int64, switches uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for f, t := range b.tallies {
		b.sim.settle(t)
		f.at = append(f.at[:0], t.at...)
	}
	b.err = nil
	b.stats.Switches += switches
	b.stats.Lost = b.lost
	b.stats.Late, b.stats.Surprises = b.sim.late, b.sim.surprises
	b.stats.Overflows, b.stats.Processes = b.census.overflows, len(b.census.byPID)
	b.stats.Through, b.stats.UnknownCPUs, b.stats.Known = through, b.sim.unknown, b.sim.known
}

// A rateLimit counts switches per second.
type rateLimit struct {
	most   int
	begin  int64 // of the second
	count  int   // in it
	counts uint64
}

// allow counts one switch at t. It returns false where there are too many.
func (r *rateLimit) allow(t int64) bool {
	if t-r.begin >= int64(time.Second) {
		r.begin, r.count = t, 0
	}
	r.count++
	r.counts++
	return r.count <= r.most
}

// take returns how many there were since it was last called.
func (r *rateLimit) take() uint64 {
	n := r.counts
	r.counts = 0
	return n
}
