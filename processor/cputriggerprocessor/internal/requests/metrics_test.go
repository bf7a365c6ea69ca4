// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package requests

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/hotprofile/hotprofile/internal/monitor"
	"github.com/hotprofile/hotprofile/processor/cputriggerprocessor/internal/counters"
	"github.com/hotprofile/hotprofile/test/identifytest"
)

// service imitates a service that exports a histogram of its requests.
type service struct {
	r           *rig
	name, unit  string
	silent      bool           // omits the unit from the metric
	resource    map[string]any // nil means the resource of container
	attributes  func(status int) map[string]any
	exponential bool
	cumulative  bool
	started     time.Time
	exported    time.Time
	durations   map[int][]float64 // by status code, in the metric's unit
}

var bounds = []float64{0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10}

func (s *service) serve(n, status int, took time.Duration) {
	v := took.Seconds()
	if s.unit == "ms" {
		v *= 1000
	}
	for range n {
		s.durations[status] = append(s.durations[status], v)
	}
}

func (s *service) restart() {
	s.durations = map[int][]float64{}
	s.started, s.exported = s.r.now, s.r.now
}

// export sends the durations recorded so far as one data point per status code.
func (s *service) export() {
	md := pmetric.NewMetrics()
	rm := md.ResourceMetrics().AppendEmpty()
	resource := s.resource
	if resource == nil {
		resource = container
	}
	require.NoError(s.r.t, rm.Resource().Attributes().FromRaw(resource))
	m := rm.ScopeMetrics().AppendEmpty().Metrics().AppendEmpty()
	m.SetName(s.name)
	if !s.silent {
		m.SetUnit(s.unit)
	}
	start := s.started
	temporality := pmetric.AggregationTemporalityCumulative
	if !s.cumulative {
		start, temporality = s.exported, pmetric.AggregationTemporalityDelta
	}
	if s.exponential {
		m.SetEmptyExponentialHistogram().SetAggregationTemporality(temporality)
	} else {
		m.SetEmptyHistogram().SetAggregationTemporality(temporality)
	}
	for status, durations := range s.durations {
		if s.exponential {
			p := m.ExponentialHistogram().DataPoints().AppendEmpty()
			require.NoError(s.r.t, p.Attributes().FromRaw(s.attributes(status)))
			exponentialOf(p, durations)
			p.SetStartTimestamp(pcommon.NewTimestampFromTime(start))
			p.SetTimestamp(pcommon.NewTimestampFromTime(s.r.now))
			continue
		}
		p := m.Histogram().DataPoints().AppendEmpty()
		require.NoError(s.r.t, p.Attributes().FromRaw(s.attributes(status)))
		p.SetStartTimestamp(pcommon.NewTimestampFromTime(start))
		p.SetTimestamp(pcommon.NewTimestampFromTime(s.r.now))
		scale := 1.0
		if s.unit == "ms" {
			scale = 1000
		}
		cells := make([]uint64, len(bounds)+1)
		for _, b := range bounds {
			p.ExplicitBounds().Append(b * scale)
		}
		sum := 0.0
		for _, d := range durations {
			n, _ := slices.BinarySearch(bounds, d/scale)
			cells[n]++
			sum += d
		}
		p.BucketCounts().FromRaw(cells)
		p.SetCount(uint64(len(durations)))
		p.SetSum(sum)
	}
	if !s.cumulative {
		s.durations = map[int][]float64{}
	}
	s.exported = s.r.now
	md.MarkReadOnly()
	s.r.in.ObserveMetrics(md)
}

// exponentialOf fills a data point like an SDK. The point has at most 160 buckets, at the
// largest scale at which all values fit.
func exponentialOf(p pmetric.ExponentialHistogramDataPoint, values []float64) {
	lowest, highest := math.Inf(1), 0.0
	sum := 0.0
	zeros := uint64(0)
	for _, v := range values {
		if v == 0 {
			zeros++
			continue
		}
		lowest, highest = min(lowest, v), max(highest, v)
		sum += v
	}
	p.SetZeroCount(zeros)
	p.SetCount(uint64(len(values)))
	p.SetSum(sum)
	if highest == 0 {
		return
	}
	scale := int32(20)
	index := func(v float64) int { return int(math.Ceil(math.Log2(v)*math.Exp2(float64(scale)))) - 1 }
	for ; index(highest)-index(lowest) >= 160; scale-- {
	}
	cells := make([]uint64, index(highest)-index(lowest)+1)
	for _, v := range values {
		if v > 0 {
			cells[index(v)-index(lowest)]++
		}
	}
	p.SetScale(scale)
	p.Positive().SetOffset(int32(index(lowest)))
	p.Positive().BucketCounts().FromRaw(cells)
}

func stableAttributes(status int) map[string]any {
	return map[string]any{"http.request.method": "GET", "http.route": "/cart/{id}", "http.response.status_code": status}
}

func oldAttributes(status int) map[string]any {
	return map[string]any{"http.method": "GET", "http.route": "/cart/{id}", "http.status_code": status}
}

// codesOfRPC maps HTTP status codes to the gRPC status codes that these
// tests use instead.
func codesOfRPC(status int) int { return map[int]int{200: 0, 500: 13, 503: 14}[status] }

