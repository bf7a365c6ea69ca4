// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package pprof

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"net/http/pprof"
	"net/url"
	"runtime"
	runtimepprof "runtime/pprof"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/pprof/profile"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/hotprofile/hotprofile/extension/hotunitsextension"
	"github.com/hotprofile/hotprofile/internal/otlpprofiles"
	"github.com/hotprofile/hotprofile/internal/procfs"
	"github.com/hotprofile/hotprofile/internal/samples"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/processes"
	"github.com/hotprofile/hotprofile/test/conformancetest"
)

// sink adds all samples to a batch, unless full is set.
type sink struct {
	mu    sync.Mutex
	batch *samples.Batch
	full  bool
}

func newSink() *sink { return &sink{batch: samples.NewBatch(64 << 20)} }

func (s *sink) AddSent(k samples.Key, unixNano, value int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.full && s.batch.AddValue(k, unixNano, value)
}

func (s *sink) samples() []samples.Sample {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.batch.Samples()
}

// values returns the sum of a type's values. If the type has no values, it
// returns the number of samples.
func (s *sink) values(typ *samples.Type) (sum int64) {
	for _, x := range s.samples() {
		if x.Type != typ {
			continue
		}
		if !typ.Valued {
			sum += int64(len(x.Times))
		}
		for _, v := range x.Values {
			sum += v
		}
	}
	return sum
}

// check requires that the pulled profiles conform to the rules of all backends.
func (s *sink) check(t *testing.T) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	for p := range otlpprofiles.NewBuilder(otlpprofiles.Options{ScopeName: "x"}).Build(s.batch) {
		conformancetest.CheckFatal(t, p, conformancetest.Options{Now: time.Now()})
	}
}

type rig struct {
	*puller
	sink    *sink
	logs    *observer.ObservedLogs
	subject Subject

	mu       sync.Mutex
	outcomes map[Outcome]int
	noRoom   int
}

func (r *rig) count(o Outcome) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.outcomes[o]
}

func newRig(t *testing.T, at string, kinds string, change func(*Settings)) *rig {
	t.Helper()
	u, err := url.Parse(at)
	require.NoError(t, err)
	core, logs := observer.New(zap.DebugLevel)
	r := &rig{sink: newSink(), logs: logs, outcomes: make(map[Outcome]int)}
	r.subject = Subject{Resource: &samples.Resource{PID: 7}, Unit: processes.Identity{Process: procfs.Process{PID: 7}}, Frames: samples.FrameGo}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, CheckRedirect: SameHost}
	t.Cleanup(client.CloseIdleConnections)
	cfg := Settings{
		Config: &Config{Interval: time.Hour, Duration: time.Second, Profiles: strings.Fields(kinds)},
		URL:    u, Client: client, Look: 10 * time.Millisecond,
		Find:     func(context.Context) (Subject, error) { return r.subject, nil },
		Decoding: new(sync.Mutex), Sink: r.sink, Logger: zap.New(core), Now: time.Now,
		Count: func(o Outcome) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.outcomes[o]++
		},
		NoRoom: func(_ Kind, n int) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.noRoom += n
		},
	}
	cfg.ClientConfig.Timeout = 2 * time.Minute
	if change != nil {
		change(&cfg)
	}
	r.puller = New(cfg)
	return r
}

// pulls starts the puller. The puller is stopped at the end of the test.
func (r *rig) pulls(t *testing.T) *rig {
	r.Start()
	t.Cleanup(r.Stop)
	return r
}

// serves starts a server for the profiles of the test process.
func serves(t *testing.T) *httptest.Server {
	mux := http.NewServeMux()
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	return answers(t, mux)
}

func answers(t *testing.T, h http.Handler) *httptest.Server {
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return s
}

func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(2 * time.Minute); !ok(); time.Sleep(5 * time.Millisecond) {
		require.True(t, time.Now().Before(end), "not in time: %s", what)
	}
}

//go:noinline
func burnForTest(stop *atomic.Bool) (n int) {
	for !stop.Load() {
		n++
	}
	return n
}

var keep [][]byte

//go:noinline
func allocateForTest(stop *atomic.Bool) {
	for !stop.Load() {
		for range 64 {
			keep = append(keep, make([]byte, 64<<10))
		}
		keep = keep[:0]
		runtime.GC() // allocations appear in the profile only after another collection
		time.Sleep(10 * time.Millisecond)
	}
}

