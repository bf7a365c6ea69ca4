// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package requests

import (
	"hash/maphash"
	"math"
	"time"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/hotprofile/hotprofile/processor/cputriggerprocessor/internal/counters"
)

// These are the metrics of servers in the stable and in older semantic conventions.
const (
	stableHTTP = "http.server.request.duration"
	oldHTTP    = "http.server.duration"
	stableRPC  = "rpc.server.call.duration"
	oldRPC     = "rpc.server.duration"
)

// conventions describes the server metrics by name. unit is the factor that converts the
// values of a metric to ms.
var conventions = map[string]struct {
	of     protocol
	stable bool
	unit   float64
}{
	stableHTTP: {overHTTP, true, 1000},
	oldHTTP:    {overHTTP, false, 1},
	stableRPC:  {overRPC, true, 1000},
	oldRPC:     {overRPC, false, 1},
}

// units contains the factors that convert values to ms.
var units = map[string]float64{"s": 1000, "ms": 1, "us": 1e-3, "ns": 1e-6}

const (
	// maxPointBuckets limits the buckets of a point. SDKs use up to 160 buckets.
	maxPointBuckets = 1024

	// metricHold is the minimum time for which a point of a metric replaces spans.
	metricHold = 2 * time.Minute

	maxCount = 1 << 53
)

// ObserveMetrics counts the points of metrics that conditions use.
func (in *Intake) ObserveMetrics(md pmetric.Metrics) {
	p := in.plan.Load()
	if len(p.metrics) == 0 {
		return
	}
	now := in.cfg.Now()
	var counts counters.Items
	for _, rm := range md.ResourceMetrics().All() {
		in.observeResource(p, rm, now, &counts)
	}
	in.cfg.Counters.AddItems(&counts)
}

func (in *Intake) observeResource(p *plan, rm pmetric.ResourceMetrics, now time.Time, counts *counters.Items) {
	var s *source
	for _, sm := range rm.ScopeMetrics().All() {
		for _, m := range sm.Metrics().All() {
			if len(p.metrics[m.Name()]) == 0 {
				continue
			}
			if s == nil {
				if s = in.source(rm.Resource().Attributes(), now); s != nil {
					defer s.mu.Unlock()
				}
			}
			o := observation{in: in, s: s, now: now, counts: counts}
			switch {
			case s == nil:
				o.refused = counters.ItemOverLimit
			case s.unmatched || s.gone:
				o.refused = counters.ItemUnmatched
			default:
				o.name, o.selections = m.Name(), s.plan.metrics[m.Name()]
				o.scope = maphash.String(in.seed, sm.Scope().Name())
			}
			o.observe(m)
		}
	}
}

// observation processes the points of one metric. The caller holds the source's lock.
type observation struct {
	in         *Intake
	s          *source
	name       string
	scope      uint64
	selections []int
	now        time.Time
	counts     *counters.Items
	refused    counters.ItemOutcome // outcome of all points if they are refused; otherwise ItemIgnored

	unit float64 // factor that converts values to ms, for requests
	of   protocol

	// key and attributes belong to the current point.
	key        uint64
	attributes pcommon.Map
}

func (o *observation) observe(m pmetric.Metric) {
	if c, ok := conventions[o.name]; ok {
		o.of, o.unit = c.of, c.unit
		if c.stable {
			o.s.stable[c.of] = true
		} else if o.s.stable[c.of] { // the source sends both, so ignore the old metric
			o.of = noProtocol
		}
	}
	if unit, ok := units[m.Unit()]; ok {
		o.unit = unit
	}
	switch m.Type() {
	case pmetric.MetricTypeHistogram:
		cumulative := m.Histogram().AggregationTemporality() == pmetric.AggregationTemporalityCumulative
		each(o, m.Histogram().DataPoints(), func(p pmetric.HistogramDataPoint) counters.ItemOutcome { return o.histogram(p, cumulative) })
	case pmetric.MetricTypeExponentialHistogram:
		cumulative := m.ExponentialHistogram().AggregationTemporality() == pmetric.AggregationTemporalityCumulative
		each(o, m.ExponentialHistogram().DataPoints(), func(p pmetric.ExponentialHistogramDataPoint) counters.ItemOutcome {
			return o.exponential(p, cumulative)
		})
	case pmetric.MetricTypeSum:
		monotonic, cumulative := m.Sum().IsMonotonic(), m.Sum().AggregationTemporality() == pmetric.AggregationTemporalityCumulative
		each(o, m.Sum().DataPoints(), func(p pmetric.NumberDataPoint) counters.ItemOutcome { return o.number(p, monotonic, cumulative) })
	case pmetric.MetricTypeGauge:
		each(o, m.Gauge().DataPoints(), func(p pmetric.NumberDataPoint) counters.ItemOutcome { return o.number(p, false, true) })
	case pmetric.MetricTypeSummary:
		each(o, m.Summary().DataPoints(), o.summary)
	}
}

