// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package requests

import (
	"fmt"
	"testing"
	"time"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/ptrace"

	"github.com/hotprofile/hotprofile/internal/monitor"
	"github.com/hotprofile/hotprofile/processor/cputriggerprocessor/internal/identify/identifytest"
)

// requestSpan fills a span as an SDK does: 11 attributes.
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

// BenchmarkSpans observes 10,000 server spans of 20 resources in batches of 500. One op is
// one second of the load that is to cost at most 5 % of a core, with the readings that a
// second has. "pass through" is a component that only counts spans.
func BenchmarkSpans(b *testing.B) {
	const perSecond, perBatch, resources = 10_000, 500, 20
	for _, c := range []struct {
		name       string
		conditions []Condition
	}{
		{"pass through", nil},
		{"error rate", []Condition{{Monitor: "http_error_rate"}}},
		{"error rate, percentiles, routes", []Condition{
			{Monitor: "http_error_rate"},
			{Monitor: "http_response_time", Percentile: 95},
			{Monitor: "http_response_time", Percentile: 99, URIs: []string{"/cart/*"}},
			{Monitor: "http_error_rate", URIRegex: "^/orders", Methods: []string{"POST"}},
		}},
	} {
		b.Run(c.name, func(b *testing.B) {
			r := newRig(b, c.conditions...)
			var batches []ptrace.Traces
			for n := 0; n < perSecond; {
				td := ptrace.NewTraces()
				for i := range resources {
					rs := td.ResourceSpans().AppendEmpty()
					_ = rs.Resource().Attributes().FromRaw(map[string]any{
						"container.id": identifytest.ContainerA, "service.name": "shop", "service.instance.id": fmt.Sprint(i), "telemetry.sdk.name": "opentelemetry",
						"telemetry.sdk.language": "go", "telemetry.sdk.version": "1.47.0", "host.name": "here", "process.pid": 200, "k8s.namespace.name": "shop",
					})
					spans := rs.ScopeSpans().AppendEmpty().Spans()
					for range perBatch / resources {
						requestSpan(spans.AppendEmpty(), n, r.now)
						n++
					}
				}
				batches = append(batches, td)
			}
			out := make([]monitor.Result, len(r.keys))
			b.ReportAllocs()
			for b.Loop() {
				total := 0
				for _, td := range batches {
					total += td.SpanCount()
					r.in.ObserveTraces(td)
				}
				if total != perSecond {
					b.Fatal(total)
				}
				r.identify()
				r.read.Read(r.now, time.Second, out)
			}
			each := float64(b.Elapsed()) / float64(b.N) / perSecond
			b.ReportMetric(each, "ns/span")
			b.ReportMetric(100*each*perSecond/1e9, "%core")
		})
	}
}
