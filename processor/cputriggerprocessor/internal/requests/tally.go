// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package requests

import "go.opentelemetry.io/collector/pdata/pcommon"

// tally counts the requests, or the data points, that one selection has.
type tally struct {
	items    int64   // spans and points that were counted
	seen     float64 // requests that were seen: a sampled span is one
	requests float64 // requests that they stand for
	failed   float64 // of these
	rated    float64 // of these, each at the time that a rate counts it
	timed    float64 // of these, those with a duration
	sum      float64 // of the durations in ms, or of a metric's values
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

// keep keeps the slower one.
func (e *exemplar) keep(o exemplar) {
	if !o.Trace.IsEmpty() && (e.Trace.IsEmpty() || o.value > e.value) {
		*e = o
	}
}

// reset forgets what was counted, and keeps the memory.
func (t *tally) reset() {
	values := t.values
	values.reset()
	*t = tally{values: values}
}