// point is a data point of any type.
type point interface {
	Attributes() pcommon.Map
	Flags() pmetric.DataPointFlags
}

// each processes the points of a metric, and counts their outcomes.
func each[P point, S interface {
	Len() int
	At(int) P
}](o *observation, points S, count func(P) counters.ItemOutcome) {
	for i := range points.Len() {
		outcome := o.refused
		if p := points.At(i); outcome == counters.ItemIgnored && !p.Flags().NoRecordedValue() {
			o.attributes = p.Attributes()
			o.key = maphash.String(o.in.seed, o.name) ^ mix(o.scope) ^ mix(o.in.hash(o.attributes))
			outcome = count(p)
		}
		o.counts[outcome]++
		if outcome == counters.ItemInvalid {
			o.in.logBad("a point of " + shorten(o.name) + " is not valid, or its type has no such statistic")
		}
	}
}

// increment is the new part of a point.
type increment struct {
	count, sum float64
	over       time.Duration // the time that the increment covers
	fill       func(d *distribution, unit float64)
	exemplars  pmetric.ExemplarSlice
	number     bool // a number data point, which has no distribution
}

// buckets describes the buckets of a histogram's point. layout is a hash of their bounds.
type buckets struct {
	layout uint64
	cells  pcommon.UInt64Slice
	scale  int32
	offset int
}

var noBuckets = buckets{cells: pcommon.NewUInt64Slice()}

// counted counts a point. For a cumulative point, it counts only the part that is new
// since the last point of the series. before is called with the series, and returns false
// if the series has restarted.
func (o *observation) counted(p interface {
	StartTimestamp() pcommon.Timestamp
	Timestamp() pcommon.Timestamp
}, i *increment, cumulative bool, b *buckets, before func(*series) bool,
) counters.ItemOutcome {
	i.over = between(p.StartTimestamp(), p.Timestamp())
	if cumulative {
		s, change, over := o.in.follow(o.s, o.key, o.name, p.StartTimestamp(), p.Timestamp(), i.count, b.layout, b.cells.Len())
		i.over = over
		switch change {
		case stale:
			return counters.ItemLate
		case refused:
			o.in.logBad("there are too many series")
			return counters.ItemOverLimit
		}
		defer o.in.keep(s, p.Timestamp(), i.count, i.sum, b, o.now)
		if change == since {
			i.count -= s.count
			i.sum -= s.sum
			if before != nil && !before(s) {
				change = nothing
			}
		}
		if change == nothing {
			return counters.ItemOK
		}
	}
	if !o.timely(p.Timestamp()) {
		return counters.ItemLate
	}
	return o.count(i)
}

func (o *observation) histogram(p pmetric.HistogramDataPoint, cumulative bool) counters.ItemOutcome {
	bounds, cells := p.ExplicitBounds(), p.BucketCounts()
	if !validHistogram(p) {
		return counters.ItemInvalid
	}
	var before []uint64
	i := increment{count: float64(p.Count()), sum: p.Sum(), exemplars: p.Exemplars()}
	i.fill = func(d *distribution, unit float64) {
		low := 0.0
		for n := range cells.Len() {
			c := float64(cells.At(n))
			if n < len(before) {
				c -= float64(before[n])
			}
			high := low
			if n < bounds.Len() {
				high = bounds.At(n) * unit
			} else if p.HasMax() && !cumulative {
				high = max(low, p.Max()*unit)
			}
			d.spread(low, high, c)
			low = max(high, 0)
		}
	}
	return o.counted(p, &i, cumulative, &buckets{layout: o.in.layout(bounds), cells: cells}, func(s *series) bool {
		before = s.cells
		for n, c := range before {
			if n >= cells.Len() || c > cells.At(n) {
				return false
			}
		}
		return true
	})
}