//go:noinline
func contendForTest(stop *atomic.Bool) {
	var mu sync.Mutex
	var all sync.WaitGroup
	for range 2 {
		all.Go(func() {
			for !stop.Load() {
				mu.Lock()
				time.Sleep(time.Millisecond)
				mu.Unlock()
			}
		})
	}
	all.Wait()
}

// TestRealEndpointGivesWhatItsProgramDoes pulls all profiles that
// net/http/pprof serves. During the pulls, the test process uses CPU time,
// allocates memory and contends for a mutex.
func TestRealEndpointGivesWhatItsProgramDoes(t *testing.T) {
	runtime.SetBlockProfileRate(1)
	runtime.SetMutexProfileFraction(1)
	var stop atomic.Bool
	var all sync.WaitGroup
	for _, f := range []func(*atomic.Bool){func(s *atomic.Bool) { burnForTest(s) }, allocateForTest, contendForTest} {
		all.Go(func() { f(&stop) })
	}
	t.Cleanup(func() {
		stop.Store(true)
		all.Wait()
		runtime.SetBlockProfileRate(0)
		runtime.SetMutexProfileFraction(0)
		keep = nil
	})
	threadsBefore := int64(runtimepprof.Lookup("threadcreate").Count())
	begin := time.Now()
	r := newRig(t, serves(t).URL+"/debug/pprof", "profile allocs heap goroutine threadcreate block mutex", func(c *Settings) { c.Duration = 3 * time.Second }).pulls(t)
	until(t, "seven pulls", func() bool { return r.count(OK) == 7 })
	end := time.Now()
	r.sink.check(t)
	require.Zero(t, r.noRoom)

	in := func(typ *samples.Type, function string) (sum int64) {
		for _, s := range r.sink.samples() {
			if s.Type != typ {
				continue
			}
			for _, l := range s.Stack.Locations {
				if len(l.Lines) > 0 && strings.Contains(l.Lines[len(l.Lines)-1].Function, function) {
					sum += int64(len(s.Times))
					for _, v := range s.Values {
						sum += v - 1
					}
					break
				}
			}
		}
		return sum
	}
	require.Positive(t, in(samples.PprofCPU, "burnForTest"))
	require.Greater(t, in(samples.PprofAllocSpace, "allocateForTest"), int64(4<<20))
	require.Positive(t, in(samples.PprofAllocObjects, "allocateForTest"))
	require.Positive(t, r.sink.values(samples.PprofInuseSpace))
	require.Positive(t, r.sink.values(samples.PprofInuseObjects))
	require.Positive(t, in(samples.PprofGoroutines, "contendForTest"))
	threads := r.sink.values(samples.PprofThreads)
	require.GreaterOrEqual(t, threads, threadsBefore, "each thread is counted, those without a stack too")
	require.LessOrEqual(t, threads, int64(runtimepprof.Lookup("threadcreate").Count()))
	require.Positive(t, in(samples.PprofBlockDelay, "contendForTest"))
	require.Positive(t, r.sink.values(samples.PprofBlockContentions))
	require.Positive(t, in(samples.PprofMutexDelay, "contendForTest"))
	require.Positive(t, r.sink.values(samples.PprofMutexContentions))
	for _, s := range r.sink.samples() {
		for _, l := range s.Stack.Locations {
			require.NotEqual(t, uint64(math.MaxUint64), l.Address, s.Type.Name)
		}
		require.GreaterOrEqual(t, s.Window.Start, begin.UnixNano())
		require.LessOrEqual(t, s.Window.End, end.UnixNano())
		if s.Type == samples.PprofCPU {
			require.EqualValues(t, 10_000_000, s.Period)
			// The window can be shorter than 3 s, because Go starts to count the 3 s only
			// when the goroutine that writes the profile gets a CPU.
			require.GreaterOrEqual(t, s.Window.End-s.Window.Start, int64(1_500_000_000), "%s", s.Type.Name)
		}
		for _, at := range s.Times {
			require.True(t, at >= s.Window.Start && at < s.Window.End)
		}
	}
}

