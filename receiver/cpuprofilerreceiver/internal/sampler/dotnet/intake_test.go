// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package dotnet

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
	"golang.org/x/sync/semaphore"

	"github.com/hotprofile/hotprofile/internal/nativeformat"
	"github.com/hotprofile/hotprofile/internal/procfs"
	"github.com/hotprofile/hotprofile/internal/samples"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/processes"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/sampler"
	"github.com/hotprofile/hotprofile/test/dotnettest"
	"github.com/hotprofile/hotprofile/test/nativeformattest"
)

// recorded is the approximate time when the captures were recorded.
var recorded = time.Date(2026, 11, 21, 13, 0, 0, 0, time.UTC)

// event is a sample that the sink has received.
type event struct {
	samples.Key
	at, value int64
}

// sink keeps the received events until it has no room left.
type sink struct {
	mu     sync.Mutex
	room   int // a negative value means no limit
	events []event
}

func (s *sink) AddSent(k samples.Key, at, value int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.room == 0 {
		return false
	}
	s.room--
	s.events = append(s.events, event{k, at, value})
	return true
}

func (s *sink) free(room int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.room, s.events = room, nil
}

type rig struct {
	*Intake
	sink *sink
	logs *observer.ObservedLogs
}

func newRig(t testing.TB, change func(*Intake)) *rig {
	t.Helper()
	core, logs := observer.New(zap.InfoLevel)
	r := &rig{sink: &sink{room: -1}, logs: logs}
	r.Intake = New(&sampler.Shared{ThreadName: true, ExportInterval: 1500 * time.Millisecond, Logger: zap.New(core)}, func(pid int) (processes.Identity, error) {
		return processes.Identity{Process: procfs.Process{PID: pid, Start: uint64(pid)}}, nil
	})
	r.Intake.sink, r.now = r.sink, func() time.Time { return recorded }
	if change != nil {
		change(r.Intake)
	}
	return r
}

// reply is the decoded answer of the intake, either a success or a problem.
type reply struct {
	code   int
	header http.Header
	body   struct {
		problem
		Result
	}
}

func (r *rig) do(t testing.TB, req *http.Request) (out reply) {
	t.Helper()
	w := httptest.NewRecorder()
	r.ServeHTTP(w, req)
	out.code, out.header = w.Code, w.Header()
	var wide struct {
		Title, Detail, Expected                                                 string
		Status                                                                  int
		Offset                                                                  *int
		Opcode                                                                  *byte
		Found                                                                   *int64
		Samples, Incomplete, Without_Frames, Export_Thread, Wrong_Time, No_Room int
	}
	require.NoError(t, json.Unmarshal(w.Body.Bytes(), &wide), "%s", w.Body)
	out.body.Title, out.body.Status, out.body.Detail = wide.Title, wide.Status, wide.Detail
	out.body.Offset, out.body.Opcode, out.body.Expected, out.body.Found = wide.Offset, wide.Opcode, wide.Expected, wide.Found
	out.body.Result = Result{
		Samples: wide.Samples, Incomplete: wide.Incomplete, WithoutFrames: wide.Without_Frames,
		ExportThread: wide.Export_Thread, WrongTime: wide.Wrong_Time, NoRoom: wide.No_Room,
	}
	if out.code == http.StatusAccepted {
		require.Equal(t, "application/json", out.header.Get("Content-Type"))
	} else {
		require.Equal(t, "application/problem+json", out.header.Get("Content-Type"))
		require.Equal(t, out.code, wide.Status)
		require.NotEmpty(t, wide.Title)
		require.NotEmpty(t, wide.Detail)
	}
	return out
}

func request(path string, body []byte) *http.Request {
	req := httptest.NewRequest(http.MethodPost, path, bytes.NewReader(body))
	req.Header.Set("Content-Type", "application/octet-stream")
	req.Header.Set("Otel-Resource-Attributes", "service.name=checkout")
	return req
}

func (r *rig) post(t testing.TB, path string, body []byte) reply {
	t.Helper()
	return r.do(t, request(path, body))
}

// kept returns the samples of a capture that an intake keeps. It also returns the numbers
// of samples without frames and of samples of the exporter's thread.
func kept(c *dotnettest.Capture) (out []dotnettest.Sample, frameless, exportThread int) {
	for _, s := range c.Samples {
		switch {
		case s.Thread == nativeformat.ExportThreadName:
			exportThread++
		case len(s.Frames) == 0:
			frameless++
		default:
			out = append(out, s)
		}
	}
	return out, frameless, exportThread
}