func stableRPCAttributes(status int) map[string]any {
	return map[string]any{"rpc.system.name": "grpc", "rpc.method": "shop.Cart/Add", "rpc.response.status_code": grpcCodes[codesOfRPC(status)]}
}

func oldRPCAttributes(status int) map[string]any {
	return map[string]any{"rpc.system": "grpc", "rpc.service": "shop.Cart", "rpc.method": "Add", "rpc.grpc.status_code": codesOfRPC(status)}
}

func TestHistogramsOfRequests(t *testing.T) {
	for name, s := range map[string]service{
		"stable, explicit, cumulative":    {name: stableHTTP, unit: "s", attributes: stableAttributes, cumulative: true},
		"stable, explicit, delta":         {name: stableHTTP, unit: "s", attributes: stableAttributes},
		"stable, exponential, cumulative": {name: stableHTTP, unit: "s", attributes: stableAttributes, exponential: true, cumulative: true},
		"stable, exponential, delta":      {name: stableHTTP, unit: "s", attributes: stableAttributes, exponential: true},
		"old, explicit, cumulative":       {name: oldHTTP, unit: "ms", attributes: oldAttributes, cumulative: true},
		"old, exponential, delta":         {name: oldHTTP, unit: "ms", attributes: oldAttributes, exponential: true},
		"stable, without a unit":          {name: stableHTTP, unit: "s", silent: true, attributes: stableAttributes},
		"rpc, stable, explicit":           {name: "rpc.server.call.duration", unit: "s", attributes: stableRPCAttributes, cumulative: true},
		"rpc, stable, exponential":        {name: "rpc.server.call.duration", unit: "s", attributes: stableRPCAttributes, exponential: true, cumulative: true},
		"rpc, stable, without a unit":     {name: "rpc.server.call.duration", unit: "s", silent: true, attributes: stableRPCAttributes},
		"rpc, old, explicit":              {name: "rpc.server.duration", unit: "ms", attributes: oldRPCAttributes, cumulative: true},
		"rpc, old, exponential":           {name: "rpc.server.duration", unit: "ms", attributes: oldRPCAttributes, exponential: true},
		"rpc, old, without a unit":        {name: "rpc.server.duration", unit: "ms", silent: true, attributes: oldRPCAttributes},
	} {
		t.Run(name, func(t *testing.T) {
			of, another, uri, method, status := "http", "rpc", "/cart/*", "GET", "500"
			if strings.HasPrefix(s.name, "rpc.") {
				of, another, uri, method, status = "rpc", "http", "shop.Cart/*", "Add", "INTERNAL"
			}
			r := newRig(
				t,
				Condition{Monitor: of + "_error_rate", MinRequests: 20},
				Condition{Monitor: of + "_avg_response_time", MinRequests: 20},
				Condition{Monitor: of + "_response_time", Percentile: 95, MinRequests: 20},
				Condition{Monitor: of + "_request_rate"},
				Condition{Monitor: of + "_error_rate", URI: URI{List: []string{uri}}, Methods: []string{method}, Statuses: []string{status}},
				Condition{Monitor: of + "_request_rate", Methods: []string{"POST"}},
				Condition{Monitor: another + "_avg_response_time"},
			)
			s.r = r
			s.restart()
			serve := func() {
				s.serve(80, 200, 30*time.Millisecond)
				s.serve(10, 200, 600*time.Millisecond)
				s.serve(8, 500, 200*time.Millisecond)
				s.serve(2, 503, 200*time.Millisecond)
			}
			var out []monitor.Result
			for range 5 {
				serve()
				s.export()
				out = r.tick(10 * time.Second)
			}
			check := func() {
				t.Helper()
				for i := range 6 {
					require.NoError(t, out[i].Err, r.keys[i])
				}
				require.InDelta(t, 10, out[0].Reading.Num, 1e-9)
				require.InDelta(t, 104, out[1].Reading.Num, 1e-6)
				// The explicit histogram only shows that the value is between
				// 500 and 750 ms.
				require.InDelta(t, 625, out[2].Reading.Num, 125)
				require.InEpsilon(t, 10, out[3].Reading.Num, 0.05)
				require.InDelta(t, 8, out[4].Reading.Num, 1e-9)
				require.Zero(t, out[5].Reading.Num)
				require.Equal(t, tooFew, out[6].Err, "of another protocol")
			}
			check()

			// After a restart, the counters start at zero. They cover only the requests
			// since the restart.
			s.restart()
			for range 4 {
				out = r.tick(10 * time.Second)
				serve()
				s.export()
			}
			out = r.tick(9 * time.Second)
			check()
			require.Zero(t, r.items[counters.ItemInvalid])
		})
	}
}

// TestSeriesThatAppearLater checks that a new series is counted from its beginning, so that
// no failures are missed. Requests before the first point of the process are not counted.
func TestSeriesThatAppearLater(t *testing.T) {
	r := newRig(t, Condition{Monitor: "http_error_rate"})
	s := service{r: r, name: stableHTTP, unit: "s", attributes: stableAttributes, cumulative: true}
	s.restart()
	s.started = r.now.Add(-time.Hour)
	s.serve(1000, 200, time.Millisecond)
	s.serve(1000, 503, time.Millisecond)
	s.export()
	require.Equal(t, tooFew, r.tick(10 * time.Second)[0].Err)
	s.serve(30, 200, time.Millisecond)
	s.serve(10, 500, time.Millisecond)
	s.export()
	require.InDelta(t, 25, r.value(10*time.Second), 1e-9)
}

