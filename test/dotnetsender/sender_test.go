// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/hotprofile/hotprofile/internal/nativeformat"
	"github.com/hotprofile/hotprofile/test/nativeformattest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// intake is a .NET profile server that keeps all requests.
type intake struct {
	*httptest.Server
	answer func(n int, w http.ResponseWriter) bool // true if it has answered

	mu       sync.Mutex
	requests []request
}

type request struct {
	path, query, remote string
	header              http.Header
	samples             []nativeformattest.Record
}

func newIntake(t *testing.T, listener net.Listener) *intake {
	in := &intake{}
	in.Server = httptest.NewUnstartedServer(in)
	if listener != nil {
		in.Listener.Close()
		in.Listener = listener
	}
	in.Start()
	t.Cleanup(in.Close)
	return in
}

// count returns the number of requests. A request that the sender has given up on may
// still arrive later.
func (in *intake) count() int {
	in.mu.Lock()
	defer in.mu.Unlock()
	return len(in.requests)
}

func (in *intake) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.answer != nil && in.answer(len(in.requests), w) {
		in.requests = append(in.requests, request{})
		return
	}
	got, err := read(r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	in.requests = append(in.requests, got)
	w.WriteHeader(http.StatusAccepted)
}

func read(r *http.Request) (got request, err error) {
	if r.Method != http.MethodPost {
		return got, fmt.Errorf("method %s", r.Method)
	}
	body := io.Reader(r.Body)
	switch r.Header.Get("Content-Encoding") {
	case "gzip":
		if body, err = gzip.NewReader(r.Body); err != nil {
			return got, err
		}
	}
	buf, err := io.ReadAll(body)
	if err != nil {
		return got, err
	}
	kind, ok := map[string]nativeformat.Kind{
		"/v1/dotnet/thread-samples":          nativeformat.ThreadSamples,
		"/v1/dotnet/allocation-samples":      nativeformat.AllocationSamples,
		"/v1/dotnet/selected-thread-samples": nativeformat.SelectedThreadSamples,
	}[r.URL.Path]
	if !ok {
		return got, fmt.Errorf("path %s", r.URL.Path)
	}
	got = request{path: r.URL.Path, query: r.URL.RawQuery, remote: r.RemoteAddr, header: r.Header}
	d := nativeformat.NewDecoder(0)
	format := nativeformat.Format{Kind: kind, FrequentSampling: r.URL.Query().Get("frequent_sampling") == "true"}
	_, err = d.Decode(format, buf, func(s *nativeformat.Sample) {
		var record nativeformattest.Record
		nativeformattest.RecordOf(d, s, &record)
		got.samples = append(got.samples, record)
	})
	return got, err
}

// testConfig returns a configuration that sends each buffer once over one connection.
func testConfig(t *testing.T, endpoint string, buffers []*buffer) config {
	t.Helper()
	return config{
		endpoint: endpoint, buffers: buffers, senders: 1, count: len(buffers), compression: "none",
		resource: "service.name=s{sender}", interval: 500 * time.Millisecond, selectedInterval: 50 * time.Millisecond, timeout: time.Minute,
	}
}

func recorded(t *testing.T) []*buffer {
	t.Helper()
	all, err := readBuffers([]string{"../../testdata/dotnet"})
	require.NoError(t, err)
	require.Greater(t, len(all), 30)
	return all
}

func decode(t *testing.T, b *buffer) (records []nativeformattest.Record) {
	t.Helper()
	d := nativeformat.NewDecoder(0)
	_, err := d.Decode(b.format, b.bytes, func(s *nativeformat.Sample) {
		var r nativeformattest.Record
		nativeformattest.RecordOf(d, s, &r)
		records = append(records, r)
	})
	require.NoError(t, err)
	return records
}

