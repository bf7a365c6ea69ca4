// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package window keeps the recent readings of a monitor and tests them over time spans.
//
// A [Monitor] is a plan. It defines how readings become values, how long readings are
// kept, and how readings are tested. A [History] contains the readings of one monitor of
// one unit, and a window for each test. A window keeps running counts and sums, so the
// cost of a test does not depend on its span.
//
// The package has no clock and allocates only in [Monitor.NewHistory] and [Monitor.Adopt].
// Times are nanoseconds on a scale that the caller chooses. The package is not safe for
// concurrent use.
package window

import (
	"math"
	"slices"
)

// ticksPerInterval is the resolution of the time between two readings. A step of up to 3.98
// intervals then fits in a byte. A longer step is a gap, which is stored as fillers.
const (
	ticksPerInterval = 64
	maxStep          = 255

	// maxValue is half of the largest float32, so that rounding cannot overflow an entry.
	maxValue = math.MaxFloat32 / 2
)

// entry is one reading in 8 bytes. It contains the value, the step since the previous
// entry and the weight of the step in a mean.
//
// A filler is a part of a gap that is too long for one step. Fillers have the value NaN and
// the weight 0. Readings that only serve as a starting point have the same value and weight.
type entry struct {
	value float32
	// packed contains the weight in its upper 24 bits and the step in ticks in its lower 8
	// bits. The weight is a float32 without its sign and the last 7 bits of its mantissa.
	// The lost bits do not change a mean of equal values. They change other means by less
	// than 1e-5 of the spread of the values.
	packed uint32
}

func newEntry(value, weight float64, step int64) entry {
	return entry{
		value:  float32(value),
		packed: (math.Float32bits(float32(weight))+1<<6)>>7<<8 | uint32(step),
	}
}

func (e entry) weight() float64 { return float64(math.Float32frombits(e.packed >> 8 << 7)) }
func (e entry) step() int64     { return int64(e.packed & maxStep) }
func (e entry) missing() bool   { return e.value != e.value }

// History contains the recent readings of one monitor of one unit, and a window per test.
// The zero value must not be used.
type History struct {
	monitor *Monitor
	windows []window // one per test
	// The readings are behind a pointer so that the windows of a unit share cache lines.
	*readings
}

// readings is a ring of entries.
//
// Invariants, while last > 0:
//   - the ring contains the entries last − len(ring) + 1 to last; older entries are
//     overwritten
//   - 1 ≤ unbroken ≤ last, or last + 1 while a gap longer than the ring is skipped
//   - the tick of an entry plus the steps of all later entries is tick
//   - at only increases; tick is the same time in ticks
type readings struct {
	last uint64  // number of the newest entry; entries count from 1
	at   int64   // time of the newest reading in ns
	ring []entry // entry n is at n % len(ring)
	// unbroken is the first entry after the last break. A break is a restart of the counter
	// or a loss in Adopt. A late reading is not a break, because it covers the time since
	// the previous reading.
	unbroken uint64
	since    int64 // tick of unbroken
	tick     int64 // tick of the newest entry
	num, den float64
}

// NewHistory returns an empty history. The history stores no readings if the monitor has no
// tests.
func (m *Monitor) NewHistory() History {
	h := History{monitor: m, readings: &readings{}}
	if len(m.tests) > 0 {
		h.ring = make([]entry, m.ring)
		h.windows = make([]window, len(m.tests))
	}
	return h
}

// Observe stores a reading and returns its value over the time since the previous
// reading. ok is false if there is no such value. A counter has no value at its first
// reading, or if it has run backwards. Observe ignores readings that are not finite or
// not later than the last reading.
func (h *History) Observe(at int64, num, den float64) (value float64, ok bool) {
	k := h.monitor.kind
	if !finite(num) || !finite(den) || (k.Gauge || k.Whole) && math.Abs(num) > maxValue || (h.last > 0 && at <= h.at) {
		return 0, false
	}
	tick := floorDiv(at, h.monitor.tick)
	if h.last == 0 {
		h.tick = tick
		for i := range h.windows {
			h.windows[i].reset(0, tick)
		}
	}
	step := h.skipGap(tick)

	value, weight, broken := math.NaN(), 0.0, false
	if k.Whole {
		value, weight, ok = num, 1, true
	} else if k.Gauge {
		value, weight, ok = num, float64(min(tick-h.tick, maxStep)), true
	} else if h.last > 0 {
		dNum, dDen := num-h.num, den-h.den
		switch v := k.Scale * dNum / dDen; {
		case k.Sparse && dDen == 0 && dNum >= 0:
			value, ok = 0, true
		case dNum < 0 || dDen <= 0 || v > maxValue || dDen > maxValue:
			broken = true // the counter ran backwards or is invalid, so this is a new starting point
		default:
			value, weight, ok = v, dDen, true
		}
	}
	h.num, h.den, h.at, h.tick = num, den, at, tick
	h.push(newEntry(value, weight, step))
	if broken || h.last == 1 {
		h.unbroken, h.since = h.last, tick
	}
	for i := range h.windows {
		h.windows[i].advance(&h.monitor.tests[i], h.readings)
	}
	return value, ok
}