func TestEveryCaptureBecomesItsSamples(t *testing.T) {
	for _, c := range dotnettest.Read(t, "*/*") {
		t.Run(c.Name, func(t *testing.T) {
			r := newRig(t, nil)
			got := r.post(t, c.Path(), c.Bytes)
			require.Equal(t, http.StatusAccepted, got.code, got.body)
			want, frameless, exportThread := kept(&c)
			incomplete := 0
			if c.Truncated {
				incomplete = 1
			}
			require.Equal(t, Result{Samples: len(want), Incomplete: incomplete, WithoutFrames: frameless, ExportThread: exportThread}, got.body.Result)
			checkEvents(t, &c, want, r.sink.events)
		})
	}
}

// TestTheTimeOfSelectedThreadsIsCountedOnce covers a profiler that samples all threads
// and, at a shorter interval, selected threads. While the profiler samples all threads,
// it takes no selective samples. The sample of a selected thread then represents only
// the interval of selective sampling. The values of all samples must add up to the
// elapsed time, in nanoseconds.
func TestTheTimeOfSelectedThreadsIsCountedOnce(t *testing.T) {
	const interval, selective = 500 * time.Millisecond, 50 * time.Millisecond
	r := newRig(t, nil)
	var want time.Duration
	selectiveAt, together := map[int64]bool{}, 0
	all := dotnettest.Read(t, "selected/*")
	for _, c := range all {
		for _, s := range c.Samples {
			if c.Format.Kind == nativeformat.SelectedThreadSamples {
				selectiveAt[s.UnixMilli] = true
			}
		}
	}
	for _, c := range all { // the first capture has selective samples
		require.Equal(t, http.StatusAccepted, r.post(t, c.Path(), c.Bytes).code)
		samples, _, _ := kept(&c)
		for _, s := range samples {
			switch {
			case c.Format.Kind == nativeformat.SelectedThreadSamples:
				want += selective
			case s.Selected:
				require.False(t, selectiveAt[s.UnixMilli], "no selective samples at that time")
				want += selective
				together++
			default:
				want += interval
			}
		}
	}
	require.Positive(t, together)
	got := time.Duration(0)
	for _, e := range r.sink.events {
		require.Equal(t, e.Period, e.value)
		got += time.Duration(e.value)
	}
	require.Equal(t, want, got)
}

// TestASecondOfASelectedThreadIsASecond imitates the profiler while one thread is selected
// for a second.
func TestASecondOfASelectedThreadIsASecond(t *testing.T) {
	r := newRig(t, nil)
	for tick := range 20 {
		at := recorded.Add(time.Duration(tick) * 50 * time.Millisecond).UnixMilli()
		format, path := nativeformat.Format{Kind: nativeformat.SelectedThreadSamples}, "/v1/dotnet/selected-thread-samples?interval=50"
		if tick%10 == 9 {
			format = nativeformat.Format{Kind: nativeformat.ThreadSamples, FrequentSampling: true}
			path = "/v1/dotnet/thread-samples?interval=500&frequent_sampling=true"
		}
		e := nativeformattest.NewEncoder(format)
		e.StartBatch(at)
		e.Sample(&nativeformattest.Record{UnixMilli: at, Thread: "worker", Selected: true, Frames: []string{"Shop.Cart.Add()"}})
		e.EndBatch()
		require.Equal(t, http.StatusAccepted, r.post(t, path, e.Bytes()).code)
	}
	got := time.Duration(0)
	for _, e := range r.sink.events {
		got += time.Duration(e.value)
	}
	require.Equal(t, time.Second, got)
}

// TestASelectedThreadWithoutSelectiveSamplesHasTheWholeInterval covers a service that
// has sent no selective sample. A sample of all threads then represents the full
// interval.
func TestASelectedThreadWithoutSelectiveSamplesHasTheWholeInterval(t *testing.T) {
	r := newRig(t, nil)
	c := dotnettest.Read(t, "selected/042.threads")[0]
	require.Equal(t, http.StatusAccepted, r.post(t, c.Path(), c.Bytes).code)
	for _, e := range r.sink.events {
		require.EqualValues(t, 500*time.Millisecond, e.value)
	}
}