// TestPaddingOfStacksIsNoFrame covers the stacks of
// threadcreate, which Go's runtime pads.
func TestPaddingOfStacksIsNoFrame(t *testing.T) {
	nameless := &profile.Function{ID: 3}
	padding := &profile.Location{ID: 2, Address: math.MaxUint64, Line: []profile.Line{{Function: nameless}}}
	empty := &profile.Location{ID: 4, Address: math.MaxUint64}
	named := &profile.Location{ID: 3, Address: math.MaxUint64, Line: []profile.Line{{Function: &profile.Function{ID: 2, Name: "top"}}}}
	p := pprofOf(func(p *profile.Profile) {
		p.Location = append(p.Location, padding, empty, named)
		p.Function = append(p.Function, nameless, named.Line[0].Function)
		stack := p.Location[0]
		p.Sample = []*profile.Sample{
			{Location: []*profile.Location{stack, padding, padding}, Value: []int64{4, 0}},
			{Location: []*profile.Location{padding, empty}, Value: []int64{3, 0}},
			{Location: nil, Value: []int64{2, 0}},
			{Location: []*profile.Location{named, stack}, Value: []int64{1, 0}},
		}
	})
	r := newRig(t, answers(t, says(bytesOf(t, p))).URL, nameCPU, nil)
	r.round(t.Context(), r.subject)
	require.Equal(t, map[Outcome]int{OK: 1}, r.outcomes)
	r.sink.check(t)
	got := make(map[string]int)
	for _, s := range r.sink.samples() {
		var names []string
		for _, l := range s.Stack.Locations {
			names = append(names, l.Lines[0].Function)
		}
		got[strings.Join(names, "<")] += len(s.Times)
	}
	require.Equal(t, map[string]int{"main.hot": 4, "[no stack]": 5, "top<main.hot": 1}, got)
}

// pprofOf returns a CPU profile with one stack, after change has modified the profile.
func pprofOf(change func(*profile.Profile)) *profile.Profile {
	f := &profile.Function{ID: 1, Name: "main.hot", SystemName: "main.hot", Filename: "main.go", StartLine: 3}
	m := &profile.Mapping{ID: 1, Start: 0x1000, Limit: 0x2000, File: "/bin/app", BuildID: "abcd"}
	l := &profile.Location{ID: 1, Mapping: m, Address: 0x1100, Line: []profile.Line{{Function: f, Line: 7}}}
	p := &profile.Profile{
		SampleType:    []*profile.ValueType{{Type: "samples", Unit: "count"}, {Type: "cpu", Unit: "nanoseconds"}},
		PeriodType:    &profile.ValueType{Type: "cpu", Unit: "nanoseconds"},
		Period:        10_000_000,
		DurationNanos: int64(time.Second),
		Mapping:       []*profile.Mapping{m}, Function: []*profile.Function{f}, Location: []*profile.Location{l},
		Sample: []*profile.Sample{{Location: []*profile.Location{l}, Value: []int64{4, 40_000_000}}},
	}
	if change != nil {
		change(p)
	}
	return p
}

func bytesOf(t testing.TB, p *profile.Profile) []byte {
	var b bytes.Buffer
	require.NoError(t, p.Write(&b))
	return b.Bytes()
}

func says(b []byte) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(b) }
}

func zeros(n int) []byte {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	_, _ = io.CopyN(z, zero{}, int64(n))
	_ = z.Close()
	return b.Bytes()
}

type zero struct{}

func (zero) Read(p []byte) (int, error) { clear(p); return len(p), nil }

