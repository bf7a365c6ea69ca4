// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package requests

import (
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/pdata/ptrace"
	"go.uber.org/goleak"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/hotprofile/hotprofile/internal/cgroup"
	"github.com/hotprofile/hotprofile/internal/identify"
	"github.com/hotprofile/hotprofile/internal/monitor"
	"github.com/hotprofile/hotprofile/processor/cputriggerprocessor/internal/counters"
	"github.com/hotprofile/hotprofile/test/hosttest"
	"github.com/hotprofile/hotprofile/test/identifytest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// rig is an Intake with a fake clock and a fake host. The test runs each step itself.
type rig struct {
	t    testing.TB
	in   *Intake
	host *identifytest.Host
	logs *observer.ObservedLogs
	now  time.Time

	mu    sync.Mutex
	items counters.Items
	seen  []string // names of the units that were added
	full  bool     // refuses new units
	keys  []string
}

func (r *rig) AddItems(n *counters.Items) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for o, n := range n {
		r.items[o] += n
	}
}

func newRig(t testing.TB, conditions ...Condition) *rig {
	core, logs := observer.New(zapcore.DebugLevel)
	r := &rig{t: t, host: identifytest.NewHost(), logs: logs, now: identifytest.Epoch}
	r.in = New(Config{
		Scope: identify.ScopeCgroup, TTL: 10 * time.Minute, Counters: r, Now: func() time.Time { return r.now }, Log: zap.New(core),
		See: func(id identify.Identity, _ identify.Claim, _ time.Time) bool {
			r.seen = append(r.seen, id.Name)
			return !r.full
		},
	})
	r.set(conditions...)
	return r
}

func (r *rig) set(conditions ...Condition) {
	r.t.Helper()
	r.keys = nil
	for i := range conditions {
		if conditions[i].Span == 0 {
			conditions[i].Span = 30 * time.Second
		}
		require.Empty(r.t, conditions[i].Validate("it"))
		r.keys = append(r.keys, conditions[i].Key())
	}
	require.NoError(r.t, r.in.SetConditions(conditions))
}

// identify looks up the units of all waiting resources.
func (r *rig) identify() {
	for {
		select {
		case s := <-r.in.waiting:
			r.in.identify(r.host, s)
		default:
			return
		}
	}
}

// tick advances the clock in steps of one second and returns the last readings.
func (r *rig) tick(d time.Duration) []monitor.Result {
	r.identify()
	out := make([]monitor.Result, len(r.keys))
	for end := r.now.Add(d); r.now.Before(end); {
		r.now = r.now.Add(time.Second)
		r.in.Read(identifytest.ContainerA, r.keys, r.now, time.Second, out)
	}
	return out
}

// value advances the clock and returns the first condition's reading.
func (r *rig) value(d time.Duration) float64 {
	r.t.Helper()
	out := r.tick(d)
	require.NoError(r.t, out[0].Err)
	return out[0].Reading.Num
}

var container = map[string]any{"container.id": identifytest.ContainerA, "service.name": "shop"}

// span describes one request.
type span struct {
	attributes map[string]any
	took       time.Duration
	ago        time.Duration
	state      string
	status     ptrace.StatusCode
	kind       ptrace.SpanKind
	trace      byte
}

func (r *rig) traces(resource map[string]any, spans ...span) ptrace.Traces {
	td := ptrace.NewTraces()
	rs := td.ResourceSpans().AppendEmpty()
	require.NoError(r.t, rs.Resource().Attributes().FromRaw(resource))
	ss := rs.ScopeSpans().AppendEmpty()
	for _, s := range spans {
		out := ss.Spans().AppendEmpty()
		out.SetKind(ptrace.SpanKindServer)
		if s.kind != 0 {
			out.SetKind(s.kind)
		}
		require.NoError(r.t, out.Attributes().FromRaw(s.attributes))
		end := r.now.Add(-s.ago)
		out.SetEndTimestamp(pcommon.NewTimestampFromTime(end))
		out.SetStartTimestamp(pcommon.NewTimestampFromTime(end.Add(-s.took)))
		out.TraceState().FromRaw(s.state)
		out.Status().SetCode(s.status)
		out.SetTraceID(pcommon.TraceID{s.trace})
		out.SetSpanID(pcommon.SpanID{1, s.trace})
	}
	td.MarkReadOnly()
	return td
}