func checkEvents(t *testing.T, c *dotnettest.Capture, want []dotnettest.Sample, got []event) {
	t.Helper()
	allocations := c.Format.Kind == nativeformat.AllocationSamples
	if allocations {
		require.Len(t, got, 2*len(want))
	} else {
		require.Len(t, got, len(want))
	}
	for i, w := range want {
		types := []*samples.Type{samples.DotnetThreads}
		period := int64(500 * time.Millisecond)
		values := []int64{period}
		switch {
		case allocations:
			types, values, period = []*samples.Type{samples.DotnetAllocObjects, samples.DotnetAllocSpace}, []int64{1, w.Bytes}, 1
		case c.Format.Kind == nativeformat.SelectedThreadSamples:
			types, period = []*samples.Type{samples.DotnetSelected}, int64(50*time.Millisecond)
			values = []int64{period}
		}
		for j, typ := range types {
			e := got[i*len(types)+j]
			require.Same(t, typ, e.Type)
			require.Equal(t, values[j], e.value)
			require.Equal(t, w.UnixMilli*1e6, e.at, "the buffer's time")
			require.Equal(t, period, e.Period)
			require.Equal(t, w.Thread, e.Thread.Name)
			require.Equal(t, w.Type, e.AllocType)
			require.Equal(t, w.Selected || typ == samples.DotnetSelected, e.Selected)
			require.Equal(t, hexOf(w.TraceID, 16)+hexOf(w.SpanID, 8), fmt.Sprintf("%x%x", e.Link.TraceID, e.Link.SpanID))
			require.Equal(t, "checkout", raw(e.Resource.Attributes)["service.name"])
			require.False(t, e.Stack.Truncated)
			require.Len(t, e.Stack.Locations, len(w.Frames))
			for k, f := range w.Frames {
				checkLocation(t, c.Functions[f], e.Stack.Locations[k])
			}
		}
	}
}

// hexOf returns the ID in the form that it has in a capture.
// An absent ID consists of zeros.
func hexOf(id string, size int) string {
	if id == "" {
		return strings.Repeat("00", size)
	}
	return id
}

func checkLocation(t *testing.T, name string, l *samples.Location) {
	t.Helper()
	require.True(t, l.Resolved)
	require.Nil(t, l.Mapping)
	require.Len(t, l.Lines, 1)
	whole := l.Lines[0].SystemName
	if whole == "" {
		whole = l.Lines[0].Function
	}
	require.Equal(t, name, whole, "nothing of a name is lost")
	want := samples.FrameDotnet
	if name == "Unknown_Native_Function(unknown)" {
		want = samples.FrameNative
	}
	require.Equal(t, want, l.Type)
}

func TestThreadsAreNotToldApartUnlessAskedFor(t *testing.T) {
	r := newRig(t, func(in *Intake) { in.ThreadName = false })
	c := dotnettest.Read(t, "web/000*")[0]
	r.post(t, c.Path(), c.Bytes)
	for _, e := range r.sink.events {
		require.Empty(t, e.Thread)
	}
}

func TestAStackSeenBeforeIsTheSameStackAndAllocatesNothing(t *testing.T) {
	r := newRig(t, nil)
	for _, c := range dotnettest.Read(t, "*/*") {
		r.post(t, c.Path(), c.Bytes)
		first := append([]event(nil), r.sink.events...)
		r.sink.free(-1)
		r.post(t, c.Path(), c.Bytes)
		for i, e := range r.sink.events {
			require.Equal(t, first[i].Key, e.Key)
			require.Same(t, first[i].Stack, e.Stack)
			require.Same(t, first[i].Resource, e.Resource)
		}
		r.sink.free(0)
		from := sender{header: "service.name=checkout"}
		n := testing.AllocsPerRun(20, func() { _, _ = r.add(c.Format, time.Second, from, c.Bytes) })
		require.LessOrEqual(t, n, 8.0, "per buffer, not per sample: %s", c.Name)
		r.sink.free(-1)
	}
}

func TestThePathDecidesWhatABufferIsReadAs(t *testing.T) {
	const threads, allocations, selected = threadSamplesPath + "?interval=500", allocationSamplesPath, selectedThreadSamplesPath + "?interval=50"
	for _, c := range dotnettest.Read(t, "*/*") {
		own, _, _ := strings.Cut(c.Path(), "?")
		for _, path := range []string{threads, allocations, selected} {
			if other, _, _ := strings.Cut(path, "?"); other == own {
				continue
			}
			got := newRig(t, nil).post(t, path, c.Bytes)
			require.Equal(t, http.StatusBadRequest, got.code, "%s at %s", c.Name, path)
			require.Equal(t, 0, *got.body.Offset)
			require.Zero(t, got.body.Samples)
		}
	}
}