func TestInvalidProfileIsCountedLoggedOnceAndHarmless(t *testing.T) {
	elsewhere := answers(t, says(bytesOf(t, pprofOf(nil))))
	for name, tc := range map[string]struct {
		handler http.HandlerFunc
		change  func(*Settings)
		kind    string
		want    Outcome
	}{
		"not there": {http.NotFound, nil, nameCPU, Refused},
		"in use already": {func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, "Could not enable CPU profiling: cpu profiling already in use", http.StatusInternalServerError)
		}, nil, nameCPU, Busy},
		"garbage":             {says([]byte("<html>hello</html>")), nil, nameCPU, Invalid},
		"nothing":             {says(nil), nil, nameCPU, Invalid},
		"gzip of nothing":     {says(zeros(0)), nil, nameCPU, Invalid},
		"cut off gzip":        {says(bytesOf(t, pprofOf(nil))[:40]), nil, nameCPU, Invalid},
		"gzip bomb":           {says(bytes.Repeat(zeros(1<<20), 64)), nil, nameCPU, TooLarge},
		"samples without end": {says(bytes.Repeat([]byte{fieldSample<<3 | 2, 0}, 1<<21)), nil, nameCPU, TooLarge},
		"another profile":     {says(bytesOf(t, pprofOf(func(p *profile.Profile) { p.PeriodType.Type = "space" }))), nil, nameCPU, Invalid},
		"other values":        {says(bytesOf(t, pprofOf(nil))), nil, "mutex", Invalid},
		"no period":           {says(bytesOf(t, pprofOf(func(p *profile.Profile) { p.Period = 0 }))), nil, nameCPU, Invalid},
		"more than CPUs can":  {says(bytesOf(t, pprofOf(func(p *profile.Profile) { p.Sample[0].Value[0] = 1 << 60 }))), nil, nameCPU, Invalid},
		"since the start": {says(bytesOf(t, pprofOf(func(p *profile.Profile) {
			p.DurationNanos = 0
			p.SampleType = []*profile.ValueType{{Type: "contentions", Unit: "count"}, {Type: "delay", Unit: "nanoseconds"}}
		}))), nil, "mutex", Invalid},
		"body without end": {func(w http.ResponseWriter, r *http.Request) {
			for r.Context().Err() == nil {
				if _, err := w.Write(make([]byte, 1<<16)); err != nil {
					return
				}
			}
		}, nil, nameCPU, TooLarge},
		"too slow": {func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }, func(c *Settings) {
			c.Duration, c.ClientConfig.Timeout = 0, 50*time.Millisecond
		}, nameCPU, Timeout},
		"elsewhere":  {func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, elsewhere.URL, http.StatusFound) }, nil, nameCPU, Refused},
		"in circles": {func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, r.URL.String(), http.StatusFound) }, nil, nameCPU, Refused},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, answers(t, tc.handler).URL, tc.kind, tc.change)
			for range 2 {
				r.round(t.Context(), r.subject)
			}
			require.Equal(t, map[Outcome]int{tc.want: 2}, r.outcomes, "%v", r.logs.All())
			require.Zero(t, r.sink.batch.Count())
			said := r.logs.FilterMessage("pulling a pprof endpoint failed").All()
			require.Len(t, said, 1)
			require.NotEmpty(t, said[0].ContextMap()["help"])
		})
	}
}

func TestProgramThatReturnsIsLoggedAgainAndStartsOver(t *testing.T) {
	s := httptest.NewServer(says(bytesOf(t, pprofOf(nil))))
	r := newRig(t, s.URL, nameCPU, nil)
	r.round(t.Context(), r.subject)
	s.Close()
	r.round(t.Context(), r.subject)
	r.round(t.Context(), r.subject)
	r.cfg.URL, _ = url.Parse(answers(t, says(bytesOf(t, pprofOf(nil)))).URL)
	r.round(t.Context(), r.subject)
	require.Equal(t, map[Outcome]int{OK: 2, Unreachable: 2}, r.outcomes)
	require.Equal(t, 1, r.logs.FilterMessage("pulling a pprof endpoint failed").Len())
	require.Equal(t, 1, r.logs.FilterMessage("pulling a pprof endpoint succeeds again").Len())
	require.EqualValues(t, 8, r.sink.values(samples.PprofCPU), "a restart counts nothing twice")
}

func TestStopEndsAPullThatIsUnderWay(t *testing.T) {
	began := make(chan struct{})
	r := newRig(t, answers(t, http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) {
		close(began)
		<-req.Context().Done()
	})).URL, nameCPU, nil)
	r.Start()
	<-began
	r.Stop()
	require.Equal(t, map[Outcome]int{Stopped: 1}, r.outcomes)
	require.Zero(t, r.logs.Len(), "that is no fault")
}

func TestFullBuffersAreCountedAndLoggedOnce(t *testing.T) {
	r := newRig(t, answers(t, says(bytesOf(t, pprofOf(nil)))).URL, nameCPU, nil)
	r.sink.full = true
	r.round(t.Context(), r.subject)
	r.round(t.Context(), r.subject)
	require.Equal(t, 8, r.noRoom)
	require.Equal(t, 1, r.logs.FilterMessageSnippet("THIS WILL RESULT IN LOSS").Len())
	r.sink.full = false
	r.round(t.Context(), r.subject)
	require.Equal(t, 1, r.logs.FilterMessageSnippet("buffers have room").Len())
}

// warmth provides the hot units that the test sets. It counts the queries that returned the
// hot unit, and the queries that returned other units.
type warmth struct {
	any, hot                  atomic.Bool
	answeredHot, answeredCool atomic.Int32
}

