// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package bottleneck measures cpu_bottleneck, which is the time in which at least one
// thread of a unit is on a CPU.
//
// A [Follower] reads the context switches of all CPUs for all units. Its census finds the
// unit of each running process. Its simultaneity measures, for each unit, the time with
// one running thread, with two running threads, and so on. A [Reader] is the monitor of
// one unit. A Reader follows its unit only while the unit's CPU usage can reach the lowest
// threshold.
package bottleneck

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hotprofile/hotprofile/internal/cgroup"
	"github.com/hotprofile/hotprofile/internal/perfevent"
	"github.com/hotprofile/hotprofile/internal/perfevent/switches"
	"github.com/hotprofile/hotprofile/internal/procfs"
	"github.com/hotprofile/hotprofile/internal/token"
)

const (
	defaultMaxSwitches = 200_000
	// maxFollowed is the maximum number of units that are followed at once.
	maxFollowed = 256

	// readEvery is the maximum time between two rounds of reading. lag is the maximum age of
	// values. lag is longer, because a round takes some time and leaves some records for the
	// next round.
	readEvery = 50 * time.Millisecond
	lag       = 100 * time.Millisecond
	// Each round looks up at most queuedPerRound processes from the queue. In addition, inTurn
	// other processes are looked up once per turnEvery. One lookup costs about 10 µs.
	queuedPerRound, inTurn = 64, 10
	turnEvery              = 100 * time.Millisecond

	retryFirst, retryMost = time.Minute, 16 * time.Minute
)

// stream is the interface of [switches.Session].
type stream interface {
	CPUs() []int
	Stale(cpus []int) bool
	Snapshot() error
	Wait(timeout time.Duration) error
	Wake()
	Read(*switches.Record) bool
	Through() int64
	Close() error
}

// ForeignPIDs is returned if the collector reads the procfs of another pid namespace.
// The pids in that procfs would identify the wrong processes.
const ForeignPIDs cgroup.Unavailable = "the collector is in a pid namespace of its own: run it with the host's (--pid=host, hostPID)"

// Options configure a Follower.
type Options struct {
	// Least is the lowest threshold in use, in %.
	Least float64
	// MaxSwitches is the maximum number of switches per second. At a higher rate, the
	// follower stops following. 0 means 200,000.
	MaxSwitches int
	// ForeignPIDs reports whether procfs shows the pids of another pid namespace. If it
	// does, units cannot be followed.
	ForeignPIDs bool
}

// A Follower follows the switches of all CPUs for the units that use enough CPU time to
// matter. It has its own goroutine.
//
// At 200,000 switches per second, following takes 2 % of a core. In addition, the kernel
// needs about 0.3 µs per switch to write the record (BenchmarkHostFollowing). While no
// unit is followed, there is no cost.
//
// A thread counts as running on its CPU until the time of the record, just before
// the next thread replaces it. The kernel stops counting the thread's CPU time
// about 0.5 µs earlier, when the scheduler begins to choose the next thread. The
// measured time therefore differs from the kernel's CPU time by about 0.5 µs per
// switch between a unit and others.
type Follower struct {
	least       float64
	maxSwitches int
	lookup      lookup
	open        func() (stream, error)
	online      func() ([]int, error)
	after       func(time.Duration) <-chan time.Time

	once sync.Once       // starts the goroutine, or prevents its start
	ctx  context.Context // ends when the follower is closed
	stop context.CancelFunc
	wake chan struct{} // there is a unit to follow
	done chan struct{}

	// changes is incremented when followed changes. The follower's goroutine polls changes.
	changes atomic.Uint64

	mu       sync.Mutex // never held for long
	followed map[*followed]struct{}
	stream   stream // nil while no program is attached
	err      error  // why no program is attached
	stats    Stats

	// The fields below belong to the goroutine.

	sim     *simultaneity
	census  *census
	tallies map[*followed]*tally
	seen    uint64 // the last value of changes that was handled
	lost    uint64
}

// Stats describes the work of a Follower since its start.
type Stats struct {
	Attached        uint64 // number of times that it attached
	Switches, Lost  uint64 // number of records
	Surprises       uint64 // see simultaneity
	TooManySwitches uint64 // number of times that it detached because of MaxSwitches
	UnknownCPUs     int
	Through         int64 // all records before this CLOCK_MONOTONIC time were read
	Known           int64 // nanoseconds without an unknown CPU
}