func TestBadRequestsAreAnswered(t *testing.T) {
	c := dotnettest.Read(t, "web/000*")[0]
	for name, tc := range map[string]struct {
		path   string
		change func(*http.Request)
		code   int
		detail string
	}{
		"another path":             {path: "/v1/dotnet", code: 404, detail: threadSamplesPath},
		"another method":           {path: c.Path(), change: func(r *http.Request) { r.Method = http.MethodGet }, code: 405, detail: "POST"},
		"another content type":     {path: c.Path(), change: func(r *http.Request) { r.Header.Set("Content-Type", "application/json") }, code: 415, detail: "application/octet-stream"},
		"no content type":          {path: c.Path(), change: func(r *http.Request) { r.Header.Del("Content-Type") }, code: 415, detail: "application/octet-stream"},
		"a content type's rest":    {path: c.Path(), change: func(r *http.Request) { r.Header.Set("Content-Type", "Application/Octet-Stream; charset=x") }, code: 202},
		"no interval":              {path: threadSamplesPath, code: 400, detail: "interval"},
		"no selected interval":     {path: selectedThreadSamplesPath, code: 400, detail: "interval"},
		"an interval of nothing":   {path: threadSamplesPath + "?interval=", code: 400, detail: "1 to 3600000"},
		"an interval of zero":      {path: threadSamplesPath + "?interval=0", code: 400, detail: "1 to 3600000"},
		"a negative interval":      {path: threadSamplesPath + "?interval=-500", code: 400, detail: "1 to 3600000"},
		"an interval that is huge": {path: threadSamplesPath + "?interval=9223372036854775807", code: 400, detail: "1 to 3600000"},
		"an interval of 500ms":     {path: threadSamplesPath + "?interval=500ms", code: 400, detail: "milliseconds"},
		"two intervals":            {path: threadSamplesPath + "?interval=500&interval=1", code: 400, detail: "2 times"},
		"an unknown parameter":     {path: threadSamplesPath + "?interval=500&frequent=true", code: 400, detail: `"frequent"`},
		"a maybe":                  {path: threadSamplesPath + "?interval=500&frequent_sampling=maybe", code: 400, detail: "true or false"},
		"a query that is none":     {path: threadSamplesPath + "?interval=%zz", code: 400, detail: "query"},
		"not frequent":             {path: threadSamplesPath + "?interval=500&frequent_sampling=false", code: 202},
		"frequent, but it is not":  {path: threadSamplesPath + "?interval=500&frequent_sampling=true", code: 400, detail: "no others"},
		"nothing":                  {path: c.Path(), change: func(r *http.Request) { r.Body = http.NoBody }, code: 202},
		"too much": {path: c.Path(), change: func(r *http.Request) {
			r.Body = io.NopCloser(bytes.NewReader(make([]byte, 1<<20+1)))
		}, code: 413, detail: "1048576"},
		"a body that breaks off": {path: c.Path(), change: func(r *http.Request) {
			r.Body = io.NopCloser(io.MultiReader(bytes.NewReader(c.Bytes[:50]), broken{}))
		}, code: 400, detail: "broken"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, nil)
			req := request(tc.path, c.Bytes)
			if tc.change != nil {
				tc.change(req)
			}
			got := r.do(t, req)
			require.Equal(t, tc.code, got.code, got.body.Detail)
			require.Contains(t, got.body.Detail, tc.detail)
			if tc.code != 202 {
				require.Empty(t, r.sink.events)
			}
		})
	}
}

type broken struct{}

func (broken) Read([]byte) (int, error) { return 0, fmt.Errorf("broken") }

func TestMissingSelectionByteIsExplained(t *testing.T) {
	c := dotnettest.Read(t, "selected/001*")[0]
	got := newRig(t, nil).post(t, threadSamplesPath+"?interval=500", c.Bytes)
	require.Equal(t, http.StatusBadRequest, got.code)
	require.Contains(t, got.body.Detail, "frequent_sampling=true")
}

func TestSamplesBeforeAFaultAreKept(t *testing.T) {
	c := dotnettest.Read(t, "web/002*")[0]
	want, frameless, exportThread := kept(&c)
	end := bytes.LastIndexByte(c.Bytes, 0x06) // the opcode that ends the batch; statistics follow
	damaged := append(append([]byte(nil), c.Bytes[:end]...), 0x55, 1, 2, 3)
	r := newRig(t, nil)
	got := r.post(t, c.Path(), damaged)
	require.Equal(t, http.StatusBadRequest, got.code)
	require.Equal(t, Result{Samples: len(want), WithoutFrames: frameless, ExportThread: exportThread}, got.body.Result)
	require.Equal(t, end, *got.body.Offset)
	require.EqualValues(t, 0x55, *got.body.Opcode)
	require.EqualValues(t, 0x55, *got.body.Found)
	require.Contains(t, got.body.Expected, "opcode")
	checkEvents(t, &c, want, r.sink.events)
	require.Equal(t, uint64(frameless+1), r.Stats().Lost[nativeformat.ThreadSamples].Unreadable, "the record that could not be read is one")
}