func TestRecordedBuffersArriveWholeWithTheirTimesMovedToNow(t *testing.T) {
	all := recorded(t)
	made, err := madeBuffers{threads: 4, depth: 3}.buffers()
	require.NoError(t, err)
	all = append(all, made...)
	for compression, encoding := range map[string]string{"none": "", "gzip": "gzip"} {
		for _, over := range []string{"tcp", "unix"} {
			t.Run(over+" "+compression, func(t *testing.T) {
				c := testConfig(t, "http://localhost", all)
				c.compression = compression
				var in *intake
				if over == "unix" {
					c.socket = filepath.Join(t.TempDir(), "s")
					listener, err := net.Listen("unix", c.socket)
					require.NoError(t, err)
					in = newIntake(t, listener)
				} else {
					in = newIntake(t, nil)
					c.endpoint = in.URL
				}
				before := time.Now().UnixMilli()
				r, err := send(t.Context(), c)
				require.NoError(t, err)
				require.Equal(t, len(all), r.accepted, r.firstFailure)
				require.Len(t, in.requests, len(all))
				samples, raw := 0, 0
				for i, got := range in.requests {
					want := decode(t, all[i])
					require.Len(t, got.samples, len(want))
					moved := got.samples[len(want)-1].UnixMilli - want[len(want)-1].UnixMilli
					newest := int64(0)
					for j := range want {
						want[j].UnixMilli += moved
						newest = max(newest, want[j].UnixMilli)
					}
					require.Equal(t, want, got.samples)
					require.GreaterOrEqual(t, newest, before)
					require.LessOrEqual(t, newest, time.Now().UnixMilli())
					require.Equal(t, "application/octet-stream", got.header.Get("Content-Type"))
					require.Equal(t, "service.name=s0", got.header.Get("Otel-Resource-Attributes"))
					require.Equal(t, encoding, got.header.Get("Content-Encoding"))
					query := "interval=500"
					switch {
					case all[i].format.FrequentSampling:
						query = "frequent_sampling=true&interval=500"
					case all[i].format.Kind == nativeformat.AllocationSamples:
						query = ""
					case all[i].format.Kind == nativeformat.SelectedThreadSamples:
						query = "interval=50"
					}
					require.Equal(t, query, got.query)
					samples += len(want)
					raw += len(all[i].bytes)
				}
				require.Equal(t, samples, r.samples)
				require.Equal(t, raw, r.raw)
				if compression == "none" {
					require.Equal(t, raw, r.wire)
				} else {
					require.Less(t, r.wire, raw/2)
				}
			})
		}
	}
}

func TestTimesStayAsRecordedWhenAsked(t *testing.T) {
	all := recorded(t)[:3]
	in := newIntake(t, nil)
	c := testConfig(t, in.URL, all)
	c.recordedTimes = true
	_, err := send(t.Context(), c)
	require.NoError(t, err)
	for i, got := range in.requests {
		require.Equal(t, decode(t, all[i]), got.samples)
	}
}

func TestEachSenderHasAConnectionAndAResource(t *testing.T) {
	in := newIntake(t, nil)
	c := testConfig(t, in.URL, recorded(t)[:2])
	const senders, each = 64, 3
	c.senders, c.count, c.authorization = senders, each, "Bearer x"
	r, err := send(t.Context(), c)
	require.NoError(t, err)
	require.Equal(t, each*senders, r.accepted, r.firstFailure)
	resources := map[string]string{} // by connection
	requests := map[string]int{}     // by resource
	for _, got := range in.requests {
		resource := got.header.Get("Otel-Resource-Attributes")
		if before, known := resources[got.remote]; known {
			require.Equal(t, before, resource, "two senders over one connection")
		}
		resources[got.remote] = resource
		requests[resource]++
		require.Equal(t, "Bearer x", got.header.Get("Authorization"))
	}
	require.Len(t, requests, senders)
	for _, n := range requests {
		require.Equal(t, each, n)
	}
	// The HTTP client closes a connection if the machine is so busy that the client is
	// not notified in time that its request was written.
	require.Less(t, len(resources), senders*3/2, "connections are kept")
}

// longEnough calls send with increasing numbers of buffers until send reports success. On
// a busy machine, all buffers may be due before the first answer arrives. The sender then
// does not report the condition that the test expects.
func longEnough(t *testing.T, send func(count int) (said bool)) {
	t.Helper()
	for _, count := range []int{20, 200, 2000} {
		if send(count) {
			return
		}
	}
	t.Fatal("all of it was due before the first answer was there")
}

func TestRefusalIsObeyedByDroppingWhatIsDueMeanwhile(t *testing.T) {
	in := newIntake(t, nil)
	in.answer = func(n int, w http.ResponseWriter) bool {
		if n > 0 {
			return false
		}
		w.Header().Set("Retry-After", "30")
		w.WriteHeader(http.StatusServiceUnavailable)
		return true
	}
	longEnough(t, func(count int) bool {
		in.requests = nil
		c := testConfig(t, in.URL, recorded(t))
		c.rate, c.count = 100, count
		r, err := send(t.Context(), c)
		require.NoError(t, err)
		if r.behind == count {
			return false
		}
		require.Equal(t, 1, r.refused)
		require.Equal(t, count-1, r.held+r.behind)
		require.Zero(t, r.accepted+r.failed)
		require.Len(t, in.requests, 1)
		return r.held > 0
	})
}