// timely reports whether the time of a point is close to now. It logs the first point
// whose time is not close to now.
func (o *observation) timely(at pcommon.Timestamp) bool {
	if timely(int64(at), o.now) {
		return true
	}
	o.in.logBad("points are of long before or after they came")
	return false
}

func validHistogram(p pmetric.HistogramDataPoint) bool {
	bounds, cells := p.ExplicitBounds(), p.BucketCounts()
	if p.Count() > maxCount || p.HasSum() && !finite(p.Sum()) || cells.Len() > maxPointBuckets {
		return false
	}
	if cells.Len() == 0 {
		return bounds.Len() == 0
	}
	if cells.Len() != bounds.Len()+1 {
		return false
	}
	for n := range bounds.Len() {
		if !finite(bounds.At(n)) || n > 0 && bounds.At(n) <= bounds.At(n-1) {
			return false
		}
	}
	return addUp(p.Count(), 0, cells)
}

// addUp reports whether the bucket counts and the number of other values add up to count.
func addUp(count, others uint64, buckets ...pcommon.UInt64Slice) bool {
	for _, cells := range buckets {
		for n := range cells.Len() {
			if cells.At(n) > count {
				return false
			}
			others += cells.At(n)
		}
	}
	return others == count
}

func finite(f float64) bool { return !math.IsNaN(f) && !math.IsInf(f, 0) }

// layout returns a hash of bucket bounds.
func (in *Intake) layout(bounds pcommon.Float64Slice) (sum uint64) {
	for n := range bounds.Len() {
		sum = mix(sum ^ math.Float64bits(bounds.At(n)) + 1)
	}
	return sum
}

// The data model allows these scales of exponential histograms.
const (
	minScale = -10
	maxScale = 20
)

func (o *observation) exponential(p pmetric.ExponentialHistogramDataPoint, cumulative bool) counters.ItemOutcome {
	cells := p.Positive().BucketCounts()
	scale, offset := p.Scale(), int(p.Positive().Offset())
	if !validExponential(p) {
		return counters.ItemInvalid
	}
	i := increment{count: float64(p.Count()), sum: p.Sum(), exemplars: p.Exemplars()}
	before := map[int]float64{}
	i.fill = func(d *distribution, unit float64) {
		width := math.Exp2(-float64(scale))
		rest := i.count
		for n := range cells.Len() {
			at := offset + n
			c := float64(cells.At(n)) - before[at]
			if c <= 0 {
				continue
			}
			d.spread(math.Exp2(float64(at)*width)*unit, math.Exp2(float64(at+1)*width)*unit, c)
			rest -= c
		}
		d.add(0, rest) // values of zero and below
	}
	return o.counted(p, &i, cumulative, &buckets{cells: cells, scale: scale, offset: offset}, func(s *series) bool {
		if s.scale < scale { // the scale of a series only decreases
			return false
		}
		for n, c := range s.cells {
			before[(s.offset+n)>>(s.scale-scale)] += float64(c)
		}
		return true
	})
}

func validExponential(p pmetric.ExponentialHistogramDataPoint) bool {
	if p.Count() > maxCount || p.HasSum() && !finite(p.Sum()) || p.Scale() < minScale || p.Scale() > maxScale ||
		p.Positive().BucketCounts().Len() > maxPointBuckets || p.Negative().BucketCounts().Len() > maxPointBuckets ||
		p.ZeroCount() > p.Count() {
		return false
	}
	return addUp(p.Count(), p.ZeroCount(), p.Positive().BucketCounts(), p.Negative().BucketCounts())
}

