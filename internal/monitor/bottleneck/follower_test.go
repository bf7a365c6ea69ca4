// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package bottleneck

import (
	"errors"
	"io/fs"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/hotprofile/hotprofile/internal/cgroup"
	"github.com/hotprofile/hotprofile/internal/perfevent"
	"github.com/hotprofile/hotprofile/internal/perfevent/switches"
	"github.com/hotprofile/hotprofile/internal/procfs"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const second = int64(time.Second)

// round is the input of one round of a fake stream. through is the time up to which the
// records are complete.
type round struct {
	records []switches.Record
	through int64
}

// fakeStream returns the rounds that the test sends.
type fakeStream struct {
	cpus   []int
	rounds chan round
	woken  chan struct{}
	now    round
	looks  atomic.Int64
	closed atomic.Bool
	ended  atomic.Bool // a CPU was offline since the last round
}

func (f *fakeStream) CPUs() []int { return f.cpus }

func (f *fakeStream) Stale(cpus []int) bool { return f.ended.Load() || !slices.Equal(cpus, f.cpus) }
func (f *fakeStream) Snapshot() error       { f.looks.Add(1); return nil }
func (f *fakeStream) Wake() {
	select {
	case f.woken <- struct{}{}:
	default:
	}
}

func (f *fakeStream) Wait(time.Duration) error {
	select {
	case f.now = <-f.rounds:
	case <-f.woken:
	}
	return nil
}

func (f *fakeStream) Read(rec *switches.Record) bool {
	if len(f.now.records) == 0 {
		return false
	}
	*rec, f.now.records = f.now.records[0], f.now.records[1:]
	return true
}

func (f *fakeStream) Through() int64 { return f.now.through }
func (f *fakeStream) Close() error   { f.closed.Store(true); return nil }

type fakeProcesses struct {
	mu      sync.Mutex
	units   map[int]string
	threads map[int]string // units by thread ID, for processes whose first thread is ending
	starts  map[int]uint64
}

func (f *fakeProcesses) unit(pid int) (string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if u, ok := f.units[pid]; ok {
		return u, nil
	}
	return "", fs.ErrNotExist
}

func (f *fakeProcesses) unitOfThread(_, tid int) (string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if u, ok := f.threads[tid]; ok {
		return u, nil
	}
	return "", errEnding
}

func (f *fakeProcesses) start(pid int) (uint64, error) {
	if start, ok := f.starts[pid]; ok {
		return start, nil
	}
	return 0, fs.ErrNotExist
}

func (f *fakeProcesses) put(pid int, unit string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.units[pid] = unit
}

// rig is a follower with fake streams and fake processes.
type rig struct {
	*Follower
	t         *testing.T
	processes *fakeProcesses
	streams   chan *fakeStream // streams that were opened
	failure   atomic.Pointer[error]
	cpus      atomic.Pointer[[]int]
	waits     chan time.Duration // waiting times between two attempts
	retry     chan time.Time
	now       time.Time
}

func newRig(t *testing.T, cpus int) *rig {
	r := &rig{
		t: t, streams: make(chan *fakeStream, 8), waits: make(chan time.Duration), retry: make(chan time.Time), now: time.Now(),
		processes: &fakeProcesses{units: map[int]string{}, threads: map[int]string{}, starts: map[int]uint64{}},
	}
	r.setOnline(cpus)
	r.Follower = (&Follower{
		least: 80, maxSwitches: 1000, lookup: r.processes,
		open: func() (stream, error) {
			if err := r.failure.Load(); err != nil {
				return nil, *err
			}
			f := &fakeStream{cpus: *r.cpus.Load(), rounds: make(chan round), woken: make(chan struct{}, 1)}
			r.streams <- f
			return f, nil
		},
		online: func() ([]int, error) { return *r.cpus.Load(), nil },
		after: func(d time.Duration) <-chan time.Time {
			r.waits <- d
			return r.retry
		},
	}).prepare()
	t.Cleanup(r.Close)
	return r
}

func (r *rig) setOnline(n int) {
	var cpus []int
	for cpu := range n {
		cpus = append(cpus, cpu)
	}
	r.cpus.Store(&cpus)
}

// read advances the clock by one second. Then it reads n.
func (r *rig) read(n *Reader, cores float64) (busy, known float64, err error) {
	r.now = r.now.Add(time.Second)
	return n.Read(r.now, cores)
}

// play sends a round to a stream and waits until the follower has counted the round.
func (r *rig) play(f *fakeStream, through int64, records ...switches.Record) {
	r.t.Helper()
	select {
	case f.rounds <- round{records, through}:
	case <-time.After(30 * time.Second):
		r.t.Fatal("the stream is not read")
	}
	require.Eventually(r.t, func() bool { return r.Stats().Through == through }, 30*time.Second, time.Millisecond)
}

func (r *rig) opened() *fakeStream {
	r.t.Helper()
	select {
	case f := <-r.streams:
		return f
	case <-time.After(30 * time.Second):
		r.t.Fatal("no stream was opened")
		return nil
	}
}

func switchTo(at int64, cpu, pid int) switches.Record {
	return switches.Record{Kind: switches.Switch, Time: at, CPU: cpu, PID: pid, TID: pid, OtherPID: -1}
}

func TestSwitchesAreFollowedOnlyForUnitsThatCanReachTheThreshold(t *testing.T) {
	r := newRig(t, 2)
	r.processes.put(7, "a")
	n := r.Reader("a", procfs.Process{})

	busy, known, err := r.read(n, 0)
	require.Equal(t, []any{0.0, 0.0, nil}, []any{busy, known, err})
	_, _, err = r.read(n, 0.8) // the threshold of 80 is not exceeded
	require.Equal(t, errNotFollowed, err)
	require.Empty(t, r.streams)
	require.Zero(t, r.Stats().Attached)

	_, _, err = r.read(n, 0.9)
	require.Equal(t, errFollowing, err)
	f := r.opened()
	r.play(f, 1*second, switchTo(second/2, 0, 7), switchTo(second/2, 1, 0))
	busy, known, err = r.read(n, 0.9)
	require.NoError(t, err)
	require.Equal(t, []float64{0.5, 0.5}, []float64{busy, known})
	r.play(f, 2*second, switchTo(1750_000_000, 0, 0))
	busy, known, err = r.read(n, 0.75)
	require.NoError(t, err)
	require.Equal(t, []float64{1.25, 1.5}, []float64{busy, known})
	require.Equal(t, []int64{250_000_000, 1_250_000_000, 0}, n.at)

	// Below the threshold, the unit is followed for followFor. The follower then closes the
	// stream.
	for i := int64(0); n.f != nil; i++ {
		require.LessOrEqual(t, i, int64(followFor/time.Second))
		require.False(t, f.closed.Load())
		r.play(f, (3+i)*second)
		_, _, err = r.read(n, 0.02)
		require.NoError(t, err)
	}
	require.Eventually(t, f.closed.Load, 30*time.Second, time.Millisecond)
	_, _, err = r.read(n, 0.02)
	require.Equal(t, errNotFollowed, err)

	// When the unit is followed again, the sums continue.
	before, knownBefore, _ := r.read(n, 0.9)
	f = r.opened()
	r.play(f, 100*second, switchTo(99*second, 0, 7), switchTo(99*second, 1, 0))
	busy, known, err = r.read(n, 1)
	require.NoError(t, err)
	require.InDelta(t, 1, busy-before, 1e-9)
	require.InDelta(t, 1, known-knownBefore, 1e-9)
}

func TestNegligibleUsageIsKnownWithoutFollowing(t *testing.T) {
	r := newRig(t, 2)
	n := r.Reader("a", procfs.Process{})
	r.read(n, 0)
	for range 10 {
		_, _, err := r.read(n, 0.005)
		require.NoError(t, err)
	}
	busy, known, err := r.read(n, 0.5)
	require.Equal(t, errNotFollowed, err)
	require.InDelta(t, 0.05, busy, 1e-6)
	require.InDelta(t, 10, known, 1e-6)
	require.Empty(t, r.streams)
}

func TestOneStreamServesAllUnitsCgroupsAndProcesses(t *testing.T) {
	r := newRig(t, 2)
	r.processes.put(7, "a")
	r.processes.put(8, "b")
	r.processes.starts[8] = 42
	a, b, p, other := r.Reader("a", procfs.Process{}), r.Reader("b", procfs.Process{}), r.Reader("", procfs.Process{PID: 8, Start: 42}), r.Reader("", procfs.Process{PID: 8, Start: 41})
	all := []*Reader{a, b, p, other}
	for _, n := range all {
		r.read(n, 1)
	}
	f := r.opened()
	r.play(f, second, switchTo(0, 0, 7), switchTo(0, 1, 8), switchTo(second/2, 0, 8), switchTo(3*second/4, 1, 0))
	for i, want := range [][]int64{{second / 2, second / 2, 0}, {0, 3 * second / 4, second / 4}, {0, 3 * second / 4, second / 4}, {second, 0, 0}} {
		all[i].advance(time.Second, 0)
		require.Equal(t, want, all[i].at, "reader %d", i)
	}
	require.Equal(t, uint64(1), r.Stats().Attached)
	b.Close()
	a.Close()
	p.Close()
	require.False(t, f.closed.Load())
	other.Close()
	require.Eventually(t, f.closed.Load, 30*time.Second, time.Millisecond)
	require.Empty(t, r.streams)
}

func TestLostRecordsAreAGap(t *testing.T) {
	r := newRig(t, 1)
	r.processes.put(7, "a")
	n := r.Reader("a", procfs.Process{})
	r.read(n, 1)
	f := r.opened()
	r.play(f, second, switchTo(0, 0, 7))
	_, _, err := r.read(n, 1)
	require.NoError(t, err)
	lost := switches.Record{Kind: switches.Lost, Time: 5 * second / 4, Count: 99}
	r.play(f, 2*second, lost)
	busy, known, err := r.read(n, 1)
	require.Equal(t, errUnseen, err)
	require.Equal(t, []float64{1.25, 1.25}, []float64{busy, known})
	require.Equal(t, uint64(99), r.Stats().Lost)
	require.Equal(t, int64(2), f.looks.Load(), "a snapshot finds what runs")
	r.play(f, 3*second, switches.Record{Kind: switches.Running, Time: 2100_000_000, PID: 7})
	busy, known, err = r.read(n, 1)
	require.NoError(t, err)
	require.InDelta(t, 2.15, busy, 1e-9)
	require.InDelta(t, 2.15, known, 1e-9)
}

func TestFiguresThatDisagreeWithTheUsageAreAGap(t *testing.T) {
	r := newRig(t, 1)
	n := r.Reader("a", procfs.Process{})
	r.read(n, 1)
	f := r.opened()
	r.play(f, second, switchTo(0, 0, 0))
	_, _, err := r.read(n, 1)
	require.Equal(t, errDisagrees, err)
}

func TestTooManySwitchesMakeItUnavailableForAWhile(t *testing.T) {
	r := newRig(t, 1)
	r.processes.put(7, "a")
	n := r.Reader("a", procfs.Process{})
	r.read(n, 1)
	wait := retryFirst
	for range 6 {
		f := r.opened()
		var records []switches.Record
		for i := range int64(1001) {
			records = append(records, switchTo(second+i, 0, 7*int(i%2)))
		}
		f.rounds <- round{records, 2 * second}
		require.Equal(t, wait, <-r.waits)
		require.True(t, f.closed.Load())
		_, _, err := r.read(n, 1)
		require.Equal(t, cgroup.Unavailable("the host has more than 1000 switches between threads a second; tried again later"), err)
		r.retry <- time.Time{}
		wait = min(2*wait, retryMost)
	}
	// If the rate stays within the limit for longer than the first wait, the next wait is as
	// short as the first wait.
	f := r.opened()
	var records []switches.Record
	for i := range int64(1000) {
		records = append(records, switchTo(second+i, 0, 7*int(i%2)))
	}
	r.play(f, 2*second, records...)
	r.play(f, 70*second)
	_, _, err := r.read(n, 1)
	require.NotErrorAs(t, err, new(cgroup.Unavailable))
	for i := range int64(1001) {
		records = append(records, switchTo(80*second+i, 0, 7*int(i%2)))
	}
	f.rounds <- round{records[1000:], 81 * second}
	require.Equal(t, retryFirst, <-r.waits)
	require.Equal(t, uint64(7), r.Stats().TooManySwitches)
}

func TestItIsUnavailableWithoutTheRight(t *testing.T) {
	r := newRig(t, 1)
	for _, want := range []error{
		&perfevent.RightsError{What: "following every switch", Needed: []string{"CAP_PERFMON"}},
		ForeignPIDs,
	} {
		r.failure.Store(&want)
		n := r.Reader("a", procfs.Process{})
		r.read(n, 1)
		<-r.waits
		_, _, err := r.read(n, 1)
		require.Equal(t, cgroup.Unavailable(want.Error()), err)
		n.Close()
		r.retry <- time.Time{}
	}
}

func TestPIDsOfAnotherNamespaceAreNotFollowed(t *testing.T) {
	b := New(nil, procfs.FS{}, Options{ForeignPIDs: true})
	defer b.Close()
	_, err := b.open()
	require.Equal(t, ForeignPIDs, err)
}

func TestAChangeOfCPUsReattaches(t *testing.T) {
	r := newRig(t, 1)
	r.processes.put(7, "a")
	n := r.Reader("a", procfs.Process{})
	r.read(n, 1)
	f := r.opened()
	r.play(f, second, switchTo(0, 0, 7))
	r.setOnline(2)
	f.rounds <- round{nil, 2 * second}
	f = r.opened()
	require.Equal(t, []int{0, 1}, f.CPUs())
	r.play(f, 4*second, switchTo(3*second, 0, 7), switchTo(3*second, 1, 7))
	_, known, err := r.read(n, 1.5)
	require.NoError(t, err)
	require.Equal(t, 3.0, known)
	require.Equal(t, []int64{0, 2 * second, second}, n.at)

	f.ended.Store(true) // the CPU was offline, but is online again
	f.rounds <- round{nil, 5 * second}
	require.Equal(t, []int{0, 1}, r.opened().CPUs())
	require.True(t, f.closed.Load())
}

func TestFollowedUnitsAreBounded(t *testing.T) {
	r := newRig(t, 1)
	var all []*Reader
	for range maxFollowed {
		n := r.Reader("a", procfs.Process{})
		_, _, err := r.read(n, 1)
		require.Equal(t, errFollowing, err)
		all = append(all, n)
	}
	n := r.Reader("b", procfs.Process{})
	_, _, err := r.read(n, 1)
	require.Equal(t, tooManyUnits, err)
	all[0].Close()
	_, _, err = r.read(n, 1)
	require.Equal(t, errFollowing, err)
}

func TestCloseEndsEveryState(t *testing.T) {
	for name, prepare := range map[string]func(*rig){
		"nothing was ever followed": func(*rig) {},
		"while attached": func(r *rig) {
			r.read(r.Reader("a", procfs.Process{}), 1)
			r.play(r.opened(), second)
		},
		"while waiting for the next try": func(r *rig) {
			failure := errors.New("no")
			r.failure.Store(&failure)
			r.read(r.Reader("a", procfs.Process{}), 1)
			<-r.waits
		},
		"right after something is to be followed": func(r *rig) { r.read(r.Reader("a", procfs.Process{}), 1) },
		"while the stream is opened": func(r *rig) {
			open := r.open
			r.open = func() (stream, error) {
				<-r.ctx.Done() // a stream that is not open yet cannot be woken
				return open()
			}
			r.read(r.Reader("a", procfs.Process{}), 1)
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, 1)
			prepare(r)
			r.Close()
			r.Close()
		})
	}
}

