// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package requests

import "go.opentelemetry.io/collector/pdata/pcommon"

// tally contains the counts of requests, or of data points, for one selection.
type tally struct {
	items    int64   // counted spans and points
	seen     float64 // observed requests; a sampled span counts as one request
	requests float64 // requests that the sampled spans represent
	failed   float64 // failed requests
	rated    float64 // requests for rates; a spread adds them gradually
	timed    float64 // requests with a duration
	sum      float64 // sum of the durations in ms, or of the values of a metric
	values   distribution

	slowest exemplar
	failure exemplar
}

// Span identifies the span of one request.
type Span struct {
	Trace pcommon.TraceID
	ID    pcommon.SpanID
}

// exemplar is the span of one request, with the request's duration in ms.
type exemplar struct {
	Span
	value float64
}

// maxSlowest is the maximum number of slow requests per reading whose traces are kept.
const maxSlowest = 10

// exemplars are requests that contributed to a reading.
type exemplars struct {
	Span
	slowest [maxSlowest]pcommon.TraceID // the slowest first
	traces  int                         // number of traces in slowest
}

// add adds a tally. It adds the distribution only if values is set.
func (t *tally) add(o *tally, values bool) {
	if o.seen == 0 && o.rated == 0 {
		return
	}
	t.items += o.items
	t.seen += o.seen
	t.requests += o.requests
	t.failed += o.failed
	t.rated += o.rated
	t.timed += o.timed
	t.sum += o.sum
	if values {
		t.values.merge(&o.values)
	}
	t.slowest.keep(o.slowest)
	if !o.failure.Trace.IsEmpty() {
		t.failure = o.failure
	}
}

// keep replaces the exemplar if another exemplar is slower.
func (e *exemplar) keep(o exemplar) {
	if !o.Trace.IsEmpty() && (e.Trace.IsEmpty() || o.value > e.value) {
		*e = o
	}
}

// reset sets all counts to zero, but reuses the memory of the distribution.
func (t *tally) reset() {
	values := t.values
	values.reset()
	*t = tally{values: values}
}
