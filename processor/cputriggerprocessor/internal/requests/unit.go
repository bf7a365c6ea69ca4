// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package requests

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"go.opentelemetry.io/collector/pdata/pcommon"

	"github.com/hotprofile/hotprofile/internal/monitor"
)

// maxSlices limits the slices of a window. In a long window, a slice covers several
// collection intervals. The window may then be up to one slice shorter than its span.
const maxSlices = 12

// unit contains the request counts of a unit. Only one goroutine at a time reads a unit.
type unit struct {
	began   time.Time // when the unit's first source was found
	windows []window  // by query; only the reader uses windows and plan, so mu does not guard them
	plan    *plan

	mu      sync.Mutex
	sources []*source
	used    time.Time            // when the unit last had a source
	spans   map[string]exemplars // spans of the last reading, by query key
}

// window contains the tallies of a query over its time span.
type window struct {
	slices []tally     // slices[n % len] starts n slice lengths after the epoch
	since  []time.Time // when each slice started to count
	length time.Duration
	newest int64
	// read and previous are the times of the last two readings.
	read, previous time.Time
	last           tally // tally of the last collection interval, for queries that count readings
}

// adopt switches a unit to a plan. It keeps the windows of queries that are in both plans.
func (u *unit) adopt(p *plan) {
	if u.plan == p {
		return
	}
	windows := make([]window, len(p.queries))
	if u.plan != nil {
		for i, q := range p.queries {
			if from, ok := u.plan.byKey[q.key]; ok {
				windows[i] = u.windows[from]
			}
		}
	}
	u.plan, u.windows = p, windows
	u.mu.Lock()
	defer u.mu.Unlock()
	u.spans = map[string]exemplars{}
}

// add adds a source. If the unit already has maxSourcesOfUnit sources, add removes the
// oldest source. The limit is needed because any sender may claim to belong to the unit.
func (u *unit) add(s *source) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if len(u.sources) >= maxSourcesOfUnit {
		u.sources[0].gaveWay.Store(true)
		u.sources = slices.Delete(u.sources, 0, 1)
	}
	u.sources = append(u.sources, s)
}

func (u *unit) remove(s *source) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.sources = slices.DeleteFunc(u.sources, func(o *source) bool { return o == s })
}

// idle reports whether the unit has had no source since the given time.
func (u *unit) idle(since time.Time) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return len(u.sources) == 0 && u.used.Before(since)
}

// These are the reasons why a monitor has no value.
const (
	noRequests monitor.Gap = "nothing of it was seen"
	tooFew     monitor.Gap = "the window has fewer requests than min_requests"
	tooShort   monitor.Gap = "it was not seen for as long as the window"
	noPoint    monitor.Gap = "the metric was not seen"
)

// reader contains the memory that Read reuses.
type reader struct {
	sources []*source // of the unit that is read
	sum     tally
	slow    []exemplar
	// byMetric contains, by service and selection, the time until which metrics are counted
	// instead of spans.
	byMetric map[string][]time.Time
}

// Read moves the counts of a unit's sources into the unit's windows. It writes the values
// of the monitors with the given keys to out. Only one goroutine may call Read.
func (in *Intake) Read(unit string, keys []string, now time.Time, interval time.Duration, out []monitor.Result) {
	r, u := &in.reader, in.lookup(unit)
	if u == nil {
		for i := range keys {
			out[i] = monitor.Result{Err: noRequests}
		}
		return
	}
	u.mu.Lock()
	r.sources = append(r.sources[:0], u.sources...)
	if len(r.sources) > 0 {
		u.used = now
	}
	u.mu.Unlock()
	u.adopt(in.plan.Load())
	for n := range u.windows {
		u.windows[n].begin(&u.plan.queries[n], now, interval)
	}
	r.prefer(u.plan, now)
	for _, s := range r.sources {
		u.drain(s, now, r.byMetric[s.claim.Service])
	}
	for i, key := range keys {
		n, ok := u.plan.byKey[key]
		if !ok { // the policies that use this monitor are being replaced
			out[i] = monitor.Result{Err: noRequests}
			continue
		}
		value, err := r.value(u, n, now)
		out[i] = monitor.Result{Reading: monitor.Reading{Time: now, Num: value}, Err: err}
	}
	clear(r.sources)
}

// begin advances a window to now.
func (w *window) begin(q *query, now time.Time, interval time.Duration) {
	if w.slices == nil {
		w.length = max(interval, (q.span/maxSlices + interval - 1).Truncate(interval))
		n := max(1, int(q.span/w.length))
		w.slices, w.since = make([]tally, n), make([]time.Time, n)
		w.read = now.Add(-interval)
		w.newest = now.UnixNano()/int64(w.length) - int64(n)
	}
	n := int64(len(w.slices))
	at := now.UnixNano() / int64(w.length)
	if at < w.newest { // the clock was set back
		w.newest = at - n
	}
	for i := max(w.newest+1, at-n+1); i <= at; i++ {
		w.slices[i%n].reset()
		w.since[i%n] = w.read
	}
	w.newest, w.previous, w.read = at, w.read, now
	w.last.reset()
}

// oldest returns the time at which the counts in the window begin.
func (w *window) oldest() time.Time { return w.since[(w.newest+1)%int64(len(w.since))] }