// TestWorkersThatSendAsOneResource covers several worker processes with the same
// resource. Their series have the same attributes but different start times.
func TestWorkersThatSendAsOneResource(t *testing.T) {
	r := newRig(t, Condition{Monitor: "http_request_rate", Span: 10 * time.Second}, Condition{Monitor: "http_error_rate", Span: 10 * time.Second})
	var workers []*service
	for i := range 3 {
		w := &service{r: r, name: stableHTTP, unit: "s", attributes: stableAttributes, cumulative: true}
		w.restart()
		w.started = r.now.Add(time.Duration(i-100) * time.Second)
		w.serve(1000*(i+1), 500, time.Millisecond)
		workers = append(workers, w)
	}
	var out []monitor.Result
	for range 5 {
		for i, w := range workers {
			w.serve(20*(i+1), 200, time.Millisecond)
			w.export()
		}
		out = r.tick(10 * time.Second)
	}
	require.InEpsilon(t, 12, out[0].Reading.Num, 0.05)
	require.Zero(t, out[1].Reading.Num)
	workers[1].restart()
	r.tick(15 * time.Minute)
	for _, w := range workers[:2] { // the last worker has ended
		w.serve(20, 200, time.Millisecond)
		w.export()
	}
	r.in.sweep(r.now)
	workers[0].serve(10, 500, time.Millisecond)
	workers[1].serve(30, 503, time.Millisecond) // creates a new series
	r.tick(20 * time.Second)
	workers[0].export()
	workers[1].export()
	require.InDelta(t, 100, r.tick(time.Second)[1].Reading.Num, 1e-9)
	workers[2].export()
	require.InDelta(t, 100, r.tick(time.Second)[1].Reading.Num, 1e-9, "what it had before counts no second time")
}

// TestCountsThatRunBackwards covers a process that restarts without changing the start
// time of its series.
func TestCountsThatRunBackwards(t *testing.T) {
	r := newRig(t, Condition{Monitor: "http_avg_response_time"})
	s := service{r: r, name: stableHTTP, unit: "s", attributes: stableAttributes, cumulative: true}
	s.restart()
	s.started = time.Unix(0, 0)
	s.serve(100, 200, time.Second)
	s.export()
	r.tick(10 * time.Second)
	s.durations = map[int][]float64{}
	s.serve(10, 200, 40*time.Millisecond)
	s.export()
	require.InDelta(t, 40, r.value(10*time.Second), 1e-6)
}

// TestMetricsArePreferredToSpans checks that spans are not counted while metrics arrive.
// Spans are counted before the first metrics and after the last metrics.
func TestMetricsArePreferredToSpans(t *testing.T) {
	r := newRig(t, Condition{Monitor: "http_error_rate", Span: 10 * time.Second}, Condition{Monitor: "http_error_rate", Span: 10 * time.Second, URI: URI{Regex: "7"}})
	s := service{r: r, name: stableHTTP, unit: "s", cumulative: true, attributes: func(status int) map[string]any {
		return map[string]any{"http.request.method": "GET", "http.response.status_code": status} // no route
	}}
	s.restart()
	s.started = r.now.Add(-time.Hour)
	both := func() []monitor.Result {
		r.send(repeat(10, stable(500, 0))...)
		s.serve(10, 200, 0)
		s.export()
		return r.tick(10 * time.Second)
	}
	out := both()
	require.InDelta(t, 100, out[0].Reading.Num, 1e-9, "the first point is not of these seconds")
	out = both()
	require.InDelta(t, 50, out[0].Reading.Num, 1e-9, "the spans came before the point")
	out = both()
	require.InDelta(t, 0, out[0].Reading.Num, 1e-9)
	require.InDelta(t, 100, out[1].Reading.Num, 1e-9, "the metric has no routes")
	r.tick(3 * time.Minute)
	r.send(repeat(10, stable(500, 0))...)
	require.InDelta(t, 100, r.tick(time.Second)[0].Reading.Num, 1e-9)
}

// TestBothConventionsAtOnceCountOnce checks that each request counts once if an SDK sends
// both conventions. An SDK does so if OTEL_SEMCONV_STABILITY_OPT_IN is http/dup.
func TestBothConventionsAtOnceCountOnce(t *testing.T) {
	for of, names := range map[string][2]service{
		"http": {{name: stableHTTP, unit: "s", attributes: stableAttributes}, {name: oldHTTP, unit: "ms", attributes: oldAttributes}},
		"rpc":  {{name: "rpc.server.call.duration", unit: "s", attributes: stableRPCAttributes}, {name: "rpc.server.duration", unit: "ms", attributes: oldRPCAttributes}},
	} {
		t.Run(of, func(t *testing.T) {
			r := newRig(t, Condition{Monitor: of + "_request_rate", Span: 10 * time.Second}, Condition{Monitor: of + "_error_rate"})
			newer, older := names[0], names[1]
			newer.r, older.r = r, r
			newer.restart()
			older.restart()
			for range 4 {
				newer.serve(100, 200, time.Millisecond)
				older.serve(100, 500, time.Millisecond)
				newer.export()
				older.export()
				r.tick(10 * time.Second)
			}
			out := r.tick(time.Second)
			require.InEpsilon(t, 10, out[0].Reading.Num, 0.05)
			require.NoError(t, out[1].Err)
			require.Zero(t, out[1].Reading.Num, "the stable one is read")
		})
	}
}