func TestVersionTwoIsRefused(t *testing.T) {
	c := dotnettest.Read(t, "web/000*")[0]
	c.Bytes[4] = 2
	got := newRig(t, nil).post(t, c.Path(), c.Bytes)
	require.Equal(t, http.StatusBadRequest, got.code)
	require.Equal(t, "version 1", got.body.Expected)
	require.EqualValues(t, 2, *got.body.Found)
}

// TestBulkDamagedBuffersAreAnsweredAndAccountedFor sends every prefix of the captures and flips
// bits in a few captures. Each reply must have an expected status. Each sample must be
// counted exactly once.
func TestBulkDamagedBuffersAreAnsweredAndAccountedFor(t *testing.T) {
	r := newRig(t, nil)
	check := func(t *testing.T, c *dotnettest.Capture, body []byte, codes ...int) {
		t.Helper()
		r.sink.free(-1)
		from := sender{header: "service.name=checkout"}
		result, err := r.add(c.Format, time.Second, from, body)
		w := httptest.NewRecorder()
		code := http.StatusAccepted
		if p := r.problemWith(w, c.Format, result, err); p != nil {
			code = p.Status
		}
		each := 1
		if c.Format.Kind == nativeformat.AllocationSamples {
			each = 2
		}
		if !slices.Contains(codes, code) || len(r.sink.events) != each*result.Samples {
			t.Fatalf("%d: %v; %d events", code, result, len(r.sink.events))
		}
		for _, e := range r.sink.events {
			if len(e.Stack.Locations) == 0 || e.at <= 0 {
				t.Fatalf("%+v", e)
			}
		}
	}
	all := dotnettest.Read(t, "*/*")
	for i := range all {
		c := &all[i]
		step := 1
		if len(c.Bytes) > 300 {
			step = 89 // the decoder's own tests cover every prefix
		}
		for n := 0; n <= len(c.Bytes); n += step {
			check(t, c, c.Bytes[:n], 202)
		}
	}
	for _, name := range []string{"idle/001*", "names/003*", "selected/003*"} {
		c := dotnettest.Read(t, name)[0]
		for i := range c.Bytes {
			for _, flip := range []byte{0x01, 0x80, 0xff} {
				body := append([]byte(nil), c.Bytes...)
				body[i] ^= flip
				check(t, &c, body, 202, 400)
			}
		}
	}
}

func TestImpossibleTimes(t *testing.T) {
	c := dotnettest.Read(t, "idle/001*")[0]
	for name, ms := range map[string]int64{"zero": 0, "negative": -1, "lowest": -1 << 63, "highest": 1<<63 - 1, "beyond nanoseconds": 1 << 60} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, nil)
			binary.BigEndian.PutUint64(c.Bytes[5:], uint64(ms))
			got := r.post(t, c.Path(), c.Bytes)
			require.Equal(t, http.StatusBadRequest, got.code)
			require.Positive(t, got.body.WrongTime)
			require.Empty(t, r.sink.events)
			require.Equal(t, uint64(got.body.WrongTime+got.body.WithoutFrames), r.Stats().Lost[nativeformat.ThreadSamples].Unreadable)
		})
	}
}

func TestWrongClockIsLoggedOnceAndSplitsProfiles(t *testing.T) {
	c := dotnettest.Read(t, "idle/001*")[0]
	r := newRig(t, nil)
	post := func(at time.Time) *samples.Resource {
		binary.BigEndian.PutUint64(c.Bytes[5:], uint64(at.UnixMilli()))
		r.sink.free(-1)
		require.Equal(t, http.StatusAccepted, r.post(t, c.Path(), c.Bytes).code)
		require.Equal(t, at.UnixNano(), r.sink.events[0].at, "the time is the sender's, whatever it is")
		return r.sink.events[0].Resource
	}
	const said = "time of a .NET service's samples is far from this host's; backends refuse samples older than an hour"
	now := post(recorded)
	require.Same(t, now, post(recorded.Add(-30*time.Minute)))
	require.Zero(t, r.logs.FilterMessage(said).Len())
	old := post(recorded.Add(-24 * time.Hour))
	require.NotSame(t, now, old)
	require.Equal(t, now, old)
	require.Same(t, old, post(recorded.Add(-24*time.Hour)))
	require.Equal(t, 1, r.logs.FilterMessage(said).Len())
	require.Equal(t, "checkout", r.logs.FilterMessage(said).All()[0].ContextMap()["service"])
	post(recorded)
	post(recorded.Add(2 * time.Hour))
	require.Equal(t, 2, r.logs.FilterMessage(said).Len())
}