// followed describes a followed unit. Follower.mu guards at.
type followed struct {
	unit    string
	process procfs.Process
	at      []int64 // time by number of running threads, as of the last round
}

// New returns a follower of the units of a tree. It does no work until a unit is busy
// enough.
func New(tree *cgroup.Tree, fs procfs.FS, o Options) *Follower {
	f := &Follower{
		least:       o.Least,
		maxSwitches: o.MaxSwitches,
		lookup:      procLookup{tree, fs},
		open: func() (stream, error) {
			if o.ForeignPIDs {
				return nil, ForeignPIDs
			}
			return openStream()
		},
		online: perfevent.OnlineCPUs,
		after:  time.After,
	}
	return f.prepare()
}

func (f *Follower) prepare() *Follower {
	if f.maxSwitches <= 0 {
		f.maxSwitches = defaultMaxSwitches
	}
	f.ctx, f.stop = context.WithCancel(context.Background())
	f.wake, f.done = make(chan struct{}, 1), make(chan struct{})
	f.followed, f.tallies = map[*followed]struct{}{}, map[*followed]*tally{}
	f.err = errFollowing
	f.sim = newSimultaneity(0)
	f.census = newCensus(f.sim, f.lookup)
	return f
}

// SetLeast sets the lowest threshold in use, in %. Only the goroutine of the
// readers may call SetLeast.
func (f *Follower) SetLeast(least float64) { f.least = least }

// Reader returns the reader of a unit. The unit is a cgroup with the given id. If the id is
// empty, the unit is the process p.
func (f *Follower) Reader(id string, p procfs.Process) *Reader {
	return &Reader{of: f, what: followed{unit: id, process: p}}
}

// Close stops the goroutine and waits until it has ended. A Reader
// must not be read after Close.
func (f *Follower) Close() {
	f.once.Do(func() { close(f.done) }) // the goroutine was never started
	f.stop()
	f.mu.Lock()
	if f.stream != nil {
		f.stream.Wake()
	}
	f.mu.Unlock()
	<-f.done
}

// Stats returns the counts since the start.
func (f *Follower) Stats() Stats {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.stats
}

func (f *Follower) follow(u *followed) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.followed) >= maxFollowed {
		return false
	}
	f.followed[u] = struct{}{}
	f.changes.Add(1)
	f.once.Do(func() { go f.run() })
	token.Put(f.wake)
	return true
}

func (f *Follower) unfollow(u *followed) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.followed, u)
	f.changes.Add(1)
	if len(f.followed) == 0 && f.stream != nil {
		f.stream.Wake()
	}
}

func (f *Follower) wanted() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.followed) > 0
}

// run attaches the follower while units are followed.
func (f *Follower) run() {
	defer close(f.done)
	retry := retryFirst
	for {
		select {
		case <-f.ctx.Done():
			return
		case <-f.wake:
		}
		for f.wanted() && f.ctx.Err() == nil {
			lasted, err := f.attach()
			if err == nil {
				continue // no unit is followed any more, or the CPUs have changed
			}
			if lasted {
				retry = retryFirst
			}
			f.setErr(err)
			select {
			case <-f.ctx.Done():
				return
			case <-f.after(retry):
			}
			retry = min(2*retry, retryMost)
		}
	}
}

