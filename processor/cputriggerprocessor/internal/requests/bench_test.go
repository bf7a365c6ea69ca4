// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package requests

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/pdata/ptrace"

	"github.com/hotprofile/hotprofile/internal/monitor"
	"github.com/hotprofile/hotprofile/test/identifytest"
)

// requestSpan fills a span like an SDK does, with 11 attributes.
func requestSpan(s ptrace.Span, n int, now time.Time) {
	s.SetKind(ptrace.SpanKindServer)
	s.SetTraceID(pcommon.TraceID{byte(n), 1})
	s.SetEndTimestamp(pcommon.NewTimestampFromTime(now))
	s.SetStartTimestamp(pcommon.NewTimestampFromTime(now.Add(-time.Duration(n%200+1) * time.Millisecond)))
	a := s.Attributes()
	a.PutStr("http.request.method", "GET")
	a.PutStr("url.scheme", "https")
	a.PutStr("url.path", fmt.Sprint("/cart/", n%1000))
	a.PutStr("http.route", "/cart/{id}")
	a.PutInt("http.response.status_code", int64(200+300*(n%50/49)))
	a.PutStr("server.address", "shop.example.org")
	a.PutInt("server.port", 443)
	a.PutStr("network.protocol.version", "1.1")
	a.PutStr("network.peer.address", "10.0.0.7")
	a.PutInt("network.peer.port", 40123)
	a.PutStr("user_agent.original", "Mozilla/5.0")
}

// routesOfBench returns conditions with uri, method and percentiles.
func routesOfBench() []Condition {
	return []Condition{
		{Monitor: "http_error_rate"},
		{Monitor: "http_response_time", Percentile: 95},
		{Monitor: "http_response_time", Percentile: 99, URI: URI{List: []string{"/cart/*"}}},
		{Monitor: "http_error_rate", URI: URI{Regex: "^/orders"}, Methods: []string{"POST"}},
	}
}

// resourceOfBench fills a resource like an SDK does.
func resourceOfBench(resource pcommon.Resource, n int) {
	_ = resource.Attributes().FromRaw(map[string]any{
		"container.id": identifytest.ContainerA, "service.name": "shop", "service.instance.id": fmt.Sprint(n), "telemetry.sdk.name": "opentelemetry",
		"telemetry.sdk.language": "go", "telemetry.sdk.version": "1.47.0", "host.name": "here", "process.pid": 200, "k8s.namespace.name": "shop",
	})
}

// BenchmarkSpans observes 10,000 server spans of 20 resources in batches of 500. One op
// is one second of a load that should cost at most 5 % of a core. An op includes the
// readings of that second. "pass through" is a component that only counts spans. There
// are 1,000 different paths, or each path is new.
func BenchmarkSpans(b *testing.B) {
	const perSecond, perBatch, resources = 10_000, 500, 20
	for _, c := range []struct {
		name       string
		conditions []Condition
		paths      int
		longer     string // beginning of each path
	}{
		{"pass through", nil, 1000, ""},
		{"error rate", []Condition{{Monitor: "http_error_rate"}}, 1000, ""},
		{"error rate, percentiles, routes", routesOfBench(), 1000, ""},
		{"error rate, percentiles, routes, a million paths", routesOfBench(), 1_000_000, ""},
		{"error rate, percentiles, routes, a million paths of 8 KiB", routesOfBench(), 1_000_000, strings.Repeat("/cart", 8192/5)},
	} {
		b.Run(c.name, func(b *testing.B) {
			r := newRig(b, c.conditions...)
			var batches []ptrace.Traces
			for n := 0; n < perSecond; {
				td := ptrace.NewTraces()
				for i := range resources {
					rs := td.ResourceSpans().AppendEmpty()
					resourceOfBench(rs.Resource(), i)
					spans := rs.ScopeSpans().AppendEmpty().Spans()
					for range perBatch / resources {
						requestSpan(spans.AppendEmpty(), n, r.now)
						n++
					}
				}
				batches = append(batches, td)
			}
			next := 0
			newPaths := func() {
				for _, td := range batches {
					for _, rs := range td.ResourceSpans().All() {
						for _, s := range rs.ScopeSpans().At(0).Spans().All() {
							s.Attributes().PutStr("url.path", fmt.Sprint(c.longer, "/cart/", next%c.paths))
							next++
						}
					}
				}
			}
			var took time.Duration // StopTimer stops the world, which takes longer than an op
			out := make([]monitor.Result, len(r.keys))
			b.ReportAllocs()
			for b.Loop() {
				if c.paths > perSecond {
					newPaths()
				}
				total, started := 0, time.Now()
				for _, td := range batches {
					total += td.SpanCount()
					r.in.ObserveTraces(td)
				}
				if total != perSecond {
					b.Fatal(total)
				}
				r.identify()
				r.in.Read(identifytest.ContainerA, r.keys, r.now, time.Second, out)
				took += time.Since(started)
			}
			each := float64(took) / float64(b.N) / perSecond
			b.ReportMetric(each, "ns/span")
			b.ReportMetric(100*each*perSecond/1e9, "%core")
		})
	}
}