func TestAReadingDoesNotAllocate(t *testing.T) {
	r := newRig(t, 4)
	n := r.Reader("a", procfs.Process{})
	r.read(n, 1)
	f := r.opened()
	r.play(f, second)
	r.read(n, 1)
	require.Zero(t, testing.AllocsPerRun(100, func() { r.read(n, 1) }))
}

// BenchmarkHandleSwitch handles decoded records. The baseline only looks up the process.
func BenchmarkHandleSwitch(b *testing.B) {
	p := &fakeProcesses{units: map[int]string{}, threads: map[int]string{}}
	bs := (&Follower{lookup: p}).prepare()
	bs.sim.reset(16, 0)
	bs.census.follow("a", procfs.Process{})
	for pid := 1; pid <= 1000; pid++ {
		p.put(pid, []string{"a", "b"}[pid%2])
		bs.census.seen(pid, pid)
	}
	b.Run("look", func(b *testing.B) {
		b.ReportAllocs()
		for pid := 0; b.Loop(); pid++ {
			bs.census.seen(1+pid%1000, 0)
		}
	})
	b.Run("handle", func(b *testing.B) {
		b.ReportAllocs()
		rec := switches.Record{Kind: switches.Switch, OtherPID: -1}
		for pid := 0; b.Loop(); pid++ {
			rec.PID, rec.CPU, rec.Time = 1+pid%1000, pid%16, rec.Time+1
			bs.handle(&rec)
		}
	})
}

