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
	weighted float64 // sum of value × weight
	weight   float64 // sum of weights
	ready    bool    // a mean has enough history, judged at the newest reading
}

func (w *window) reset(head uint64, tick int64) { *w = window{head: head, headTick: tick} }

func (w *window) add(i *itemPlan, e entry) {
	if e.missing() {
		return
	}
	w.readings++
	if i.above(float64(e.value)) {
		w.above++
	}
	weight := e.weight()
	w.weighted += float64(e.value) * weight
	w.weight += weight
}

// pop takes the oldest entry out of the window.
func (w *window) pop(i *itemPlan, s *series) {
	w.head++
	e := s.entry(w.head)
	w.headTick += e.step()
	if w.head%uint64(len(s.ring)) == 0 {
		w.resum(s) // once a turn, so that rounding never adds up
	} else if !e.missing() {
		weight := e.weight()
		w.weighted -= float64(e.value) * weight
		w.weight -= weight
	}
	if e.missing() {
		return
	}
	w.readings--
	if i.above(float64(e.value)) {
		w.above--
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
	w.ready = w.weight > 0 && s.since <= start+i.slack && -i.near <= off && off <= i.near &&
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

func (w *window) mean() float64 { return max(0, w.weighted/w.weight) }

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
	slices.Sort(values)
	return float64(values[len(values)-i.count]), true
}

// holds says whether the item's test holds at a time, with the readings there
// are.
func (w *window) holds(i *itemPlan, s *series, now int64) bool {
	if s.last == 0 {
		return false
	}
	if i.count > 0 {
		if late := now - i.interval; late > s.at {
			// Readings are overdue: the period goes on without them.
			w.dropUntil(i, s, floorDiv(late, i.tick)-i.span)
		}
		return w.above >= i.count
	}
	return w.ready && now-s.at <= i.fresh && i.above(w.mean())
}

// value is what holds compares with the threshold. ok is false when there are
// too few readings to compare.
func (w *window) value(i *itemPlan, s *series, now int64, scratch *[]float32) (value float64, ok bool) {
	if s.last == 0 {
		return 0, false
	}
	if i.count > 0 {
		value, ok = w.countth(i, s, scratch)
	} else if w.ready && now-s.at <= i.fresh {
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
	p := math.Pow(10, 6-math.Floor(math.Log10(math.Abs(v))))
	if r := math.Round(v*p) / p; finite(r) {
		return r
	}
	return v
}