func (r *rig) send(spans ...span) { r.in.ObserveTraces(r.traces(container, spans...)) }

func stable(status int, took time.Duration) span {
	return span{attributes: map[string]any{"http.request.method": "GET", "http.response.status_code": status, "http.route": "/cart/{id}", "url.path": "/cart/7"}, took: took}
}

func old(status int, took time.Duration) span {
	return span{attributes: map[string]any{"http.method": "GET", "http.status_code": status, "http.route": "/cart/:id", "http.target": "/cart/7?coupon=x"}, took: took}
}

func repeat(n int, s span) (out []span) {
	for range n {
		out = append(out, s)
	}
	return out
}

func TestSpansOfBothConventions(t *testing.T) {
	for name, request := range map[string]func(int, time.Duration) span{"stable": stable, "old": old} {
		t.Run(name, func(t *testing.T) {
			r := newRig(
				t,
				Condition{Monitor: "http_error_rate", MinRequests: 20},
				Condition{Monitor: "http_avg_response_time", MinRequests: 20},
				Condition{Monitor: "http_response_time", Percentile: 95, MinRequests: 20},
				Condition{Monitor: "http_request_rate"},
				Condition{Monitor: "http_error_rate", MinRequests: 20, Statuses: []string{"4xx", "503"}},
				Condition{Monitor: "http_request_rate", URI: URI{List: []string{"/cart/*"}}, Methods: []string{"get"}},
				Condition{Monitor: "http_request_rate", URI: URI{Regex: "^/orders"}},
				Condition{Monitor: "http_request_rate", Methods: []string{"POST"}},
				Condition{Monitor: "http_request_rate", URI: URI{Regex: "^/cart/7$"}},
				Condition{Monitor: "rpc_error_rate"},
			)
			var out []monitor.Result
			for range 40 {
				r.send(repeat(16, request(200, 10*time.Millisecond))...)
				r.send(request(500, 100*time.Millisecond), request(503, 100*time.Millisecond), request(404, 100*time.Millisecond), request(404, 100*time.Millisecond))
				out = r.tick(time.Second)
			}
			for i := range 9 {
				require.NoError(t, out[i].Err, r.keys[i])
			}
			require.InDelta(t, 10, out[0].Reading.Num, 1e-9)
			require.InDelta(t, 28, out[1].Reading.Num, 1e-9)
			require.InEpsilon(t, 100, out[2].Reading.Num, 0.05)
			require.InDelta(t, 20, out[3].Reading.Num, 1e-9)
			require.InDelta(t, 15, out[4].Reading.Num, 1e-9)
			require.InDelta(t, 20, out[5].Reading.Num, 1e-9)
			require.Zero(t, out[6].Reading.Num)
			require.Zero(t, out[7].Reading.Num)
			require.InDelta(t, 20, out[8].Reading.Num, 1e-9, "the path, without its query")
			require.Error(t, out[9].Err)
			require.Equal(t, int64(800), r.items[counters.ItemOK])
		})
	}
}

func TestSpansOfRPC(t *testing.T) {
	grpc := func(code any) span {
		return span{attributes: map[string]any{"rpc.system": "grpc", "rpc.service": "shop.Cart", "rpc.method": "Add", "rpc.grpc.status_code": code}, took: 20 * time.Millisecond}
	}
	newer := func(code string) span {
		return span{attributes: map[string]any{"rpc.system.name": "grpc", "rpc.method": "shop.Cart/Add", "rpc.response.status_code": code}, took: 20 * time.Millisecond}
	}
	r := newRig(
		t, Condition{Monitor: "rpc_error_rate"}, Condition{Monitor: "rpc_response_time", Percentile: 50, URI: URI{List: []string{"shop.Cart/*"}}},
		Condition{Monitor: "rpc_error_rate", Statuses: []string{"NOT_FOUND"}, Methods: []string{"Add"}}, Condition{Monitor: "http_error_rate"},
		Condition{Monitor: "rpc_avg_response_time"}, Condition{Monitor: "rpc_request_rate", Span: time.Second}, Condition{Monitor: "http_request_rate", Span: time.Second},
	)
	slow := grpc(0)
	slow.took = 320 * time.Millisecond
	r.identify()
	r.send(repeat(8, grpc(0))...)
	r.send(grpc(14), newer("INTERNAL"), newer("NOT_FOUND"), newer("OK"))
	out := r.tick(time.Second)
	require.InDelta(t, 100*2/12., out[0].Reading.Num, 1e-9)
	require.InEpsilon(t, 20, out[1].Reading.Num, 0.05)
	require.InDelta(t, 100*1/12., out[2].Reading.Num, 1e-9)
	require.Error(t, out[3].Err)
	require.InDelta(t, 20, out[4].Reading.Num, 1e-9)
	r.send(repeat(3, slow)...)
	out = r.tick(time.Second)
	require.InDelta(t, (12*20+3*320)/15., out[4].Reading.Num, 1e-9)
	require.NoError(t, out[5].Err)
	require.InDelta(t, 3, out[5].Reading.Num, 1e-9)
	require.NoError(t, out[6].Err)
	require.Zero(t, out[6].Reading.Num)
}