func newTestCensus() (*census, *fakeProcesses, *tally) {
	sim := newSimultaneity(2)
	p := &fakeProcesses{units: map[int]string{}, threads: map[int]string{}, starts: map[int]uint64{}}
	c := newCensus(sim, p)
	return c, p, c.follow("a", procfs.Process{})
}

func TestAChildCountsForItsParentsUnit(t *testing.T) {
	c, p, a := newTestCensus()
	p.put(7, "a")
	require.Equal(t, []*tally{a}, c.seen(7, 7).tallies)
	c.forked(8, 7) // ended before the lookup
	c.check(10)
	child := c.seen(8, 8)
	require.True(t, child.known)
	require.Equal(t, []*tally{a}, child.tallies)

	p.put(9, "b")
	c.forked(9, 7) // moved to another cgroup while it was forked
	require.Equal(t, []*tally{a}, c.seen(9, 9).tallies)
	c.check(10)
	require.Empty(t, c.seen(9, 9).tallies)

	require.False(t, c.seen(10, 10).known, "its parent was not seen")
	c.forked(11, 10)
	require.False(t, c.seen(11, 11).known)
	p.put(11, "a")
	c.executed(11)
	c.check(10)
	require.Equal(t, []*tally{a}, c.seen(11, 11).tallies)
}