// TestExponentialHistogramsThatChangeScale sends points with wider buckets than the
// previous points. An SDK widens its buckets after a single slow request. The intake must
// then widen the buckets of the previous point too.
func TestExponentialHistogramsThatChangeScale(t *testing.T) {
	for name, temporality := range map[string]bool{"cumulative": true, "delta": false} {
		t.Run(name, func(t *testing.T) {
			r := newRig(
				t, Condition{Monitor: "http_response_time", Percentile: 95, Span: 10 * time.Second}, Condition{Monitor: "http_response_time", Percentile: 50, Span: 10 * time.Second},
				Condition{Monitor: "http_avg_response_time", Span: 10 * time.Second},
			)
			s := service{r: r, name: stableHTTP, unit: "s", attributes: stableAttributes, exponential: true, cumulative: temporality}
			s.restart()
			export := func(slow int, took time.Duration) []monitor.Result {
				for i := range 90 {
					s.serve(1, 200, 30*time.Millisecond+time.Duration(i)*10*time.Microsecond)
				}
				s.serve(slow, 200, took)
				s.export()
				return r.tick(10 * time.Second)
			}
			layout := func() (scale int32, offset int) {
				for _, source := range r.in.sources {
					for _, p := range source.streams.series {
						scale, offset = p.scale, p.offset
					}
				}
				return scale, offset
			}
			var out []monitor.Result
			for range 3 {
				out = export(0, 0)
			}
			require.InEpsilon(t, 30, out[0].Reading.Num, 0.06)
			var fine int32
			var from int
			if temporality {
				fine, from = layout()
			}
			out = export(10, 20*time.Second)
			require.InEpsilon(t, 20_000, out[0].Reading.Num, 0.06)
			require.InEpsilon(t, 30, out[1].Reading.Num, 0.06, "what came before is not counted again")
			require.InEpsilon(t, (90*30.445+10*20_000)/100, out[2].Reading.Num, 1e-6)
			if temporality {
				scale, offset := layout()
				require.Less(t, scale, fine)
				require.NotEqual(t, from, offset)
			}
			out = export(0, 0)
			require.InEpsilon(t, 30, out[0].Reading.Num, 0.06, "the slow ones were before")

			// Zeros are counted separately from the buckets.
			out = export(810, 0)
			require.Less(t, out[1].Reading.Num, 0.001)
			require.InEpsilon(t, 30, out[0].Reading.Num, 0.06)
			require.InEpsilon(t, 3.0445, out[2].Reading.Num, 1e-6)
			require.Zero(t, r.items[counters.ItemInvalid])
		})
	}
}

// TestResourcesOfOneServiceCountOnce covers pipelines of spans and metrics that add
// different attributes, so that one process appears as two resources. Spans of another
// service in the same unit still count.
func TestResourcesOfOneServiceCountOnce(t *testing.T) {
	r := newRig(t, Condition{Monitor: "http_error_rate", Span: 10 * time.Second}, Condition{Monitor: "http_request_rate", Span: 10 * time.Second})
	s := service{
		r: r, name: stableHTTP, unit: "s", attributes: stableAttributes,
		resource: map[string]any{"container.id": identifytest.ContainerA, "service.name": "shop", "k8s.namespace.name": "prod"},
	}
	s.restart()
	second := func(more ...func()) (out []monitor.Result) {
		for range 10 {
			r.send(repeat(10, stable(500, time.Millisecond))...)
			for _, f := range more {
				f()
			}
			out = r.tick(time.Second)
		}
		s.serve(100, 200, time.Millisecond)
		s.export()
		return out
	}
	for range 3 {
		second()
	}
	out := second()
	require.InDelta(t, 0, out[0].Reading.Num, 1e-9)
	require.InEpsilon(t, 10, out[1].Reading.Num, 0.05)

	out = second(func() { // sends a new resource
		r.in.ObserveTraces(r.traces(map[string]any{"container.id": identifytest.ContainerA, "service.name": "shop", "n": r.now.Unix()}, repeat(10, stable(500, 0))...))
	})
	require.InDelta(t, 0, out[0].Reading.Num, 1e-9)
	require.InEpsilon(t, 10, out[1].Reading.Num, 0.05)

	out = second(func() {
		r.in.ObserveTraces(r.traces(map[string]any{"container.id": identifytest.ContainerA, "service.name": "another"}, repeat(10, stable(500, 0))...))
	})
	require.InDelta(t, 50, out[0].Reading.Num, 1)
	require.InEpsilon(t, 20, out[1].Reading.Num, 0.05)

	r.tick(3 * time.Minute)
	r.send(repeat(10, stable(500, 0))...)
	require.InDelta(t, 100, r.tick(time.Second)[0].Reading.Num, 1e-9, "no metric comes any more")
}

// TestRatesOfRareExportsAreEven checks that a point that covers a minute does not
// look like a burst.
func TestRatesOfRareExportsAreEven(t *testing.T) {
	r := newRig(t, Condition{Monitor: "http_request_rate", Span: 10 * time.Second})
	s := service{r: r, name: stableHTTP, unit: "s", attributes: stableAttributes}
	s.restart()
	for range 3 {
		r.tick(time.Minute)
		s.serve(600, 200, time.Millisecond)
		s.export()
	}
	for range 50 {
		require.InEpsilon(t, 10, r.value(time.Second), 0.02)
	}
}