// TestAFailureWithoutAStatusCounts sends failed requests without a status code, for
// example after an exception or a broken connection.
func TestAFailureWithoutAStatusCounts(t *testing.T) {
	r := newRig(t, Condition{Monitor: "http_error_rate"})
	r.send(span{attributes: map[string]any{"http.request.method": "GET"}, status: ptrace.StatusCodeError},
		span{attributes: map[string]any{"http.request.method": "GET", "error.type": "timeout"}}, span{attributes: map[string]any{"http.request.method": "GET"}},
		span{attributes: map[string]any{"http.request.method": "GET", "http.response.status_code": 404}, status: ptrace.StatusCodeError})
	require.InDelta(t, 50, r.value(time.Second), 1e-9)
}

// TestOtherSpansAreNotRequests sends spans of clients and spans inside a request, such as
// database calls.
func TestOtherSpansAreNotRequests(t *testing.T) {
	r := newRig(t, Condition{Monitor: "http_error_rate"})
	other := stable(500, time.Second)
	other.kind = ptrace.SpanKindClient
	r.send(stable(200, time.Millisecond), other, span{attributes: map[string]any{"db.system": "mysql"}})
	require.Zero(t, r.value(time.Second))
	require.Equal(t, counters.Items{counters.ItemOK: 1, counters.ItemIgnored: 1}, r.items)
}

// TestFewRequestsAreNoReading checks that there is no reading if there are fewer requests
// than min_requests. Otherwise a single failure at night would look like an incident.
func TestFewRequestsAreNoReading(t *testing.T) {
	r := newRig(t, Condition{Monitor: "http_error_rate", MinRequests: 20}, Condition{Monitor: "http_response_time", Percentile: 95, MinRequests: 20})
	r.send(repeat(19, stable(500, time.Second))...)
	for _, out := range r.tick(time.Second) {
		require.Equal(t, tooFew, out.Err)
	}
	r.send(stable(500, time.Second))
	for _, out := range r.tick(time.Second) {
		require.NoError(t, out.Err)
	}
}

// TestSampledSpansStandForOthers checks that a rate counts a sampled span as all requests
// that the span represents. For min_requests, a sampled span counts as one request.
func TestSampledSpansStandForOthers(t *testing.T) {
	r := newRig(t, Condition{Monitor: "http_error_rate"}, Condition{Monitor: "http_request_rate", Span: 10 * time.Second}, Condition{Monitor: "http_error_rate", MinRequests: 20})
	tenth, all := stable(200, time.Millisecond), stable(500, time.Millisecond)
	tenth.state = "rojo=1, ot=rv:ab;th:e6666666666666" // 10 % are sampled
	attribute := stable(200, time.Millisecond)
	attribute.attributes["sampling.threshold"] = "c" // 25 % are sampled
	var out []monitor.Result
	for range 12 {
		r.send(tenth, all, attribute)
		out = r.tick(time.Second)
	}
	require.InEpsilon(t, 100/15., out[0].Reading.Num, 1e-6)
	require.InEpsilon(t, 15, out[1].Reading.Num, 1e-6)
	require.NoError(t, out[2].Err, "36 were seen")
	require.Equal(t, 1, r.logs.FilterMessageSnippet("spans are sampled").Len())
	for th, want := range map[string]float64{"": 1, "0": 1, "8": 2, "f": 16, "ffffffffffffff": maxWeight, "g": 1, "123456789012345": 1} {
		require.Equal(t, want, weightOf(th), th)
	}
}