// Last returns the newest reading. ok is false if there is no reading.
func (h *History) Last() (at int64, num, den float64, ok bool) {
	return h.at, h.num, h.den, h.last > 0
}

// Restart forgets the readings, so the next reading is a new starting point.
func (h *History) Restart() {
	clear(h.windows)
	*h.readings = readings{ring: h.ring}
}

// skipGap stores fillers if a step is too long for one entry. It returns the rest of the
// step.
func (h *History) skipGap(tick int64) int64 {
	step := tick - h.tick
	fillers := max(0, step-1) / maxStep
	if fillers < int64(len(h.ring)) {
		for range fillers {
			h.push(newEntry(math.NaN(), 0, maxStep))
		}
		return step - fillers*maxStep
	}
	// The gap is longer than the history, so no reading before it counts.
	for i := range h.ring {
		h.ring[i] = newEntry(math.NaN(), 0, 0)
	}
	for i := range h.windows {
		h.windows[i].reset(h.last, tick)
	}
	h.unbroken, h.since = h.last+1, tick
	return 0
}

func (h *History) push(e entry) {
	n := h.last + 1
	for i := range h.windows {
		w := &h.windows[i]
		if w.head+uint64(len(h.ring)) < n { // the window's oldest entry is about to be overwritten
			w.pop(&h.monitor.tests[i], h.readings)
		}
	}
	h.ring[n%uint64(len(h.ring))] = e
	h.last = n
	for i := range h.windows {
		h.windows[i].add(&h.monitor.tests[i], e)
	}
}

func (r *readings) entry(n uint64) entry { return r.ring[n%uint64(len(r.ring))] }

// after returns the number and the tick of the first reading after an entry.
func (r *readings) after(n uint64, tick int64) (uint64, int64) {
	for n < r.last {
		n++
		e := r.entry(n)
		tick += e.step()
		if !e.missing() {
			break
		}
	}
	return n, tick
}

func floorDiv(a, b int64) int64 {
	q := a / b
	if a%b < 0 {
		q--
	}
	return q
}

// Adopt returns a history for this plan. The history continues old, which is the history of
// the same monitor under another plan. old must not be used afterwards. Each test starts with
// the readings in old. A test does not hold until the readings cover its span.
func (m *Monitor) Adopt(old History) History {
	if len(m.tests) == 0 || len(old.monitor.tests) == 0 {
		return m.NewHistory()
	}
	if m.ring == len(old.ring) && slices.Equal(m.tests, old.monitor.tests) {
		old.monitor = m
		return old
	}
	h := History{monitor: m, windows: make([]window, len(m.tests)), readings: old.readings}
	kept := min(h.last, uint64(len(h.ring)), uint64(m.ring))
	h.resize(m.ring, kept)
	for i := range m.tests {
		h.windows[i] = h.windowSince(&m.tests[i], h.last-kept)
	}
	return h
}

// resize changes the length of the ring and keeps the newest entries. Older entries are
// lost, even if the new ring has room for them. Fillers replace the lost entries.
func (r *readings) resize(length int, kept uint64) {
	if length == len(r.ring) {
		return
	}
	ring, tick := slices.Repeat([]entry{newEntry(math.NaN(), 0, 0)}, length), r.tick
	for n := r.last - kept + 1; n <= r.last; n++ {
		e := r.entry(n)
		ring[n%uint64(length)] = e
		tick -= e.step()
	}
	r.ring = ring
	if first := r.last - kept; first > r.unbroken {
		r.unbroken, r.since = first, tick
	}
}

// windowSince returns the window of a test over the entries after head.
func (r *readings) windowSince(t *plannedTest, head uint64) window {
	w := window{head: head, headTick: r.tick}
	for n := head + 1; n <= r.last; n++ {
		e := r.entry(n)
		w.headTick -= e.step()
		w.add(t, e)
	}
	w.advance(t, r)
	return w
}