// metrics sends a batch with one metric. The caller's function fill fills the metric.
func (r *rig) metrics(name string, fill func(m pmetric.Metric)) {
	md := pmetric.NewMetrics()
	rm := md.ResourceMetrics().AppendEmpty()
	require.NoError(r.t, rm.Resource().Attributes().FromRaw(container))
	m := rm.ScopeMetrics().AppendEmpty().Metrics().AppendEmpty()
	m.SetName(name)
	fill(m)
	r.in.ObserveMetrics(md)
}

func (r *rig) number(p pmetric.NumberDataPoint, value float64, attributes map[string]any) {
	p.SetDoubleValue(value)
	p.SetTimestamp(pcommon.NewTimestampFromTime(r.now))
	p.SetStartTimestamp(pcommon.NewTimestampFromTime(identifytest.Epoch.Add(-time.Hour)))
	require.NoError(r.t, p.Attributes().FromRaw(attributes))
}

func TestAnyMetric(t *testing.T) {
	r := newRig(
		t,
		Condition{Monitor: Metric, Metric: "queue", Statistic: Last},
		Condition{Monitor: Metric, Metric: "queue", Statistic: Last, Attributes: map[string]string{"name": "b", "n": "2"}},
		Condition{Monitor: Metric, Metric: "gc", Statistic: Rate},
		Condition{Monitor: Metric, Metric: "pause", Statistic: Mean},
		Condition{Monitor: Metric, Metric: "pause", Statistic: Percentile, Percentile: 50},
		Condition{Monitor: Metric, Metric: "pause", Statistic: Rate},
	)
	require.True(t, Condition{Monitor: Metric, Statistic: Last}.Gauge())
	var out []monitor.Result
	for n := range 7 {
		r.metrics("queue", func(m pmetric.Metric) {
			g := m.SetEmptyGauge().DataPoints()
			r.number(g.AppendEmpty(), 10, map[string]any{"name": "a"})
			r.number(g.AppendEmpty(), float64(n), map[string]any{"name": "b", "n": 2})
		})
		r.metrics("gc", func(m pmetric.Metric) {
			s := m.SetEmptySum()
			s.SetIsMonotonic(true)
			s.SetAggregationTemporality(pmetric.AggregationTemporalityCumulative)
			r.number(s.DataPoints().AppendEmpty(), float64(1000+50*n), nil)
		})
		r.metrics("pause", func(m pmetric.Metric) {
			h := m.SetEmptyHistogram()
			h.SetAggregationTemporality(pmetric.AggregationTemporalityDelta)
			p := h.DataPoints().AppendEmpty()
			p.ExplicitBounds().FromRaw([]float64{1, 2, 4})
			p.BucketCounts().FromRaw([]uint64{0, 10, 10, 0})
			p.SetCount(20)
			p.SetSum(50)
			p.SetTimestamp(pcommon.NewTimestampFromTime(r.now))
			p.SetStartTimestamp(pcommon.NewTimestampFromTime(r.now.Add(-10 * time.Second)))
		})
		out = r.tick(10 * time.Second)
	}
	for i, want := range []float64{16, 6, 5, 2.5, 2, 2} {
		require.NoError(t, out[i].Err, r.keys[i])
		require.InEpsilon(t, want, out[i].Reading.Num, 0.03, r.keys[i])
	}
	out = r.tick(31 * time.Second)
	require.Equal(t, noPoint, out[0].Err, "three points are missing")
	require.Equal(t, int64(0), r.items[counters.ItemInvalid])
	r.metrics("queue", func(m pmetric.Metric) { r.number(m.SetEmptyGauge().DataPoints().AppendEmpty(), math.NaN(), nil) })
	r.metrics("gc", func(m pmetric.Metric) { r.number(m.SetEmptyGauge().DataPoints().AppendEmpty(), 1, nil) })
	require.Equal(t, int64(2), r.items[counters.ItemInvalid])
}

func TestSummaries(t *testing.T) {
	r := newRig(t, Condition{Monitor: Metric, Metric: "wait", Statistic: Mean}, Condition{Monitor: Metric, Metric: "wait", Statistic: Rate, Span: 10 * time.Second})
	var out []monitor.Result
	for n := range 5 {
		r.metrics("wait", func(m pmetric.Metric) {
			p := m.SetEmptySummary().DataPoints().AppendEmpty()
			p.SetTimestamp(pcommon.NewTimestampFromTime(r.now))
			p.SetCount(uint64(100 + 10*n))
			p.SetSum(1000 + float64(30*n))
		})
		out = r.tick(10 * time.Second)
	}
	require.InDelta(t, 3, out[0].Reading.Num, 1e-9)
	require.InEpsilon(t, 1, out[1].Reading.Num, 0.02)
}