// TestAWindowMovesOn checks that requests older than the window are not counted.
func TestAWindowMovesOn(t *testing.T) {
	r := newRig(t, Condition{Monitor: "http_error_rate", Span: 10 * time.Second}, Condition{Monitor: "http_response_time", Percentile: 90, Span: time.Minute})
	r.send(repeat(10, stable(500, time.Second))...)
	r.send(repeat(10, stable(200, time.Millisecond))...)
	require.InDelta(t, 50, r.value(5*time.Second), 1e-9)
	r.send(repeat(20, stable(200, time.Millisecond))...)
	require.InDelta(t, 25, r.value(time.Second), 1e-9)
	require.InDelta(t, 0, r.value(5*time.Second), 1e-9, "the first ones are older than 10 s")
	out := r.tick(5 * time.Second)
	require.Equal(t, tooFew, out[0].Err)
	require.InEpsilon(t, 1000, out[1].Reading.Num, 0.06)
	out = r.tick(time.Minute)
	require.Equal(t, tooFew, out[1].Err)
}

// TestReadingsThatAreCounted covers conditions with period and count. Each reading covers
// one interval, but min_requests applies to the whole period.
func TestReadingsThatAreCounted(t *testing.T) {
	r := newRig(t, Condition{Monitor: "http_error_rate", Span: 10 * time.Second, Counted: true, MinRequests: 10})
	r.send(repeat(9, stable(200, 0))...)
	require.Equal(t, tooFew, r.tick(time.Second)[0].Err)
	r.send(stable(500, 0))
	require.InDelta(t, 100, r.value(time.Second), 1e-9)
	require.Equal(t, tooFew, r.tick(time.Second)[0].Err, "nothing in this interval")
}

func TestTheSpanOfAReason(t *testing.T) {
	slow, failure := Condition{Monitor: "http_response_time", Percentile: 95}, Condition{Monitor: "http_error_rate"}
	r := newRig(t, slow, failure)
	for i, took := range []time.Duration{1, 3, 2} {
		s := stable(200, took*time.Second)
		s.trace = byte(i + 1)
		r.send(s)
	}
	failed := stable(500, time.Millisecond)
	failed.trace = 9
	r.send(failed)
	require.Empty(t, r.in.Span(identifytest.ContainerA, r.keys[0]))
	r.tick(time.Second)
	require.Equal(t, Span{pcommon.TraceID{2}, pcommon.SpanID{1, 2}}, r.in.Span(identifytest.ContainerA, r.keys[0]))
	require.Equal(t, Span{pcommon.TraceID{9}, pcommon.SpanID{1, 9}}, r.in.Span(identifytest.ContainerA, r.keys[1]))
	slower := stable(200, 5*time.Second)
	slower.trace = 5
	r.tick(5 * time.Second) // moves on to another slice of the window
	r.send(slower)
	r.tick(time.Second)
	require.Equal(t, []pcommon.TraceID{{5}, {2}}, r.in.Slowest(identifytest.ContainerA, r.keys[0]))
	require.Equal(t, []pcommon.TraceID{{5}, {2}}, r.in.Slowest(identifytest.ContainerA, r.keys[1]))
	require.Empty(t, r.in.Slowest("another", r.keys[0]))
	require.Empty(t, r.in.Span("another", r.keys[0]))
	require.Empty(t, r.in.Span(identifytest.ContainerA, "cpu_usage"))
}

// TestWhatComesBeforeTheUnitIsKnownCounts checks that requests are counted even if they
// arrive before their unit is known.
func TestWhatComesBeforeTheUnitIsKnownCounts(t *testing.T) {
	r := newRig(t, Condition{Monitor: "http_error_rate"})
	for range 5 {
		r.send(stable(500, time.Millisecond))
	}
	require.Len(t, r.in.waiting, 1, "its unit is looked for once")
	r.send(repeat(5, stable(200, time.Millisecond))...)
	require.InDelta(t, 50, r.value(time.Second), 1e-9)
	require.Equal(t, []string{identifytest.ContainerA}, r.seen)
}