func TestFullBuffersAreAnsweredWith503AndSaidOnce(t *testing.T) {
	for name, tc := range map[string]struct {
		capture, message string
		events           func(Stats) Events
		each             uint64
	}{
		"threads":     {"web/000*", "Skipping a thread sample period, buffers are full. ** THIS WILL RESULT IN LOSS OF PROFILING DATA **", func(s Stats) Events { return s.Lost[nativeformat.ThreadSamples] }, 1},
		"allocations": {"allocations/001*", "Discarding captured allocation sample. Allocation buffer is full. ** THIS WILL RESULT IN LOSS OF PROFILING DATA **", func(s Stats) Events { return s.Lost[nativeformat.AllocationSamples] }, 2},
		"selected":    {"selected/000*", "Skipping a thread sample period, buffers are full. ** THIS WILL RESULT IN LOSS OF PROFILING DATA **", func(s Stats) Events { return s.Lost[nativeformat.SelectedThreadSamples] }, 1},
	} {
		t.Run(name, func(t *testing.T) {
			c := dotnettest.Read(t, tc.capture)[0]
			want, frameless, exportThread := kept(&c)
			r := newRig(t, nil)
			r.sink.free(0)
			for range 2 {
				got := r.post(t, c.Path(), c.Bytes)
				require.Equal(t, http.StatusServiceUnavailable, got.code)
				require.Equal(t, "2", got.header.Get("Retry-After"), "seconds, rounded up")
				require.Equal(t, Result{NoRoom: len(want), WithoutFrames: frameless, ExportThread: exportThread}, got.body.Result)
			}
			require.Equal(t, Events{
				BufferFull: 2 * tc.each * uint64(len(want)), Unreadable: 2 * tc.each * uint64(frameless), LeftOut: 2 * tc.each * uint64(exportThread),
			}, tc.events(r.Stats()))
			require.Equal(t, 1, r.logs.FilterMessage(tc.message).Len())

			r.sink.free(-1)
			require.Equal(t, http.StatusAccepted, r.post(t, c.Path(), c.Bytes).code)
			again := r.logs.FilterMessage("buffers have room for samples of .NET services again").All()
			require.Len(t, again, 1)
			require.EqualValues(t, 2*len(want), again[0].ContextMap()["samples_lost"])
		})
	}
}

func TestSamplesThatFitAreKept(t *testing.T) {
	c := dotnettest.Read(t, "web/000*")[0]
	want, _, _ := kept(&c)
	r := newRig(t, nil)
	r.sink.free(3)
	got := r.post(t, c.Path(), c.Bytes)
	require.Equal(t, http.StatusServiceUnavailable, got.code)
	require.Equal(t, 3, got.body.Samples)
	require.Equal(t, len(want)-3, got.body.NoRoom)
	checkEvents(t, &c, want[:3], r.sink.events)
}

// encoded returns a valid buffer with one batch.
func encoded(records ...nativeformattest.Record) []byte {
	e := nativeformattest.NewEncoder(nativeformat.Format{Kind: nativeformat.ThreadSamples})
	e.StartBatch(recorded.UnixMilli())
	for i := range records {
		e.Sample(&records[i])
	}
	e.EndBatch()
	return e.Bytes()
}

func TestNamesAreShownWithoutControlCharactersAndNothingIsLost(t *testing.T) {
	r := newRig(t, nil)
	names := []string{"Shop.Cart.Add(System.Int32)", "a\nb", "nul\x00", "esc\x1b[31m", "Ünïcödé.日本(🙂)", "", "Unknown_Native_Function(unknown)"}
	got := r.post(t, threadSamplesPath+"?interval=1000", encoded(nativeformattest.Record{Thread: "t\n\x00", Frames: names}))
	require.Equal(t, http.StatusAccepted, got.code)
	e := r.sink.events[0]
	require.Equal(t, "t\n\x00", e.Thread.Name)
	for i, want := range []samples.Line{
		{Function: "Shop.Cart.Add(System.Int32)"},
		{Function: `a\nb`, SystemName: "a\nb"},
		{Function: `nul\x00`, SystemName: "nul\x00"},
		{Function: `esc\x1b[31m`, SystemName: "esc\x1b[31m"},
		{Function: "Ünïcödé.日本(🙂)"},
		{Function: "(no name)"},
		{Function: "Unknown_Native_Function(unknown)"},
	} {
		require.Equal(t, want, e.Stack.Locations[i].Lines[0])
	}
}