func (w *warmth) units() []hotunitsextension.Unit {
	switch {
	case w.hot.Load():
		w.answeredHot.Add(1)
		return []hotunitsextension.Unit{{PID: 7}}
	case w.any.Load():
		w.answeredCool.Add(1)
		return []hotunitsextension.Unit{{PID: 8}}
	}
	return nil
}

func TestOnlyHotEndpointsArePulledAndAtOnce(t *testing.T) {
	var heat warmth
	changed := make(chan struct{}, 1)
	var found atomic.Int32
	r := newRig(t, answers(t, says(bytesOf(t, pprofOf(nil)))).URL, nameCPU, nil)
	find := r.cfg.Find
	r.cfg.Hot, r.cfg.Changed, r.cfg.Look = heat.units, changed, time.Hour // the interval is long, so only a change wakes the puller
	r.cfg.Find = func(ctx context.Context) (Subject, error) {
		found.Add(1)
		return find(ctx)
	}
	tell := func(anyHot, isHot bool) {
		heat.any.Store(anyHot)
		heat.hot.Store(isHot)
		changed <- struct{}{}
	}
	r.pulls(t)
	tell(false, false)
	tell(true, false)
	until(t, "somebody looks who it is", func() bool { return found.Load() > 0 })
	require.Zero(t, r.count(OK), "something else is hot")
	tell(true, true)
	until(t, "a pull", func() bool { return r.count(OK) == 1 })
	hot, cool := heat.answeredHot.Load(), heat.answeredCool.Load()
	tell(true, true)
	until(t, "another look", func() bool { return heat.answeredHot.Load() > hot })
	tell(true, false)
	until(t, "a look when it is cool", func() bool { return heat.answeredCool.Load() >= cool+2 }) // each wake-up reads the hot units twice
	require.Equal(t, 1, r.count(OK), "again only after the interval")
	tell(true, true)
	until(t, "a pull when it is hot again", func() bool { return r.count(OK) == 2 })
}

func TestHotNeedsAnIdentifiedProcess(t *testing.T) {
	var heat warmth
	heat.any.Store(true)
	heat.hot.Store(true)
	r := newRig(t, "http://127.0.0.1:1", nameCPU, func(c *Settings) {
		c.Hot = heat.units
		c.Find = func(context.Context) (Subject, error) { return Subject{Resource: &samples.Resource{}}, nil }
	}).pulls(t)
	until(t, "two looks", func() bool { return r.count(Unidentified) >= 2 })
	require.Equal(t, 1, r.logs.FilterMessage("pulling a pprof endpoint failed").Len())
	require.Zero(t, r.count(Unreachable))
}

func TestAlwaysPullsEndpointsOfAnUnknownProcess(t *testing.T) {
	r := newRig(t, answers(t, says(bytesOf(t, pprofOf(nil)))).URL, nameCPU, func(c *Settings) {
		c.Find = func(context.Context) (Subject, error) {
			return Subject{Resource: &samples.Resource{}, Frames: samples.FrameGo}, ErrUnidentified
		}
	}).pulls(t)
	until(t, "a pull", func() bool { return r.count(OK) == 1 })
	require.Equal(t, 1, r.count(Unidentified))
	require.Equal(t, 1, r.logs.FilterMessage("pulling a pprof endpoint without its process").Len())
}

func TestIntervalIsFromRoundToRound(t *testing.T) {
	r := newRig(t, answers(t, says(bytesOf(t, pprofOf(nil)))).URL, "profile", func(c *Settings) { c.Interval = 20 * time.Millisecond }).pulls(t)
	until(t, "three rounds", func() bool { return r.count(OK) >= 3 })
}

func TestFindingFails(t *testing.T) {
	var fails atomic.Bool
	fails.Store(true)
	r := newRig(t, answers(t, says(bytesOf(t, pprofOf(nil)))).URL, nameCPU, func(c *Settings) {
		find := c.Find
		c.Find = func(ctx context.Context) (Subject, error) {
			if fails.Load() {
				return Subject{}, errors.New("nobody there")
			}
			return find(ctx)
		}
	}).pulls(t)
	until(t, "two looks", func() bool { return r.count(Unreachable) >= 2 })
	fails.Store(false)
	until(t, "a pull", func() bool { return r.count(OK) == 1 })
	require.Equal(t, 1, r.logs.FilterMessage("pulling a pprof endpoint failed").Len())
	require.Equal(t, 1, r.logs.FilterMessage("pulling a pprof endpoint succeeds again").Len())
}
