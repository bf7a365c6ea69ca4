// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package window

import (
	"math"
	"slices"
)

// Each method below evaluates the test that has the given index. Times must not run
// backwards between calls. A missing reading never counts as above or below.

func (h *History) test(n int) (*plannedTest, *window, *readings) {
	return &h.monitor.tests[n], &h.windows[n], h.readings
}

// Holds reports whether a test holds.
func (h *History) Holds(test int, now int64) bool {
	holds, _ := h.Heat(test, now)
	return holds
}

// Released reports whether a test is below its ReleaseBelow. A test that holds is never
// released, regardless of its other readings.
func (h *History) Released(test int, now int64) bool {
	t, w, r := h.test(test)
	if !t.releases || r.last == 0 {
		return false
	}
	if t.count > 0 {
		w.age(t, r, now)
		return w.below >= t.count && w.above < t.count
	}
	return w.ready && t.isFresh(r, now) && t.below(w.mean())
}

// Fails reports whether the test's mean is known and is not above the threshold.
func (h *History) Fails(test int, now int64) bool {
	t, w, r := h.test(test)
	return w.ready && t.isFresh(r, now) && !t.above(w.mean())
}

// Warm reports whether the test may hold soon. The readings must be fresh, and a reading
// in the window must be above the threshold.
func (h *History) Warm(test int, now int64) bool {
	return h.windows[test].above > 0 && h.monitor.tests[test].isFresh(h.readings, now)
}

// Above reports whether the newest reading is fresh and above the threshold.
func (h *History) Above(test int, now int64) bool {
	t := &h.monitor.tests[test]
	return t.isFresh(h.readings, now) && t.above(float64(h.entry(h.last).value))
}

// Heat reports whether a test holds. It also returns the ratio of the window's mean to
// the threshold. Unlike Value, Heat does not need a full window and does not read each
// entry. Without fresh readings, the ratio is 0. For a Count test that holds on fresh
// readings, the ratio is at least 1.
func (h *History) Heat(test int, now int64) (holds bool, ratio float64) {
	t, w, r := h.test(test)
	if t.count > 0 && r.last > 0 {
		w.age(t, r, now)
		holds = w.above >= t.count
	}
	if !t.isFresh(r, now) {
		return holds, 0
	}
	mean := w.mean()
	ratio = t.ratio(mean)
	switch {
	case t.count == 0:
		holds = w.ready && t.above(mean)
	case holds:
		ratio = max(1, ratio)
	}
	return holds, ratio
}

// Value returns the value that a test compares with its threshold. The value is the mean, or
// the Count-th largest reading of the period. ok is false if there are too few readings. The
// readings of a period are copied to scratch.
func (h *History) Value(test int, now int64, scratch *[]float32) (value float64, ok bool) {
	t, w, r := h.test(test)
	if r.last == 0 {
		return 0, false
	}
	if t.count > 0 {
		value, ok = w.countth(t, r, scratch)
	} else if w.ready && t.isFresh(r, now) {
		value, ok = w.mean(), true
	}
	return sevenDigits(value), ok
}

// countth returns the Count-th largest reading. It is above the threshold if and only if
// at least Count readings are above the threshold.
func (w *window) countth(t *plannedTest, r *readings, scratch *[]float32) (float64, bool) {
	values := (*scratch)[:0]
	for n := w.head + 1; n <= r.last; n++ {
		if e := r.entry(n); !e.missing() {
			values = append(values, e.value)
		}
	}
	*scratch = values
	if len(values) < t.count {
		return 0, false
	}
	return float64(nthLargest(values, t.count)), true
}

// nthLargest returns the nth largest value and reorders the values. It uses quickselect,
// because it may run for every unit at once during an incident.
func nthLargest(values []float32, n int) float32 {
	const mostTurns = 32 // only an adversarial order needs more
	n--                  // now an index in descending order
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

// sevenDigits rounds to the precision of the stored readings, so that reports contain no
// meaningless digits.
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