func TestSendingGoesOnAfterTheTimeAskedFor(t *testing.T) {
	for name, rate := range map[string]float64{"at a rate": 500, "one after the other": 0} {
		t.Run(name, func(t *testing.T) {
			in := newIntake(t, nil)
			in.answer = func(n int, w http.ResponseWriter) bool {
				if n%2 == 1 {
					return false
				}
				w.Header().Set("Retry-After", "0")
				w.WriteHeader(http.StatusServiceUnavailable)
				return true
			}
			longEnough(t, func(count int) bool {
				in.requests = nil
				c := testConfig(t, in.URL, recorded(t))
				c.rate, c.count = rate, count
				r, err := send(t.Context(), c)
				require.NoError(t, err)
				require.Zero(t, r.failed, r.firstFailure)
				require.Equal(t, count, r.refused+r.accepted+r.held+r.behind)
				return r.refused > 0 && r.accepted > 0
			})
		})
	}
}

func TestWhatIsDueDuringALongExportIsDropped(t *testing.T) {
	in := newIntake(t, nil)
	in.answer = func(int, http.ResponseWriter) bool {
		time.Sleep(50 * time.Millisecond)
		return false
	}
	c := testConfig(t, in.URL, recorded(t))
	c.rate, c.count = 1000, 60
	r, err := send(t.Context(), c)
	require.NoError(t, err)
	require.Positive(t, r.behind)
	require.Equal(t, 60, r.accepted+r.behind)
}

func TestFailuresAreCountedAndTheFirstIsSaid(t *testing.T) {
	in := newIntake(t, nil)
	in.answer = func(n int, w http.ResponseWriter) bool {
		http.Error(w, fmt.Sprintf("fault %d", n), []int{http.StatusBadRequest, http.StatusServiceUnavailable}[n%2])
		return true // the server never sends 503 without Retry-After
	}
	err := run(t.Context(), []string{"-endpoint", in.URL, "-count", "3", "-for", "0", "-rate", "0", "../../testdata/dotnet/web"})
	require.ErrorContains(t, err, "/v1/dotnet/thread-samples?interval=500 answered 400: fault 0")
	require.Len(t, in.requests, 3)

	require.ErrorContains(t, run(t.Context(), []string{"-socket", filepath.Join(t.TempDir(), "none"), "-count", "1"}), "no such file")
}

func TestItEndsByItself(t *testing.T) {
	in := newIntake(t, nil)
	for _, length := range []string{"100ms", "1s", "10s"} { // on a busy machine, a short run may end before the first request
		require.NoError(t, run(t.Context(), []string{"-endpoint", in.URL, "-for", length, "-rate", "50", "-senders", "2"}))
		if in.count() > 0 {
			break
		}
	}
	require.Positive(t, in.count())

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.NoError(t, run(ctx, []string{"-endpoint", in.URL, "-for", "1h"}))
}

func TestWhatCannotBeIsRefused(t *testing.T) {
	empty := t.TempDir()
	unnamed := filepath.Join(t.TempDir(), "x.bin")
	require.NoError(t, os.WriteFile(unnamed, nil, 0o600))
	for says, args := range map[string][]string{
		"-senders is 0":              {"-senders", "0"},
		"-rate is -1":                {"-rate", "-1"},
		"-rate is NaN":               {"-rate", "NaN"},
		"when to end":                {"-for", "0"},
		`-compression is "br"`:       {"-compression", "br"},
		"no URL":                     {"-endpoint", "localhost:4319"},
		"no file NAME.KIND.bin":      {empty},
		"named neither":              {unnamed},
		"no such file":               {filepath.Join(empty, "none")},
		"both have to be at least 1": {"-threads", "0"},
	} {
		require.ErrorContains(t, run(t.Context(), args), says)
	}
}

func TestWaitAskedFor(t *testing.T) {
	now := time.Unix(1_000_000_000, 0)
	for value, want := range map[string]time.Duration{
		"0": 0, "7": 7 * time.Second, "86400": time.Minute, "-3": time.Second, "soon": time.Second,
		now.Add(9 * time.Second).UTC().Format(http.TimeFormat):  9 * time.Second,
		now.Add(-9 * time.Second).UTC().Format(http.TimeFormat): 0,
	} {
		require.Equal(t, want, retryAfter(value, now), value)
	}
}