// TestResourcesWithoutAUnitAreCountedAndNamedOnce checks that requests without a unit
// are counted as unmatched. Each service is logged once per reason, up to a bound
// that prevents flooding of the log.
func TestResourcesWithoutAUnitAreCountedAndNamedOnce(t *testing.T) {
	r := newRig(t, Condition{Monitor: "http_error_rate"})
	for i := range 3 {
		resource := map[string]any{"service.name": fmt.Sprint("cart-", i)}
		r.in.ObserveTraces(r.traces(resource, stable(500, 0)))
		r.identify()
		r.in.ObserveTraces(r.traces(resource, stable(500, 0)))
	}
	require.Equal(t, int64(3+3), r.items[counters.ItemUnmatched])
	lines := r.logs.FilterMessage("requests match no unit").All()
	require.Len(t, lines, 3)
	for i, l := range lines {
		require.Equal(t, fmt.Sprint("cart-", i), l.ContextMap()["service.name"])
	}
	for _, resource := range []map[string]any{
		{"service.name": "cart-0", "service.instance.id": "another"},
		{"service.name": "cart-0", "container.id": strings.Repeat("9", 64)}, // has another reason
	} {
		r.in.ObserveTraces(r.traces(resource, stable(500, 0)))
		r.identify()
	}
	require.Equal(t, 4, r.logs.FilterMessage("requests match no unit").Len())

	r.now = r.now.Add(time.Minute)
	r.in.ObserveTraces(r.traces(map[string]any{"service.name": "cart-0"}, stable(500, 0)))
	require.Len(t, r.in.waiting, 1, "it is looked for again: it may have one by now")

	for i := range 1000 {
		r.in.ObserveTraces(r.traces(map[string]any{"service.name": fmt.Sprint("stranger-", i)}, stable(500, 0)))
		r.identify()
	}
	require.Equal(t, maxNamed, r.logs.FilterMessage("requests match no unit").Len())
	require.Len(t, r.in.named, maxNamed)
	require.Equal(t, 1, r.logs.FilterMessageSnippet("requests of further services match no unit").Len())
}

func TestALongServiceNameIsLoggedInWholeCharacters(t *testing.T) {
	r := newRig(t, Condition{Monitor: "http_error_rate"})
	r.in.ObserveTraces(r.traces(map[string]any{"service.name": "a" + strings.Repeat("é", 200)}, stable(500, 0)))
	r.identify()
	require.Equal(t, "a"+strings.Repeat("é", 127), r.logs.FilterMessage("requests match no unit").All()[0].ContextMap()["service.name"])
}

// TestUnitsBeyondTheBound checks that the numbers of watched units and of windows for
// percentiles are bounded. Requests of units beyond the bound are counted as unmatched.
func TestUnitsBeyondTheBound(t *testing.T) {
	r := newRig(t, Condition{Monitor: "http_error_rate"})
	r.full = true
	r.send(stable(500, 0))
	r.identify()
	require.Equal(t, []string{identifytest.ContainerA}, r.seen)
	require.Equal(t, int64(1), r.items[counters.ItemUnmatched])
	require.Equal(t, string(identify.TooManyUnits), r.logs.FilterMessage("requests match no unit").All()[0].ContextMap()["why"])
	require.Equal(t, tooFew, r.tick(time.Second)[0].Err)
	r.full = false
	r.now = r.now.Add(recheckAfter + time.Second)
	r.send(stable(500, 0))
	r.identify()
	r.send(stable(500, 0))
	require.InDelta(t, 100, r.value(time.Second), 1e-9, "there is a place by now")

	const most = 8
	var conditions []Condition
	for i := range maxWindows / most {
		conditions = append(conditions, Condition{Monitor: "http_response_time", Percentile: 10 + float64(i)/10, Span: time.Hour})
	}
	r = newRig(t, conditions...)
	for i := range 2 * most {
		id := fmt.Sprintf("%064x", i+1)
		r.host.Groups[id] = cgroup.Group{ID: id, ContainerID: id, Cgroup: "/docker/" + id}
		r.in.ObserveTraces(r.traces(map[string]any{"container.id": id}, stable(500, time.Second)))
		r.identify()
	}
	require.Len(t, r.in.units, most)
	require.Equal(t, int64(most), r.items[counters.ItemUnmatched])
	require.Equal(t, string(identify.TooManyUnits), r.logs.FilterMessage("requests match no unit").All()[0].ContextMap()["why"])
	out := make([]monitor.Result, len(r.keys))
	r.in.Read(fmt.Sprintf("%064x", 1), r.keys, r.now, time.Second, out)
	require.NoError(t, out[0].Err)
	windows := r.in.units[fmt.Sprintf("%064x", 1)].windows
	require.Len(t, windows, len(conditions))
	for _, w := range windows {
		require.LessOrEqual(t, len(w.slices), maxSlices)
	}
}

