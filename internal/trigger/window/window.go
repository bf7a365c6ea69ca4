// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package window

// window is the running state of one test over the entries (head, last] of its history.
//
// Invariants, which the test function verify checks:
//   - head ≤ last and last − head ≤ len(ring): no entry of the window is overwritten
//   - headTick plus the steps of the entries is the tick of the newest entry
//   - readings, above, below and weighing are counts of the entries
//   - weighted and weight are sums over the entries, apart from rounding errors, which are
//     removed once per turn of the ring; both are 0 if weighing is 0
type window struct {
	head     uint64 // the newest entry before the window
	headTick int64
	readings int     // entries that are readings
	above    int     // readings above the threshold
	below    int     // readings below ReleaseBelow; 0 if there is no ReleaseBelow
	weighing int     // readings with a weight
	weighted float64 // sum of value × weight
	weight   float64 // sum of weights
	ready    bool    // the mean had enough history at the newest reading
}

func (w *window) reset(head uint64, tick int64) { *w = window{head: head, headTick: tick} }

// add appends the newest entry.
func (w *window) add(t *plannedTest, e entry) {
	if e.missing() {
		return
	}
	w.count(t, e, 1)
	weight := e.weight()
	w.weighted += float64(e.value) * weight
	w.weight += weight
}

// count adds 1 or -1 to each count that includes the reading.
func (w *window) count(t *plannedTest, e entry, by int) {
	w.readings += by
	if e.weight() > 0 {
		w.weighing += by
	}
	if v := float64(e.value); t.above(v) {
		w.above += by
	} else if t.releases && t.below(v) {
		w.below += by
	}
}

// pop removes the oldest entry.
func (w *window) pop(t *plannedTest, r *readings) {
	w.head++
	e := r.entry(w.head)
	w.headTick += e.step()
	if !e.missing() {
		w.count(t, e, -1)
	}
	switch {
	case w.head%uint64(len(r.ring)) == 0:
		w.resum(r)
	case w.weighing == 0:
		w.weighted, w.weight = 0, 0
	case !e.missing():
		weight := e.weight()
		w.weighted -= float64(e.value) * weight
		w.weight -= weight
	}
}

// resum recomputes the sums, so that rounding errors do not accumulate.
func (w *window) resum(r *readings) {
	w.weighted, w.weight = 0, 0
	for n := w.head + 1; n <= r.last; n++ {
		if e := r.entry(n); !e.missing() {
			w.weighted += float64(e.value) * e.weight()
			w.weight += e.weight()
		}
	}
}

// advance moves the window's start after a reading was stored.
func (w *window) advance(t *plannedTest, r *readings) {
	if t.count > 0 {
		w.popThrough(t, r, r.tick-t.span)
		return
	}
	if t.Whole { // the newest reading is the mean
		for w.head+1 < r.last {
			w.pop(t, r)
		}
		w.ready = w.weighing > 0
		return
	}
	// A mean starts at the reading nearest to one span before the newest reading, but never
	// before a break.
	start := r.tick - t.span
	for w.head < r.unbroken {
		w.pop(t, r)
	}
	for {
		n, next := r.after(w.head, w.headTick)
		if n == r.last || next > start && next-start >= start-w.headTick {
			break
		}
		for w.head < n {
			w.pop(t, r)
		}
	}
	// The history must cover the span, with a reading near its start.
	off := w.headTick - start
	w.ready = (w.weight > 0 || t.Sparse && w.weighing == 0) && r.since <= start+t.slack && -t.near <= off && off <= t.near &&
		2*(r.tick-w.headTick) >= t.span
	if t.Gauge {
		w.ready = w.ready && w.readings >= t.enough
	}
}

// popThrough removes the entries up to and including a tick.
func (w *window) popThrough(t *plannedTest, r *readings, tick int64) {
	for w.head < r.last && w.headTick+r.entry(w.head+1).step() <= tick {
		w.pop(t, r)
	}
}

// age removes the oldest entries if the next reading is overdue. Otherwise a period would
// not move forward without new readings.
func (w *window) age(t *plannedTest, r *readings, now int64) {
	if late := now - t.interval; late > r.at {
		w.popThrough(t, r, floorDiv(late, t.tick)-t.span)
	}
}

func (w *window) mean() float64 {
	if w.weight <= 0 {
		return 0
	}
	return max(0, w.weighted/w.weight)
}

// isFresh reports whether the newest reading is new enough for a span that ends now.
func (t *plannedTest) isFresh(r *readings, now int64) bool { return r.last > 0 && now-r.at <= t.fresh }