func TestAProcessThatMovesIsFound(t *testing.T) {
	c, p, a := newTestCensus()
	p.put(7, "b")
	moved := c.seen(7, 7)
	require.Empty(t, moved.tallies)
	p.put(7, "a")
	c.executed(7)
	c.check(10)
	require.Equal(t, []*tally{a}, moved.tallies)
	p.put(7, "b")
	for pid := 100; pid < 110; pid++ {
		p.put(pid, "c")
		c.seen(pid, pid)
	}
	for range 6 {
		c.checkInTurn(2)
	}
	require.Empty(t, moved.tallies)
}

func TestAProcessThatEnds(t *testing.T) {
	c, p, a := newTestCensus()
	p.put(7, "a")
	ending := c.seen(7, 7)
	c.exited(7)
	delete(p.units, 7)
	require.Same(t, ending, c.seen(7, 7), "it still runs for a moment")
	c.check(0)
	require.Same(t, ending, c.seen(7, 7))
	c.check(0)
	require.NotSame(t, ending, c.seen(7, 7))
	require.False(t, c.seen(7, 7).known)

	// Another process immediately gets the same pid.
	p.put(8, "a")
	old := c.seen(8, 8)
	p.put(1, "b")
	p.threads[1] = ""
	c.seen(1, 1)
	c.forked(8, 1)
	require.NotSame(t, old, c.seen(8, 8))
	require.Empty(t, c.seen(8, 8).tallies)

	// A process whose exit was not recorded is found by the regular checks.
	delete(p.units, 8)
	for range 10 {
		c.checkInTurn(10)
	}
	require.NotContains(t, c.byPID, 8)

	// A process whose first thread has ended is looked up by another thread.
	p.put(90, "")
	p.threads[91] = "a"
	require.Equal(t, []*tally{a}, c.seen(90, 91).tallies)

	// A process keeps its unit if the unit can no longer be looked up.
	p.put(92, "a")
	c.seen(92, 92)
	p.put(92, "")
	c.executed(92)
	c.check(10)
	require.Equal(t, []*tally{a}, c.seen(92, 92).tallies)
}

func TestTheCensusIsBounded(t *testing.T) {
	c, p, a := newTestCensus()
	p.put(1, "a")
	c.seen(1, 1)
	for pid := 2; pid < maxProcesses+100; pid++ {
		c.forked(pid, 1)
	}
	require.LessOrEqual(t, len(c.byPID), maxProcesses)
	require.LessOrEqual(t, len(c.queue), maxQueued)
	require.Equal(t, uint64(1), c.overflows)
	require.Equal(t, []*tally{a}, c.seen(1, 1).tallies)
	for pid := range 10 * maxProcesses { // all of these processes are short-lived
		pid += 1 << 20
		c.forked(pid, 1)
		c.exited(pid)
		if pid%100 == 0 {
			c.check(64)
			c.checkInTurn(1)
		}
	}
	require.LessOrEqual(t, len(c.all), 3*maxProcesses)
}