// TestHistogramsThatDoNotFit checks that each malformed histogram is counted as invalid.
// The next valid histogram must count.
func TestHistogramsThatDoNotFit(t *testing.T) {
	r := newRig(t, Condition{Monitor: "http_error_rate"}, Condition{Monitor: "http_response_time", Percentile: 95})
	for name, break_ := range map[string]func(p pmetric.HistogramDataPoint){
		"too few buckets":        func(p pmetric.HistogramDataPoint) { p.BucketCounts().FromRaw([]uint64{1, 2}) },
		"too many buckets":       func(p pmetric.HistogramDataPoint) { p.BucketCounts().FromRaw(make([]uint64, 2000)) },
		"counts above the count": func(p pmetric.HistogramDataPoint) { p.BucketCounts().FromRaw([]uint64{math.MaxUint64, 5, 1}) },
		"another count":          func(p pmetric.HistogramDataPoint) { p.SetCount(7) },
		"bounds that fall":       func(p pmetric.HistogramDataPoint) { p.ExplicitBounds().FromRaw([]float64{2, 1}) },
		"a bound that is none":   func(p pmetric.HistogramDataPoint) { p.ExplicitBounds().FromRaw([]float64{1, math.NaN()}) },
		"no sum":                 func(p pmetric.HistogramDataPoint) { p.SetSum(math.Inf(1)) },
		"a count beyond numbers": func(p pmetric.HistogramDataPoint) { p.SetCount(math.MaxUint64) },
	} {
		before := r.items[counters.ItemInvalid]
		r.metrics(stableHTTP, func(m pmetric.Metric) {
			h := m.SetEmptyHistogram()
			h.SetAggregationTemporality(pmetric.AggregationTemporalityDelta)
			p := h.DataPoints().AppendEmpty()
			p.SetTimestamp(pcommon.NewTimestampFromTime(r.now))
			p.ExplicitBounds().FromRaw([]float64{1, 2})
			p.BucketCounts().FromRaw([]uint64{1, 2, 3})
			p.SetCount(6)
			p.SetSum(9)
			break_(p)
		})
		require.Equal(t, before+1, r.items[counters.ItemInvalid], name)
	}
	for name, break_ := range map[string]func(p pmetric.ExponentialHistogramDataPoint){
		"exponential, another count":         func(p pmetric.ExponentialHistogramDataPoint) { p.SetCount(8) },
		"exponential, zeros above the count": func(p pmetric.ExponentialHistogramDataPoint) { p.SetZeroCount(math.MaxUint64) },
		"exponential, counts above the count": func(p pmetric.ExponentialHistogramDataPoint) {
			p.Positive().BucketCounts().FromRaw([]uint64{math.MaxUint64, 7, 1})
		},
		"exponential, negative above": func(p pmetric.ExponentialHistogramDataPoint) { p.Negative().BucketCounts().FromRaw([]uint64{100}) },
		"exponential, too many buckets": func(p pmetric.ExponentialHistogramDataPoint) {
			p.Positive().BucketCounts().FromRaw(make([]uint64, 2000))
		},
		"exponential, too fine":       func(p pmetric.ExponentialHistogramDataPoint) { p.SetScale(maxScale + 1) },
		"exponential, too coarse":     func(p pmetric.ExponentialHistogramDataPoint) { p.SetScale(minScale - 1) },
		"exponential, no sum":         func(p pmetric.ExponentialHistogramDataPoint) { p.SetSum(math.NaN()) },
		"exponential, beyond numbers": func(p pmetric.ExponentialHistogramDataPoint) { p.SetCount(math.MaxUint64) },
	} {
		before := r.items[counters.ItemInvalid]
		r.metrics(stableHTTP, func(m pmetric.Metric) {
			h := m.SetEmptyExponentialHistogram()
			h.SetAggregationTemporality(pmetric.AggregationTemporalityDelta)
			p := h.DataPoints().AppendEmpty()
			p.SetTimestamp(pcommon.NewTimestampFromTime(r.now))
			p.Positive().BucketCounts().FromRaw([]uint64{1, 2, 3})
			p.SetZeroCount(1)
			p.SetCount(7)
			p.SetSum(9)
			break_(p)
		})
		require.Equal(t, before+1, r.items[counters.ItemInvalid], name)
	}
	require.Equal(t, tooFew, r.tick(time.Second)[0].Err)
	require.Equal(t, 1, r.logs.FilterMessage("telemetry not counted").Len())
	s := service{r: r, name: stableHTTP, unit: "s", attributes: stableAttributes}
	s.restart()
	s.serve(10, 200, time.Second)
	s.export()
	require.Zero(t, r.value(time.Second))
}

// TestAMillionSeries checks that the number of series of a resource is bounded. Points of
// further series are counted as over the limit.
func TestAMillionSeries(t *testing.T) {
	r := newRig(t, Condition{Monitor: Metric, Metric: "hits", Statistic: Rate}, Condition{Monitor: Metric, Metric: "hits", Statistic: Last})
	for batch := range 10 {
		r.metrics("hits", func(m pmetric.Metric) {
			s := m.SetEmptySum()
			s.SetIsMonotonic(true)
			s.SetAggregationTemporality(pmetric.AggregationTemporalityCumulative)
			for i := range 1000 {
				r.number(s.DataPoints().AppendEmpty(), 1, map[string]any{"route": fmt.Sprint(batch, "/", i)})
			}
		})
	}
	require.Equal(t, int64(2*maxSeriesOfSource), r.in.series.Load(), "those of rates, and those of last values")
	require.Equal(t, int64(10_000-maxSeriesOfSource), r.items[counters.ItemOverLimit])
	r.tick(time.Second)
	r.now = r.now.Add(9 * time.Minute)
	r.send()
	r.metrics("hits", func(m pmetric.Metric) { r.number(m.SetEmptyGauge().DataPoints().AppendEmpty(), 1, nil) })
	r.now = r.now.Add(2 * time.Minute)
	r.in.sweep(r.now)
	r.in.sweep(r.now.Add(time.Hour))
	require.Zero(t, r.in.series.Load(), "nothing came of them for long")
	require.Zero(t, r.in.cells.Load())
}

