// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package requests

import (
	"math"
	"slices"

	"go.opentelemetry.io/collector/pdata/pcommon"
)

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

const (
	// octave is the number of buckets between a value and its double. Each bucket is 3 to 6
	// % wide, and percentiles are interpolated within a bucket.
	octave = 16

	// Buckets cover the values from 2^minExponent to 2^maxExponent. The first and the last
	// bucket also count the values beyond this range.
	minExponent = -20
	maxExponent = 44

	// maxBuckets limits the buckets of one distribution. The buckets cover the 16 octaves
	// of the largest values. All smaller values share the lowest bucket.
	maxBuckets = 256
)

const indexBase = (1023 + minExponent) * octave

// bucketOf returns the number of a value's bucket. The number consists of the exponent and
// the first four bits of the mantissa.
func bucketOf(v float64) int {
	if !(v > 0) {
		return 0
	}
	return min(max(int(math.Float64bits(v)>>48)-indexBase, 0), (maxExponent-minExponent)*octave-1)
}

// lowerBound returns the smallest value of a bucket.
func lowerBound(bucket int) float64 {
	return math.Float64frombits(uint64(bucket+indexBase) << 48)
}

// distribution counts values by bucket. The zero value is empty.
type distribution struct {
	first  int // number of the bucket in counts[0]
	counts []float32
	total  float64
}

func (d *distribution) add(v, n float64) { d.addTo(bucketOf(v), n) }

func (d *distribution) addTo(bucket int, n float64) {
	if n <= 0 {
		return
	}
	d.total += n
	d.counts[d.at(bucket)] += float32(n)
}

// at returns the index of a bucket in counts. It extends counts if necessary.
func (d *distribution) at(bucket int) int {
	n := len(d.counts)
	if n == 0 {
		d.first = bucket
	}
	switch {
	case bucket < d.first:
		more := min(d.first-bucket, maxBuckets-n)
		if more > 0 {
			d.counts = append(d.counts, make([]float32, more)...)
			copy(d.counts[more:], d.counts[:n])
			clear(d.counts[:more])
			d.first -= more
		}
		return max(0, bucket-d.first)
	case bucket >= d.first+n:
		if over := min(bucket-d.first+1-maxBuckets, n); over > 0 { // the smallest values share a bucket
			var low float32
			for _, c := range d.counts[:over] {
				low += c
			}
			d.counts = slices.Delete(d.counts, 0, over)
			d.first += over
			if over == n {
				d.first, d.counts = bucket, append(d.counts, 0)
			}
			d.counts[0] += low
		}
		for len(d.counts) <= bucket-d.first {
			d.counts = append(d.counts, 0)
		}
	}
	return bucket - d.first
}

// spread adds n values that are distributed evenly between two bounds.
func (d *distribution) spread(from, to, n float64) {
	if n <= 0 {
		return
	}
	from, to = max(from, 0), max(to, 0)
	first, last := bucketOf(from), bucketOf(to)
	if to <= from || first == last {
		d.addTo(last, n)
		return
	}
	first = max(first, last-maxBuckets+1)
	for b := last; b >= first; b-- {
		low, high := max(lowerBound(b), from), min(lowerBound(b+1), to)
		if b == first {
			low = from
		}
		if high > low {
			d.addTo(b, n*(high-low)/(to-from))
		}
	}
}

func (d *distribution) merge(o *distribution) {
	for i, n := range o.counts {
		if n > 0 {
			d.addTo(o.first+i, float64(n))
		}
	}
}

func (d *distribution) reset() {
	clear(d.counts)
	d.counts, d.total = d.counts[:0], 0
}

// percentile returns an estimate of the value below which p percent of the values lie.
func (d *distribution) percentile(p float64) float64 {
	rank := p / 100 * d.total
	var below float64
	for i, n := range d.counts {
		c := float64(n)
		if c > 0 && below+c >= rank {
			low, high := lowerBound(d.first+i), lowerBound(d.first+i+1)
			if d.first+i == 0 {
				low = 0
			}
			return low + (high-low)*max(0, rank-below)/c
		}
		below += c
	}
	if n := len(d.counts); n > 0 {
		return lowerBound(d.first + n)
	}
	return 0
}
