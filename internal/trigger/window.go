// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package trigger

import (
	"math"
	"slices"
)

// window is the running state of one item over the entries (head, last] of its
// series, so that a test costs the same whatever the window's length.
type window struct {
	head     uint64 // the newest entry before the window
	headTick int64
	readings int     // entries that are readings
	above    int     // of these, how many are above the threshold
	below    int     // of these, how many are below what releases
	weighing int     // of these, how many weigh something
	weighted float64 // sum of value × weight
	weight   float64 // sum of weights
	ready    bool    // a mean has enough history, judged at the newest reading
}

func (w *window) reset(head uint64, tick int64) { *w = window{head: head, headTick: tick} }

func (w *window) add(i *itemPlan, e entry) {
	if e.missing() {
		return
	}
	w.tally(i, e, 1)
	weight := e.weight()
	w.weighted += float64(e.value) * weight
	w.weight += weight
}

// tally counts a reading in (1) or out (-1).
func (w *window) tally(i *itemPlan, e entry, by int) {
	w.readings += by
	if e.weight() > 0 {
		w.weighing += by
	}
	if v := float64(e.value); i.above(v) {
		w.above += by
	} else if i.releases && i.below(v) {
		w.below += by
	}
}

// pop takes the oldest entry out of the window.
func (w *window) pop(i *itemPlan, s *series) {
	w.head++
	e := s.entry(w.head)
	w.headTick += e.step()
	if !e.missing() {
		w.tally(i, e, -1)
	}
	switch {
	case w.head%uint64(len(s.ring)) == 0:
		w.resum(s) // once a turn, so that rounding never adds up
	case w.weighing == 0:
		w.weighted, w.weight = 0, 0
	case !e.missing():
		weight := e.weight()
		w.weighted -= float64(e.value) * weight
		w.weight -= weight
	}
}

func (w *window) resum(s *series) {
	w.weighted, w.weight = 0, 0
	for n := w.head + 1; n <= s.last; n++ {
		if e := s.entry(n); !e.missing() {
			w.weighted += float64(e.value) * e.weight()
			w.weight += e.weight()
		}
	}
}

// advance moves the window's start after a reading was stored.
func (w *window) advance(i *itemPlan, s *series) {
	if i.count > 0 {
		w.dropUntil(i, s, s.tick-i.span)
		return
	}
	// A mean starts at the reading nearest to its span before the newest one,
	// and not before a break.
	start := s.tick - i.span
	for w.head < s.unbroken {
		w.pop(i, s)
	}
	for {
		n, next := s.after(w.head, w.headTick)
		if n == s.last || next > start && next-start >= start-w.headTick {
			break
		}
		for w.head < n {
			w.pop(i, s)
		}
	}
	// The history must cover the span, and a reading be near its start.
	off := w.headTick - start
	w.ready = (w.weight > 0 || i.sparse && w.weighing == 0) && s.since <= start+i.slack && -i.near <= off && off <= i.near &&
		2*(s.tick-w.headTick) >= i.span
	if i.gauge {
		w.ready = w.ready && w.readings >= i.enough
	}
}

// dropUntil takes out the entries at or before a tick.
func (w *window) dropUntil(i *itemPlan, s *series, tick int64) {
	for w.head < s.last && w.headTick+s.entry(w.head+1).step() <= tick {
		w.pop(i, s)
	}
}

func (w *window) mean() float64 {
	if w.weight <= 0 {
		return 0
	}
	return max(0, w.weighted/w.weight)
}

// ends says that the newest reading is new enough to be the end of a span.
func (i *itemPlan) ends(s *series, now int64) bool { return s.last > 0 && now-s.at <= i.fresh }

// countth returns the count-th largest reading of the window: it is above the
// threshold exactly when at least count readings are.
func (w *window) countth(i *itemPlan, s *series, scratch *[]float32) (float64, bool) {
	values := (*scratch)[:0]
	for n := w.head + 1; n <= s.last; n++ {
		if e := s.entry(n); !e.missing() {
			values = append(values, e.value)
		}
	}
	*scratch = values
	if len(values) < i.count {
		return 0, false
	}
	return float64(nthLargest(values, i.count)), true
}

// nthLargest reorders the values, of which it puts in order no more than it
// needs to (quickselect): in an incident it is asked of every unit at once.
func nthLargest(values []float32, n int) float32 {
	const mostTurns = 32 // far more than any but contrived orders need
	n--                  // the index in descending order
	lo, hi := 0, len(values)-1
	for turn := 0; lo < hi; turn++ {
		if turn == mostTurns {
			slices.Sort(values[lo : hi+1])
			return values[hi-(n-lo)]
		}
		pivot := values[(lo+hi)/2]
		i, j := lo, hi
		for i <= j {
			for values[i] > pivot {
				i++
			}
			for values[j] < pivot {
				j--
			}
			if i <= j {
				values[i], values[j] = values[j], values[i]
				i++
				j--
			}
		}
		switch {
		case n <= j:
			hi = j
		case n >= i:
			lo = i
		default:
			return values[n]
		}
	}
	return values[n]
}

// holds says whether the item's test holds at a time, with the readings there
// are.
func (w *window) holds(i *itemPlan, s *series, now int64) bool {
	if s.last == 0 {
		return false
	}
	if i.count > 0 {
		w.overdue(i, s, now)
		return w.above >= i.count
	}
	return w.ready && i.ends(s, now) && i.above(w.mean())
}

// overdue lets the period go on without the readings that should have come.
func (w *window) overdue(i *itemPlan, s *series, now int64) {
	if late := now - i.interval; late > s.at {
		w.dropUntil(i, s, floorDiv(late, i.tick)-i.span)
	}
}

// released says whether the item's test for closing early holds. One that holds
// is not released, whatever else is in the period.
func (w *window) released(i *itemPlan, s *series, now int64) bool {
	if !i.releases || s.last == 0 {
		return false
	}
	if i.count > 0 {
		w.overdue(i, s, now)
		return w.below >= i.count && w.above < i.count
	}
	return w.ready && i.ends(s, now) && i.below(w.mean())
}

// standing is holds, with how hot the item is: the mean of what is in its window
// against the threshold, however long the window, and however little is in it.
func (w *window) standing(i *itemPlan, s *series, now int64) (holds bool, ratio float64) {
	if i.count > 0 {
		holds = w.holds(i, s, now)
	}
	if !i.ends(s, now) {
		return holds, 0
	}
	mean := w.mean()
	if i.count > 0 {
		if holds {
			return true, max(1, i.ratio(mean))
		}
		return false, i.ratio(mean)
	}
	return w.ready && i.above(mean), i.ratio(mean)
}

// value is what holds compares with the threshold. ok is false when there are
// too few readings to compare.
func (w *window) value(i *itemPlan, s *series, now int64, scratch *[]float32) (value float64, ok bool) {
	if s.last == 0 {
		return 0, false
	}
	if i.count > 0 {
		value, ok = w.countth(i, s, scratch)
	} else if w.ready && i.ends(s, now) {
		value, ok = w.mean(), true
	}
	return sevenDigits(value), ok
}

// sevenDigits rounds to the precision of the stored readings, so that reports
// do not show digits that mean nothing.
func sevenDigits(v float64) float64 {
	if v == 0 || !finite(v) {
		return v
	}
	p := math.Pow10(6 - int(math.Floor(math.Log10(math.Abs(v)))))
	if r := math.Round(v*p) / p; finite(r) {
		return r
	}
	return v
}