func (f *Follower) setErr(err error) {
	if _, ok := errors.AsType[cgroup.Unavailable](err); !ok {
		err = cgroup.Unavailable(err.Error())
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.err = err
}

// attach follows switches until no unit is followed or an error occurs. lasted reports
// whether the stream was read without an error for longer than the time until the next
// attempt.
func (f *Follower) attach() (lasted bool, err error) {
	stream, err := f.open()
	if err != nil {
		return false, err
	}
	f.mu.Lock()
	f.stream, f.err = stream, errFollowing
	f.stats.Attached++
	f.mu.Unlock()
	defer func() {
		f.mu.Lock()
		f.stream = nil
		f.mu.Unlock()
		_ = stream.Close() // the stream is only read, so an error has no effect
		// Exits are not recorded while no stream is attached.
		f.sim.reset(0, f.sim.now)
		f.census.clear()
	}()
	if f.ctx.Err() != nil || !f.wanted() {
		// The follower was stopped, or its last unit was removed, while the stream was being
		// opened. No wait on the stream was in progress then, so the change is checked here.
		return false, nil
	}
	f.sim.reset(len(stream.CPUs()), f.sim.now)
	if err := stream.Snapshot(); err != nil {
		return false, err
	}
	return f.read(stream)
}

// read reads a stream until it ends.
func (f *Follower) read(stream stream) (lasted bool, err error) {
	var (
		rec            switches.Record
		rate           = rateLimit{most: f.maxSwitches}
		begun, checked int64
		turned         int64
	)
	defer func() { lasted = begun != 0 && checked-begun >= int64(retryFirst) }()
	for {
		if err := stream.Wait(readEvery); err != nil {
			return false, err
		}
		if f.ctx.Err() != nil || !f.sync() {
			return false, nil
		}
		for stream.Read(&rec) {
			if rec.Kind == switches.Switch && !rate.allow(rec.Time) {
				f.mu.Lock()
				f.stats.TooManySwitches++
				f.mu.Unlock()
				return false, cgroup.Unavailable(fmt.Sprintf(
					"the host has more than %d switches between threads a second; tried again later", f.maxSwitches))
			}
			f.handle(&rec)
		}
		through := stream.Through()
		f.sim.advance(through)
		f.census.check(queuedPerRound)
		if through-turned >= int64(turnEvery) {
			turned = through
			f.census.checkInTurn(inTurn)
		}
		f.publish(through, rate.take())
		if begun == 0 {
			begun, checked = through, through
		}
		if through-checked < int64(time.Second) {
			continue
		}
		checked = through
		if online, err := f.online(); err == nil && stream.Stale(online) {
			return false, nil // run attaches again
		}
		if f.sim.unknown > 0 {
			if err := stream.Snapshot(); err != nil {
				return false, err
			}
		}
	}
}

// handle applies one record to the census and the simultaneity.
func (f *Follower) handle(rec *switches.Record) {
	switch rec.Kind {
	case switches.Switch:
		f.sim.runs(rec.CPU, f.census.seen(rec.PID, rec.TID), rec.Time, rec.OtherPID)
	case switches.Running: // the process that ran at the time of Snapshot
		f.sim.runs(rec.CPU, f.census.seen(rec.PID, rec.TID), rec.Time, rec.PID)
	case switches.Fork:
		f.census.forked(rec.PID, rec.OtherPID)
	case switches.Exec:
		f.census.executed(rec.PID)
	case switches.Exit:
		f.census.exited(rec.PID)
	case switches.Lost:
		f.sim.lose(rec.CPU, rec.Time)
		f.lost += rec.Count
	}
}

// sync applies the changes of followed. It returns false if no unit is followed.
func (f *Follower) sync() bool {
	changes := f.changes.Load()
	if changes == f.seen {
		return len(f.tallies) > 0
	}
	f.mu.Lock()
	now := maps.Clone(f.followed)
	f.mu.Unlock()
	f.seen = changes
	for u, t := range f.tallies {
		if _, ok := now[u]; !ok {
			f.census.unfollow(u.unit, u.process, t)
			delete(f.tallies, u)
		}
	}
	for u := range now {
		if _, ok := f.tallies[u]; !ok {
			f.tallies[u] = f.census.follow(u.unit, u.process)
		}
	}
	return len(f.tallies) > 0
}

// publish copies the tallies up to a time, so that readers can read them.
func (f *Follower) publish(through int64, switched uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for u, t := range f.tallies {
		f.sim.settle(t)
		u.at = append(u.at[:0], t.at...)
	}
	f.err = nil
	f.stats.Switches += switched
	f.stats.Lost = f.lost
	f.stats.Surprises = f.sim.surprises
	f.stats.Through, f.stats.UnknownCPUs, f.stats.Known = through, f.sim.unknown, f.sim.known
}

// rateLimit counts switches per second.
type rateLimit struct {
	most  int
	begin int64  // start of the current second
	count int    // switches in the current second
	total uint64 // switches since the last call of take
}

// allow counts one switch at t and reports whether the rate is within the limit.
func (r *rateLimit) allow(t int64) bool {
	if t-r.begin >= int64(time.Second) {
		r.begin, r.count = t, 0
	}
	r.count++
	r.total++
	return r.count <= r.most
}

// take returns the number of switches since its last call.
func (r *rateLimit) take() uint64 {
	n := r.total
	r.total = 0
	return n
}