// TestManyResourcesGiveWay checks that resources without a unit are evicted in favor of
// other resources. Resources in use are kept.
func TestManyResourcesGiveWay(t *testing.T) {
	r := newRig(t, Condition{Monitor: "http_error_rate"})
	r.send(stable(500, 0))
	r.identify()
	for i := range 10_000 {
		r.in.ObserveTraces(r.traces(map[string]any{"service.name": fmt.Sprint("stranger-", i)}, stable(500, 0)))
		r.identify()
	}
	require.LessOrEqual(t, len(r.in.sources), maxSources)
	r.send(stable(500, 0))
	require.InDelta(t, 100, r.value(time.Second), 1e-9)
	before := r.items
	td := ptrace.NewTraces()
	for i := range 10_000 {
		r.traces(map[string]any{"container.id": fmt.Sprintf("%064x", i)}, stable(500, 0)).ResourceSpans().At(0).CopyTo(td.ResourceSpans().AppendEmpty())
	}
	r.in.ObserveTraces(td)
	r.identify()
	require.LessOrEqual(t, len(r.in.sources), maxSources)
	all := int64(0)
	for o, n := range r.items {
		all += n - before[o]
	}
	require.GreaterOrEqual(t, all, int64(10_000), "each span is counted")
	require.Positive(t, r.items[counters.ItemOverLimit])
	over := r.logs.FilterMessage("telemetry not counted").All()
	require.Len(t, over, 1)
	require.Equal(t, "there are too many resources", over[0].ContextMap()["why"])

	r.now = r.now.Add(11 * time.Minute)
	r.in.sweep(r.now)
	require.Empty(t, r.in.sources)
	r.in.sweep(r.now.Add(11 * time.Minute))
	require.Empty(t, r.in.units)
}

// TestAUnitDoesNotTakeAllPlaces sends many resources of one
// unit. The resources differ in one attribute.
func TestAUnitDoesNotTakeAllPlaces(t *testing.T) {
	r := newRig(t, Condition{Monitor: "http_error_rate"})
	for i := range 5000 {
		r.in.ObserveTraces(r.traces(map[string]any{"container.id": identifytest.ContainerA, "n": i}, stable(500, 0)))
		r.identify()
	}
	require.Zero(t, r.items[counters.ItemUnmatched])
	require.Len(t, r.in.units[identifytest.ContainerA].sources, maxSourcesOfUnit, "the last ones")
	resource := map[string]any{"process.linux.cgroup": identifytest.Service, "host.name": "here"}
	r.in.ObserveTraces(r.traces(resource, stable(500, 0)))
	r.identify()
	out := make([]monitor.Result, 1)
	r.in.Read(identifytest.Service, r.keys, r.now, time.Second, out)
	require.NoError(t, out[0].Err, "another unit has a place")
}

// TestAResourceThatGaveWayCountsAgain checks that an evicted resource counts again after
// its unit has been looked up again.
func TestAResourceThatGaveWayCountsAgain(t *testing.T) {
	r := newRig(t, Condition{Monitor: "http_error_rate"})
	send := func(n int) {
		r.in.ObserveTraces(r.traces(map[string]any{"container.id": identifytest.ContainerA, "n": n}, stable(500, 0)))
		r.identify()
	}
	send(0)
	u := r.in.units[identifytest.ContainerA]
	first := u.sources[0]
	for n := range maxSourcesOfUnit {
		send(n + 1)
	}
	require.NotContains(t, u.sources, first)
	r.now = r.now.Add(recheckAfter + time.Second)
	send(0)
	require.Contains(t, u.sources, first)
}