// TestSeriesOfManyResources checks that the number of series of all resources is bounded.
func TestSeriesOfManyResources(t *testing.T) {
	r := newRig(t, Condition{Monitor: Metric, Metric: "hits", Statistic: Rate}, Condition{Monitor: Metric, Metric: "hits", Statistic: Last})
	md := pmetric.NewMetrics()
	rm := md.ResourceMetrics().AppendEmpty()
	require.NoError(t, rm.Resource().Attributes().FromRaw(container))
	m := rm.ScopeMetrics().AppendEmpty().Metrics().AppendEmpty()
	m.SetName("hits")
	m.SetEmptySum().SetIsMonotonic(true)
	m.Sum().SetAggregationTemporality(pmetric.AggregationTemporalityCumulative)
	for i := range maxSeriesOfSource {
		r.number(m.Sum().DataPoints().AppendEmpty(), 1, map[string]any{"n": i})
	}
	for i := range maxSeries / maxSeriesOfSource / 2 {
		rm.Resource().Attributes().PutInt("n", int64(i))
		r.in.ObserveMetrics(md)
	}
	require.Equal(t, int64(maxSeries), r.in.series.Load(), "those of rates, and those of last values")
	require.Zero(t, r.items[counters.ItemOverLimit])
	rm.Resource().Attributes().PutInt("n", -1)
	r.in.ObserveMetrics(md)
	require.Equal(t, int64(maxSeries), r.in.series.Load())
	require.Equal(t, int64(maxSeriesOfSource), r.items[counters.ItemOverLimit])
	r.tick(time.Second)
	r.in.sweep(r.now.Add(time.Hour))
	require.Zero(t, r.in.series.Load())
}

// TestManyBuckets checks that the total number of stored buckets is bounded. The bound
// also applies if an existing series gets more buckets.
func TestManyBuckets(t *testing.T) {
	r := newRig(t, Condition{Monitor: "http_response_time", Percentile: 95})
	points := pmetric.NewMetrics()
	rm := points.ResourceMetrics().AppendEmpty()
	m := rm.ScopeMetrics().AppendEmpty().Metrics().AppendEmpty()
	m.SetName(stableHTTP)
	m.SetEmptyExponentialHistogram().SetAggregationTemporality(pmetric.AggregationTemporalityCumulative)
	const perResource = 256
	for i := range perResource {
		p := m.ExponentialHistogram().DataPoints().AppendEmpty()
		p.Attributes().PutInt("n", int64(i))
		p.SetStartTimestamp(pcommon.NewTimestampFromTime(r.now.Add(-time.Hour)))
	}
	send := func(resource int) {
		require.NoError(t, rm.Resource().Attributes().FromRaw(container))
		rm.Resource().Attributes().PutInt("n", int64(resource))
		for _, p := range m.ExponentialHistogram().DataPoints().All() {
			p.SetTimestamp(pcommon.NewTimestampFromTime(r.now))
		}
		r.in.ObserveMetrics(points)
	}
	send(0)
	require.Zero(t, r.in.cells.Load())
	for _, p := range m.ExponentialHistogram().DataPoints().All() {
		p.Positive().BucketCounts().FromRaw(make([]uint64, maxPointBuckets))
	}
	for i := 1; r.in.cells.Load() < maxCells; i++ {
		send(i)
	}
	require.Equal(t, int64(maxCells), r.in.cells.Load())
	require.Zero(t, r.items[counters.ItemOverLimit])
	r.now = r.now.Add(time.Second)
	send(0)
	require.Equal(t, int64(perResource), r.items[counters.ItemOverLimit], "known ones that get more")
	send(-1)
	require.Equal(t, int64(2*perResource), r.items[counters.ItemOverLimit], "new ones")
	require.Equal(t, int64(maxCells), r.in.cells.Load())
	r.in.sweep(r.now.Add(time.Hour))
	require.Zero(t, r.in.cells.Load())
}

// TestLatePoints checks that late points are stored as the baseline for the next point.
func TestLatePoints(t *testing.T) {
	r := newRig(t, Condition{Monitor: Metric, Metric: "pause", Statistic: Mean})
	send := func(at time.Time, count uint64, sum float64) {
		r.metrics("pause", func(m pmetric.Metric) {
			p := m.SetEmptySummary().DataPoints().AppendEmpty()
			p.SetTimestamp(pcommon.NewTimestampFromTime(at))
			p.SetCount(count)
			p.SetSum(sum)
		})
	}
	send(r.now.Add(-2*time.Hour), 1, 1)
	send(r.now.Add(-time.Hour), 1001, 9001)
	send(r.now, 1002, 9003)
	require.InDelta(t, 2, r.value(time.Second), 1e-9)
	send(r.now.Add(-30*time.Minute), 1, 1)
	send(r.now, 1003, 9007)
	require.InDelta(t, 3, r.value(time.Second), 1e-9)
	require.Equal(t, int64(2), r.items[counters.ItemLate])
}