// BenchmarkPoints observes cumulative histograms of 20 resources with 50 series each. The
// histograms have 15 explicit buckets or 160 exponential buckets. One op is one export of
// all histograms.
func BenchmarkPoints(b *testing.B) {
	const resources, series = 20, 50
	for _, exponential := range []bool{false, true} {
		for _, c := range []struct {
			name       string
			conditions []Condition
		}{
			{"pass through", nil},
			{"error rate, percentiles, routes", routesOfBench()},
		} {
			kind := "explicit"
			if exponential {
				kind = "exponential"
			}
			b.Run(kind+", "+c.name, func(b *testing.B) {
				r := newRig(b, c.conditions...)
				md := pmetric.NewMetrics()
				var advance []func(at pcommon.Timestamp)
				for i := range resources {
					rm := md.ResourceMetrics().AppendEmpty()
					resourceOfBench(rm.Resource(), i)
					m := rm.ScopeMetrics().AppendEmpty().Metrics().AppendEmpty()
					m.SetName(stableHTTP)
					m.SetUnit("s")
					for n := range series {
						advance = append(advance, pointOfBench(m, exponential, fmt.Sprint("/cart/", n), r.now))
					}
				}
				var took time.Duration
				out := make([]monitor.Result, len(r.keys))
				for b.Loop() {
					r.now = r.now.Add(10 * time.Second)
					for _, f := range advance {
						f(pcommon.NewTimestampFromTime(r.now))
					}
					started := time.Now()
					if md.DataPointCount() != resources*series {
						b.Fatal(md.DataPointCount())
					}
					r.in.ObserveMetrics(md)
					r.identify()
					r.in.Read(identifytest.ContainerA, r.keys, r.now, time.Second, out)
					took += time.Since(started)
				}
				b.ReportMetric(float64(took)/float64(b.N)/(resources*series), "ns/point")
			})
		}
	}
}

// pointOfBench adds a point of a route to a histogram. The returned function adds a
// request to every third bucket of the point.
func pointOfBench(m pmetric.Metric, exponential bool, route string, start time.Time) func(at pcommon.Timestamp) {
	fill := func(cells pcommon.UInt64Slice) (count uint64) {
		for n := 0; n < cells.Len(); n += 3 {
			cells.SetAt(n, cells.At(n)+1)
			count++
		}
		return count
	}
	attributes := func(a pcommon.Map) { _ = a.FromRaw(stableAttributes(200)); a.PutStr("http.route", route) }
	if exponential {
		if m.Type() == pmetric.MetricTypeEmpty {
			m.SetEmptyExponentialHistogram().SetAggregationTemporality(pmetric.AggregationTemporalityCumulative)
		}
		p := m.ExponentialHistogram().DataPoints().AppendEmpty()
		p.SetStartTimestamp(pcommon.NewTimestampFromTime(start))
		p.SetScale(4)
		p.Positive().SetOffset(-120)
		p.Positive().BucketCounts().FromRaw(make([]uint64, 160))
		attributes(p.Attributes())
		return func(at pcommon.Timestamp) {
			n := fill(p.Positive().BucketCounts())
			p.SetCount(p.Count() + n)
			p.SetSum(p.Sum() + float64(n))
			p.SetTimestamp(at)
		}
	}
	if m.Type() == pmetric.MetricTypeEmpty {
		m.SetEmptyHistogram().SetAggregationTemporality(pmetric.AggregationTemporalityCumulative)
	}
	p := m.Histogram().DataPoints().AppendEmpty()
	p.SetStartTimestamp(pcommon.NewTimestampFromTime(start))
	p.ExplicitBounds().FromRaw(bounds)
	p.BucketCounts().FromRaw(make([]uint64, len(bounds)+1))
	attributes(p.Attributes())
	return func(at pcommon.Timestamp) {
		n := fill(p.BucketCounts())
		p.SetCount(p.Count() + n)
		p.SetSum(p.Sum() + float64(n))
		p.SetTimestamp(at)
	}
}