// TestAPointIsOneItem checks that a data point counts as one item, even if the point
// claims many requests. A small request therefore cannot add a large number to the
// counter.
func TestAPointIsOneItem(t *testing.T) {
	r := newRig(t, Condition{Monitor: Metric, Metric: "wait", Statistic: Mean})
	for range 3 {
		md := pmetric.NewMetrics()
		rm := md.ResourceMetrics().AppendEmpty()
		rm.Resource().Attributes().PutStr("container.id", strings.Repeat("9", 64))
		m := rm.ScopeMetrics().AppendEmpty().Metrics().AppendEmpty()
		m.SetName("wait")
		h := m.SetEmptyHistogram()
		h.SetAggregationTemporality(pmetric.AggregationTemporalityDelta)
		p := h.DataPoints().AppendEmpty()
		p.SetTimestamp(pcommon.NewTimestampFromTime(r.now))
		p.SetCount(6e15)
		p.SetSum(1)
		r.in.ObserveMetrics(md)
	}
	for _, s := range r.in.sources {
		require.InDelta(t, 18e15, s.counts[0].tally.seen, 1, "they are counted, and wait for their unit")
	}
	r.identify()
	require.EqualValues(t, 3, r.items[counters.ItemUnmatched])
}

// TestLongAttributes checks that the size of the stored attributes of a resource is
// bounded. Long attributes are not stored.
func TestLongAttributes(t *testing.T) {
	r := newRig(t, Condition{Monitor: "http_error_rate"})
	long := strings.Repeat("x", 100_000)
	resource := map[string]any{"container.id": identifytest.ContainerA, "service.name": long, "host.name": long, "k8s.namespace.name": "shop"}
	for i := range 1000 {
		resource[fmt.Sprint("n", i)] = "some text"
	}
	r.in.ObserveTraces(r.traces(resource, stable(500, 0)))
	require.InDelta(t, 100, r.value(time.Second), 1e-9)
	for _, s := range r.in.sources {
		require.Empty(t, s.claim.Service+s.claim.HostName)
		size := 0
		for k, v := range s.claim.Attributes.All() {
			size += len(k) + len(v.Str())
		}
		require.LessOrEqual(t, size, maxKeptAttributes)
	}
}

// TestRoutesThatNeverEnd checks that memory does not grow with the number of routes
// and paths, and that each request counts. 100,000 paths are twelve times the number
// of paths whose results are kept. One million paths would take 16 seconds under the
// race detector.
func TestRoutesThatNeverEnd(t *testing.T) {
	r := newRig(
		t, Condition{Monitor: "http_error_rate", URI: URI{Regex: "7$"}}, Condition{Monitor: "http_response_time", Percentile: 95, URI: URI{List: []string{"/item/*"}}},
		Condition{Monitor: "http_request_rate", Span: 10 * time.Second},
	)
	const all, perBatch = 100_000, 1000
	td := ptrace.NewTraces()
	r.traces(container, repeat(perBatch, stable(500, time.Second))...).CopyTo(td)
	spans := td.ResourceSpans().At(0).ScopeSpans().At(0).Spans()
	path := []byte("/item/")
	var out []monitor.Result
	held := make([]int, 2)
	for i := range all / perBatch {
		for n, s := range spans.All() {
			text := string(strconv.AppendInt(path, int64(i*perBatch+n), 10))
			s.Attributes().PutStr("url.path", text)
			s.Attributes().PutStr("http.route", text)
		}
		r.in.ObserveTraces(td)
		if i == all/perBatch/5 { // the cache of results for paths is full by now
			held[0] = hosttest.Heap()
		}
		if i%5 == 4 {
			out = r.tick(time.Second)
		}
	}
	held[1] = hosttest.Heap()
	require.LessOrEqual(t, len(r.in.plan.Load().uriHas), maxURIResults)
	require.LessOrEqual(t, held[1], held[0]+8<<20)
	require.Equal(t, int64(all), r.items[counters.ItemOK])
	require.InEpsilon(t, 100, out[0].Reading.Num, 1e-9)
	require.InEpsilon(t, 1000, out[1].Reading.Num, 0.06)
	require.InEpsilon(t, 5*perBatch, out[2].Reading.Num, 0.1)
}