// TestExemplars checks that the slowest exemplar becomes the span of a response time.
func TestExemplars(t *testing.T) {
	r := newRig(t, Condition{Monitor: "http_response_time", Percentile: 95}, Condition{Monitor: "http_error_rate"})
	for _, status := range []int{200, 500} {
		r.metrics(stableHTTP, func(m pmetric.Metric) {
			h := m.SetEmptyHistogram()
			h.SetAggregationTemporality(pmetric.AggregationTemporalityDelta)
			p := h.DataPoints().AppendEmpty()
			p.SetTimestamp(pcommon.NewTimestampFromTime(r.now))
			require.NoError(t, p.Attributes().FromRaw(stableAttributes(status)))
			p.SetCount(3)
			p.SetSum(6)
			for i, v := range []float64{1, 3, 2} {
				x := p.Exemplars().AppendEmpty()
				x.SetTraceID(pcommon.TraceID{byte(status / 100), byte(i)})
				x.SetSpanID(pcommon.SpanID{byte(i), 1})
				x.SetDoubleValue(v + float64(status/100))
				x.SetTimestamp(pcommon.NewTimestampFromTime(r.now))
			}
		})
	}
	r.tick(time.Second)
	require.Equal(t, Span{pcommon.TraceID{5, 1}, pcommon.SpanID{1, 1}}, r.in.Span(identifytest.ContainerA, r.keys[0]))
	require.Equal(t, Span{pcommon.TraceID{5, 2}, pcommon.SpanID{2, 1}}, r.in.Span(identifytest.ContainerA, r.keys[1]))
}

// TestDistribution compares the percentiles of a distribution with the percentiles of its
// values.
func TestDistribution(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for _, spread := range []float64{0, 0.1, 1, 2} {
		var d, merged distribution
		var values []float64
		for range 10_000 {
			v := 20 * math.Exp(spread*random.NormFloat64())
			values = append(values, v)
			d.add(v, 1)
		}
		merged.merge(&d)
		slices.Sort(values)
		for _, p := range []float64{1, 50, 95, 99, 99.9} {
			want := values[int(p/100*float64(len(values)))]
			if values[len(values)-1]/want < 1<<15 { // smaller values share a bucket
				require.InEpsilon(t, want, merged.percentile(p), 0.065, "%v %v", spread, p)
			}
		}
	}
	var d distribution
	for _, v := range []float64{0, -1, 1e-300, math.MaxFloat64, 5, math.NaN(), math.Inf(1)} {
		d.add(v, 1)
		require.LessOrEqual(t, len(d.counts), maxBuckets)
	}
	require.Equal(t, 7.0, d.total)
	d.reset()
	d.spread(1, 1e12, 1000)
	d.spread(0, 1e-9, 1000)
	d.spread(5, 3, 10)
	sum := 0.0
	for _, n := range d.counts {
		sum += float64(n)
	}
	require.InEpsilon(t, 2010, sum, 1e-3, "nothing is lost")
	require.LessOrEqual(t, len(d.counts), maxBuckets)
}

// FuzzMetrics checks that no batch of metrics can crash the intake.
func FuzzMetrics(f *testing.F) {
	for _, exponential := range []bool{false, true} {
		md := pmetric.NewMetrics()
		m := md.ResourceMetrics().AppendEmpty().ScopeMetrics().AppendEmpty().Metrics().AppendEmpty()
		m.SetName(stableHTTP)
		if exponential {
			exponentialOf(m.SetEmptyExponentialHistogram().DataPoints().AppendEmpty(), []float64{1, 2, 3})
		} else {
			p := m.SetEmptyHistogram().DataPoints().AppendEmpty()
			p.ExplicitBounds().FromRaw(bounds)
			p.BucketCounts().FromRaw(make([]uint64, len(bounds)+1))
		}
		b, err := (&pmetric.ProtoMarshaler{}).MarshalMetrics(md)
		require.NoError(f, err)
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		md, err := (&pmetric.ProtoUnmarshaler{}).UnmarshalMetrics(b)
		if err != nil {
			t.Skip()
		}
		for _, rm := range md.ResourceMetrics().All() {
			require.NoError(t, rm.Resource().Attributes().FromRaw(container))
			for _, sm := range rm.ScopeMetrics().All() {
				for i, m := range sm.Metrics().All() {
					m.SetName([]string{stableHTTP, oldHTTP, stableRPC, "any"}[i%4])
				}
			}
		}
		r := newRig(
			t, Condition{Monitor: "http_error_rate"}, Condition{Monitor: "http_response_time", Percentile: 99}, Condition{Monitor: "rpc_avg_response_time"},
			Condition{Monitor: "http_request_rate"}, Condition{Monitor: Metric, Metric: "any", Statistic: Last}, Condition{Monitor: Metric, Metric: "any", Statistic: Percentile, Percentile: 50},
		)
		for range 2 {
			r.in.ObserveMetrics(md)
			for _, out := range r.tick(2 * time.Second) {
				if out.Err == nil {
					require.False(t, math.IsNaN(out.Reading.Num) || math.IsInf(out.Reading.Num, 0))
				}
			}
		}
		r.in.sweep(r.now.Add(time.Hour))
		require.Zero(t, r.in.series.Load())
		require.Zero(t, r.in.cells.Load())
	})
}