// count adds the increment of a point to the matching selections.
func (o *observation) count(i *increment) counters.ItemOutcome {
	if i.count < 0 {
		return counters.ItemInvalid
	}
	if o.of != noProtocol {
		i.sum = max(0, i.sum) // rounding may make the difference between two sums negative
	}
	r := request{status: -1}
	var uri uint64
	if o.of != noProtocol {
		for k, v := range o.attributes.All() {
			r.read(k, v)
		}
		r.protocol = o.of
		r.finish()
		uri = o.s.plan.matchesOf(&r)
	}
	outcome := counters.ItemIgnored
	for _, n := range o.selections {
		sel := &o.s.plan.selections[n]
		if sel.metric != "" {
			switch {
			case !o.hasAttributes(sel):
			case sel.quantity == metricRate || sel.quantity != metricLast && !i.number:
				outcome = counters.ItemOK
				o.add(n, i, 1, false)
			default:
				outcome = max(outcome, counters.ItemInvalid)
			}
			continue
		}
		if o.of == noProtocol || sel.uri != 0 && r.route == "" && r.path == "" {
			continue // the metric has no route or path, but spans may have one
		}
		outcome = counters.ItemOK
		o.s.counts[n].byMetric = o.now.Add(max(metricHold, i.over*5/2))
		if sel.has(&r, uri) {
			o.add(n, i, o.unit, sel.statuses.has(r.code()))
		}
	}
	return outcome
}

func (o *observation) add(n int, i *increment, unit float64, failed bool) {
	if i.count == 0 {
		return
	}
	c := &o.s.counts[n]
	t := &c.tally
	t.items++
	t.seen += i.count
	t.requests += i.count
	t.timed += i.count
	t.sum += i.sum * unit
	if failed {
		t.failed += i.count
	}
	c.spread.put(i.count, i.over, o.now)
	if o.s.plan.selections[n].values && i.fill != nil {
		i.fill(&t.values, unit)
	}
	if i.exemplars == (pmetric.ExemplarSlice{}) {
		return
	}
	for k := range min(i.exemplars.Len(), maxExemplars) {
		x := i.exemplars.At(k)
		if x.TraceID().IsEmpty() || !timely(int64(x.Timestamp()), o.now) {
			continue
		}
		e := exemplar{Span{x.TraceID(), x.SpanID()}, x.DoubleValue() * unit}
		if x.ValueType() == pmetric.ExemplarValueTypeInt {
			e.value = float64(x.IntValue()) * unit
		}
		t.slowest.keep(e)
		if failed {
			t.failure = e
		}
	}
}

// maxExemplars is the maximum number of exemplars that are read per point.
const maxExemplars = 64

func (o *observation) hasAttributes(s *selection) bool {
	for _, a := range s.attributes {
		if v, ok := o.attributes.Get(a.key); !ok || v.AsString() != a.value {
			return false
		}
	}
	return true
}

func (o *observation) number(p pmetric.NumberDataPoint, monotonic, cumulative bool) counters.ItemOutcome {
	value := p.DoubleValue()
	if p.ValueType() == pmetric.NumberDataPointValueTypeInt {
		value = float64(p.IntValue())
	}
	if !finite(value) {
		return counters.ItemInvalid
	}
	if !o.timely(p.Timestamp()) {
		return counters.ItemLate
	}
	outcome, rated := counters.ItemIgnored, false
	for _, n := range o.selections {
		sel := &o.s.plan.selections[n]
		switch {
		case sel.metric == "" || !o.hasAttributes(sel):
		case sel.quantity == metricLast && (cumulative || !monotonic):
			last := &o.s.counts[n].last
			if last.values == nil {
				*last = gauges{map[uint64]gauge{}, &o.in.series}
			}
			if !last.put(o.key, value, o.now) {
				return counters.ItemOverLimit
			}
			outcome = counters.ItemOK
		case sel.quantity == metricRate && monotonic:
			rated = true
		default:
			outcome = max(outcome, counters.ItemInvalid)
		}
	}
	if !rated {
		return outcome
	}
	return o.counted(p, &increment{number: true, count: value}, cumulative, &noBuckets, nil)
}

func (o *observation) summary(p pmetric.SummaryDataPoint) counters.ItemOutcome {
	if p.Count() > maxCount || !finite(p.Sum()) {
		return counters.ItemInvalid
	}
	return o.counted(p, &increment{count: float64(p.Count()), sum: p.Sum()}, true, &noBuckets, nil)
}