func TestSpansWhoseTimesMakeNoSense(t *testing.T) {
	r := newRig(t, Condition{Monitor: "http_error_rate"}, Condition{Monitor: "http_avg_response_time"}, Condition{Monitor: "http_response_time", Percentile: 50})
	negative, late, early, undated := stable(500, -time.Hour), stable(500, 0), stable(500, 0), stable(500, 0)
	late.ago, early.ago = time.Hour, -time.Hour
	r.send(negative, late, early, undated, stable(200, 10*time.Millisecond))
	out := r.tick(time.Second)
	require.InDelta(t, 100*2/3., out[0].Reading.Num, 1e-9, "it failed, however long it took")
	require.InDelta(t, 5, out[1].Reading.Num, 1e-9)
	require.Equal(t, counters.Items{counters.ItemOK: 2, counters.ItemInvalid: 1, counters.ItemLate: 2}, r.items)
	require.Equal(t, 2, r.logs.FilterMessage("telemetry not counted").Len())
}

// TestConditionsThatStayKeepWhatWasCounted replaces the conditions between two readings.
// A condition that remains must keep its counts.
func TestConditionsThatStayKeepWhatWasCounted(t *testing.T) {
	errors, slow := Condition{Monitor: "http_error_rate"}, Condition{Monitor: "http_response_time", Percentile: 95}
	r := newRig(t, errors)
	r.send(stable(500, time.Second))
	r.tick(time.Second)
	r.send(stable(200, time.Second))
	r.set(slow, errors, Condition{Monitor: "http_error_rate", Span: time.Minute})
	r.send(stable(200, time.Second), stable(200, time.Second))
	out := r.tick(time.Second)
	require.InEpsilon(t, 1000, out[0].Reading.Num, 0.06)
	require.InDelta(t, 25, out[1].Reading.Num, 1e-9)
	require.Zero(t, out[2].Reading.Num, "a new window begins")
	r.set()
	r.send(stable(500, 0))
	require.Empty(t, r.tick(time.Second))
}

// TestAUnitThatChangesHands covers a resource whose unit changes, for example because its
// pid now belongs to another container.
func TestAUnitThatChangesHands(t *testing.T) {
	r := newRig(t, Condition{Monitor: "http_error_rate"})
	resource := map[string]any{"process.pid": 200, "process.executable.name": "server"}
	r.in.ObserveTraces(r.traces(resource, stable(500, 0)))
	require.InDelta(t, 100, r.value(time.Second), 1e-9)
	moved := r.host.Processes[200]
	moved.Group = r.host.Groups[identifytest.Service]
	r.host.Processes[200] = moved
	r.now = r.now.Add(time.Minute)
	r.in.ObserveTraces(r.traces(resource, stable(500, 0)))
	r.identify()
	require.Equal(t, tooFew, r.tick(time.Second)[0].Err)
	other := make([]monitor.Result, 1)
	r.in.Read(identifytest.Service, r.keys, r.now, time.Second, other)
	require.InDelta(t, 100, other[0].Reading.Num, 1e-9)
}

// TestConcurrentUse runs senders, readings, lookups and changes of the conditions at the
// same time, for the race detector.
func TestConcurrentUse(t *testing.T) {
	r := newRig(t, Condition{Monitor: "http_response_time", Percentile: 95}, Condition{Monitor: "http_error_rate"})
	now := time.Now()
	r.in.cfg.Now = func() time.Time { return now }
	r.now = now
	td, md := r.traces(container, repeat(50, stable(500, time.Millisecond))...), pmetric.NewMetrics()
	conditions := []Condition{{Monitor: "http_error_rate", Span: time.Minute}}
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 200 {
				r.in.ObserveTraces(td)
				r.in.ObserveMetrics(md)
			}
		})
	}
	wg.Go(func() {
		for i := range 100 {
			r.identify()
			r.in.sweep(now)
			if i%10 == 0 {
				_ = r.in.SetConditions(conditions)
			}
		}
	})
	wg.Go(func() {
		out := make([]monitor.Result, 2)
		for i := range 100 {
			r.in.Read(identifytest.ContainerA, r.keys, now.Add(time.Duration(i)*time.Second), time.Second, out)
			r.in.Span(identifytest.ContainerA, r.keys[0])
		}
	})
	wg.Wait()
	require.Equal(t, int64(4*200*50), r.items[counters.ItemOK])
}