func TestDeepStacksAreCutAtTheRootAndMarked(t *testing.T) {
	r := newRig(t, nil)
	deep := make([]string, maxDepth+1)
	for i := range deep {
		deep[i] = fmt.Sprint("F", i%7)
	}
	require.Equal(t, http.StatusAccepted, r.post(t, threadSamplesPath+"?interval=1", encoded(
		nativeformattest.Record{Frames: deep}, nativeformattest.Record{Frames: deep[:maxDepth]})).code)
	cut, whole := r.sink.events[0].Stack, r.sink.events[1].Stack
	require.True(t, cut.Truncated)
	require.False(t, whole.Truncated)
	require.Len(t, cut.Locations, maxDepth)
	require.Equal(t, "F0", cut.Locations[0].Lines[0].Function)
}

func TestCachesAreBounded(t *testing.T) {
	r := newRig(t, nil)
	r.stacks.limit = 1 << 10
	r.decoder = nativeformat.NewDecoder(16 << 10)
	r.stacks.decoder = r.decoder
	for i := range 200 {
		var frames []string
		for j := range 10 {
			frames = append(frames, fmt.Sprintf("Name%d_%d", i%50, j))
		}
		body := encoded(nativeformattest.Record{Thread: "worker", Frames: frames})
		require.Equal(t, http.StatusAccepted, r.post(t, threadSamplesPath+"?interval=1", body).code)
		last := r.sink.events[len(r.sink.events)-1]
		for j, l := range last.Stack.Locations {
			require.Equal(t, frames[j], l.Lines[0].Function, "names after the decoder has forgotten all")
		}
		require.LessOrEqual(t, r.stacks.bytes, 2<<10)
	}
	s := r.Stats()
	require.Positive(t, s.Names)
	require.Positive(t, s.Stacks)

	for i := range maxResources + 5 {
		_, _ = r.add(nativeformat.Format{Kind: nativeformat.ThreadSamples}, time.Second, sender{header: fmt.Sprint("service.name=s", i)}, nil)
	}
	require.Equal(t, maxResources, r.resources.Len())
	require.Positive(t, r.Stats().Resources)
}

func TestTenThousandNamesAndOneMore(t *testing.T) {
	r := newRig(t, nil)
	e := nativeformattest.NewEncoder(nativeformat.Format{Kind: nativeformat.ThreadSamples})
	e.StartBatch(recorded.UnixMilli())
	n := 0
	for ; n < nativeformat.MaxCode+1; n += 1 {
		e.Sample(&nativeformattest.Record{Frames: []string{fmt.Sprint("F", n)}})
		if e.Full() {
			break
		}
	}
	got := r.post(t, threadSamplesPath+"?interval=1", e.Bytes())
	require.Equal(t, http.StatusAccepted, got.code)
	// The profiler's buffers are too small for more than MaxCode names, so the test builds
	// a larger body.
	var body []byte
	body = append(body, 1, 0, 0, 0, 1)
	body = binary.BigEndian.AppendUint64(body, uint64(recorded.UnixMilli()))
	for i := range nativeformat.MaxCode + 2 {
		body = append(body, 2, 0, 0)
		body = append(body, make([]byte, 24)...)
		code := min(i+1, nativeformat.MaxCode)
		body = binary.BigEndian.AppendUint16(body, uint16(-int16(code)))
		name := fmt.Sprint(i)
		body = binary.BigEndian.AppendUint16(body, uint16(len(name)))
		for _, c := range []byte(name) {
			body = append(body, c, 0)
		}
		body = append(body, 0, 0)
	}
	r.sink.free(-1)
	got = r.post(t, threadSamplesPath+"?interval=1", body)
	require.Equal(t, http.StatusAccepted, got.code, got.body.Detail)
	require.Equal(t, nativeformat.MaxCode+2, got.body.Samples)
	for i, e := range r.sink.events {
		require.Equal(t, fmt.Sprint(i), e.Stack.Locations[0].Lines[0].Function)
	}
}

func TestMemoryIsASmallMultipleOfTheInput(t *testing.T) {
	r := newRig(t, nil)
	// A sample with a single frame is the smallest sample. With such samples, a body of 1
	// MiB contains as many samples as possible.
	var body []byte
	body = append(body, 1, 0, 0, 0, 1)
	body = binary.BigEndian.AppendUint64(body, uint64(recorded.UnixMilli()))
	body = append(body, 2, 0, 0)
	body = append(body, make([]byte, 24)...)
	body = append(body, 0xff, 0xff, 0, 1, 'a', 0) // defines the name with code 1
	for len(body) < 1<<20-2 {
		body = append(body, 0, 1)
	}
	body = append(body, 0, 0)
	r.sink.free(0)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err := r.add(nativeformat.Format{Kind: nativeformat.ThreadSamples}, time.Second, sender{}, body)
	runtime.ReadMemStats(&after)
	require.NoError(t, err)
	require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(16*len(body)))
}