// prefer finds the selections for which a service in the unit sends metrics. The resource
// of the service's spans may differ from the resource of its metrics, because their
// pipelines may add different attributes.
func (r *reader) prefer(p *plan, now time.Time) {
	clear(r.byMetric)
	if len(r.sources) < 2 {
		return
	}
	for _, s := range r.sources {
		s.mu.Lock()
		if s.plan == p {
			for i := range s.counts {
				until := s.counts[i].byMetric
				if !until.After(now) {
					continue
				}
				of := r.byMetric[s.claim.Service]
				if of == nil {
					of = make([]time.Time, len(p.selections))
					r.byMetric[s.claim.Service] = of
				}
				if until.After(of[i]) {
					of[i] = until
				}
			}
		}
		s.mu.Unlock()
	}
}

// drain moves the counts of a source into the windows of its unit. If the source's service
// sends metrics, byMetric contains the time until which each selection counts metrics
// instead of spans.
func (u *unit) drain(s *source, now time.Time, byMetric []time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.unit != u {
		return
	}
	s.adopt(u.plan)
	for i, until := range byMetric {
		c := &s.counts[i]
		if !until.After(c.byMetric) {
			continue
		}
		if !c.byMetric.After(now) { // its counts come from spans, which the metrics replace
			c.tally.reset()
		}
		c.byMetric = until
	}
	for i := range s.counts {
		s.counts[i].tally.rated += s.counts[i].spread.take(now)
	}
	for n := range u.windows {
		q, w := &u.plan.queries[n], &u.windows[n]
		t := &s.counts[q.selection].tally
		if q.counted {
			w.last.add(t, q.distributed())
		}
		w.slices[w.newest%int64(len(w.slices))].add(t, q.distributed())
	}
	for i := range s.counts {
		s.counts[i].tally.reset()
	}
}

// value returns the current value of a query.
func (r *reader) value(u *unit, n int, now time.Time) (float64, error) {
	q, w := &u.plan.queries[n], &u.windows[n]
	if q.quantity == metricLast {
		return r.last(u.plan, q, now)
	}
	sum, length := &r.sum, now.Sub(w.oldest())
	sum.reset()
	r.slow = r.slow[:0]
	for i := range w.slices {
		sum.add(&w.slices[i], true)
		if e := w.slices[i].slowest; !e.Trace.IsEmpty() {
			r.slow = append(r.slow, e)
		}
	}
	seen := sum.seen
	of := exemplars{Span: sum.slowest.Span}
	if q.quantity == errorRate {
		of.Span = sum.failure.Span
	}
	slices.SortFunc(r.slow, func(a, b exemplar) int { return cmp.Compare(b.value, a.value) })
	for _, e := range r.slow {
		if n := of.traces; n < maxSlowest && !slices.Contains(of.slowest[:n], e.Trace) {
			of.slowest[n] = e.Trace
			of.traces++
		}
	}
	u.mu.Lock()
	u.spans[q.key] = of
	u.mu.Unlock()
	if q.counted {
		sum, length = &w.last, now.Sub(w.previous)
	}
	switch q.quantity {
	case requestRate, metricRate:
		if now.Sub(u.began) < q.span {
			return 0, tooShort
		}
		return sum.rated / length.Seconds(), nil
	}
	if seen < q.min || sum.seen == 0 {
		return 0, tooFew
	}
	switch q.quantity {
	case errorRate:
		return 100 * sum.failed / sum.requests, nil
	case averageTime, metricMean:
		if sum.timed > 0 {
			return sum.sum / sum.timed, nil
		}
	case percentileTime, metricPercentile:
		if sum.values.total > 0 {
			return sum.values.percentile(q.percentile), nil
		}
	}
	return 0, tooFew
}

// last returns the sum of the last values of all series of a metric.
func (r *reader) last(p *plan, q *query, now time.Time) (sum float64, err error) {
	some := false
	for _, s := range r.sources {
		s.mu.Lock()
		if s.plan == p {
			if v, ok := s.counts[q.selection].last.sum(now); ok {
				sum += v
				some = true
			}
		}
		s.mu.Unlock()
	}
	if !some {
		return 0, noPoint
	}
	return sum, nil
}

// Span returns the span of a request that contributed to a monitor's last reading. For an
// error rate, this is a failed request. For other monitors, it is the slowest request.
// The result is empty if no such span is known.
func (in *Intake) Span(unit, key string) Span { return in.exemplars(unit, key).Span }

// Slowest returns the traces of the slowest requests of a monitor's last reading,
// starting with the slowest request. It returns at most one trace from each twelfth of
// the window.
func (in *Intake) Slowest(unit, key string) []pcommon.TraceID {
	of := in.exemplars(unit, key)
	return of.slowest[:of.traces]
}

func (in *Intake) exemplars(unit, key string) exemplars {
	u := in.lookup(unit)
	if u == nil {
		return exemplars{}
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.spans[key]
}

// spread distributes an amount evenly over a time span. Rates need a spread, because one
// point of a metric covers many seconds.
type spread struct {
	amount float64
	since  time.Time
	until  time.Time
}

// put adds an amount that a point counted over a time span. The amount is spread over a
// span of the same length, starting now.
func (s *spread) put(amount float64, over time.Duration, now time.Time) {
	if s.amount == 0 || s.since.IsZero() {
		s.since = now
	}
	s.amount += amount
	if until := now.Add(over); until.After(s.until) {
		s.until = until
	}
}

// take removes and returns the part of the amount that is due since the last call.
func (s *spread) take(now time.Time) float64 {
	if s.amount == 0 {
		return 0
	}
	left, passed := s.until.Sub(s.since), now.Sub(s.since)
	part := s.amount
	if passed < left {
		part *= max(0, passed.Seconds()) / left.Seconds()
	}
	s.amount -= part
	s.since = now
	return part
}
