// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package requests

import "go.opentelemetry.io/collector/pdata/pcommon"

// tally counts the requests, or the data points, of one selection.
type tally struct {
	items    int64   // spans and points that were counted
	seen     float64 // requests that were seen; a sampled span is one
	requests float64 // requests that the sampled spans represent
	failed   float64 // failed requests
	rated    float64 // requests that a rate counts; a spread delays them
	timed    float64 // requests with a duration
	sum      float64 // of the durations in ms, or of the values of a metric
	values   distribution

	slowest exemplar
	failure exemplar
}

// Span identifies the span of one request.
type Span struct {
	Trace pcommon.TraceID
	ID    pcommon.SpanID
}

// exemplar is the span of one request.
type exemplar struct {
	Span
	value float64
}

func (t *tally) add(o *tally) {
	t.items += o.items
	t.seen += o.seen
	t.requests += o.requests
	t.failed += o.failed
	t.rated += o.rated
	t.timed += o.timed
	t.sum += o.sum
	t.values.merge(&o.values)
	t.slowest.keep(o.slowest)
	if !o.failure.Trace.IsEmpty() {
		t.failure = o.failure
	}
}

// keep keeps the slower of two exemplars.
func (e *exemplar) keep(o exemplar) {
	if !o.Trace.IsEmpty() && (e.Trace.IsEmpty() || o.value > e.value) {
		*e = o
	}
}

// reset sets all counts to zero, and keeps the memory of the distribution.
func (t *tally) reset() {
	values := t.values
	values.reset()
	*t = tally{values: values}
}