func TestLargeBodiesBeyondTheBoundAreRefusedAndSmallOnesAreNot(t *testing.T) {
	c, small := dotnettest.Read(t, "crowd/*")[0], dotnettest.Read(t, "web/000*")[0]
	r := newRig(t, func(in *Intake) { in.memory.left = semaphore.NewWeighted(300 << 10) })
	begun, release := make(chan struct{}), make(chan struct{})
	var all sync.WaitGroup
	all.Go(func() {
		req := request(c.Path(), nil)
		req.Body = io.NopCloser(io.MultiReader(bytes.NewReader(c.Bytes), waiting{begun, release}))
		w := httptest.NewRecorder()
		r.ServeHTTP(w, req)
		if w.Code != http.StatusAccepted {
			t.Errorf("%d: %s", w.Code, w.Body)
		}
	})
	<-begun
	got := r.post(t, c.Path(), c.Bytes)
	require.Equal(t, http.StatusServiceUnavailable, got.code)
	require.Equal(t, "1", got.header.Get("Retry-After"))
	require.Equal(t, http.StatusAccepted, r.post(t, small.Path(), small.Bytes).code)
	close(release)
	all.Wait()
	require.Equal(t, http.StatusAccepted, r.post(t, c.Path(), c.Bytes).code)
	require.True(t, r.memory.left.TryAcquire(300<<10), "all is given back")
	require.False(t, r.memory.left.TryAcquire(1))
}

// waiting is a reader that blocks and then reports the end of the body.
type waiting struct{ begun, release chan struct{} }

func (w waiting) Read([]byte) (int, error) {
	close(w.begun)
	<-w.release
	return 0, io.EOF
}

func TestRequestsBeyondTheBoundWaitAndAreThenRefused(t *testing.T) {
	r := newRig(t, func(in *Intake) { in.slots, in.maxWait = make(chan struct{}, 1), time.Millisecond })
	begun, release := make(chan struct{}), make(chan struct{})
	bounded := r.Bound(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		begun <- struct{}{}
		<-release
	}))
	var all sync.WaitGroup
	all.Go(func() { bounded.ServeHTTP(httptest.NewRecorder(), request(threadSamplesPath, nil)) })
	<-begun
	w := httptest.NewRecorder()
	bounded.ServeHTTP(w, request(threadSamplesPath, nil))
	require.Equal(t, http.StatusServiceUnavailable, w.Code)
	require.Equal(t, "1", w.Header().Get("Retry-After"))
	require.Contains(t, w.Body.String(), "as many as can be")
	close(release)
	all.Wait()
	all.Go(func() { bounded.ServeHTTP(httptest.NewRecorder(), request(threadSamplesPath, nil)) })
	<-begun // the slot is available again
	all.Wait()
}

func TestManySendersAtOnce(t *testing.T) {
	all := dotnettest.Read(t, "web/*")
	r := newRig(t, nil)
	want := 0
	var wg sync.WaitGroup
	for i := range 16 {
		for j := range all {
			c := &all[j]
			k, _, _ := kept(c)
			want += len(k)
			wg.Go(func() {
				req := request(c.Path(), c.Bytes)
				req.Header.Set("Otel-Resource-Attributes", fmt.Sprint("service.name=s", i))
				w := httptest.NewRecorder()
				r.ServeHTTP(w, req)
				if w.Code != http.StatusAccepted {
					t.Errorf("%d: %s", w.Code, w.Body)
				}
			})
		}
	}
	wg.Wait()
	require.Len(t, r.sink.events, want)
}

func FuzzIntake(f *testing.F) {
	for _, name := range []string{"idle/001*", "names/00*", "selected/00*", "allocations/025*"} {
		for _, c := range dotnettest.Read(f, name) {
			f.Add(uint8(c.Format.Kind), c.Format.FrequentSampling, c.Bytes)
		}
	}
	f.Fuzz(func(t *testing.T, kind uint8, frequent bool, body []byte) {
		r := newRig(t, nil)
		format := nativeformat.Format{Kind: nativeformat.Kind(kind%3 + 1), FrequentSampling: frequent}
		result, err := r.add(format, time.Second, sender{header: "service.name=x"}, body)
		_ = r.problemWith(httptest.NewRecorder(), format, result, err)
		for _, e := range r.sink.events {
			if len(e.Stack.Locations) == 0 || len(e.Stack.Locations) > maxDepth || e.at <= 0 || e.Period <= 0 || e.value < 0 {
				t.Fatalf("%+v", e)
			}
		}
	})
}
