// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package trigger

import (
	"math"
	"time"
)

// ticksPerInterval is the resolution at which the ring keeps the time between
// readings. It makes a step of up to 3.98 intervals fit in a byte: any longer
// step is a gap, which fillers stand for.
const (
	ticksPerInterval = 64
	maxStep          = 255

	// maxValue is what fits in an entry with room to round.
	maxValue = math.MaxFloat32 / 2
)

// entry is one reading in 8 bytes: the value over the step that it ends, how
// much that step weighs in a mean, and its length.
//
// A filler (part of a gap too long for one step) and a reading that only sets
// a baseline have the value NaN and no weight.
type entry struct {
	value float32
	// packed holds the weight in its upper 24 bits, a float32 without sign and
	// without the 7 last bits of its mantissa, and the step's ticks below. A
	// weight that is a little off does not bend a mean of equal values, and
	// bends others by less than 1e-5 of their spread.
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

// series is the recent history of one monitor of one unit.
type series struct {
	ring []entry // entry n is at n % len(ring)
	last uint64  // number of the newest entry; entries count from 1
	// unbroken is the first entry from which the readings go on to the newest
	// without a restart of the counter or a gap above three intervals.
	unbroken uint64
	since    int64 // tick of that one
	tick     int64 // of the newest entry
	at       int64 // its time, ns since the engine's epoch
	num, den float64
}

func (s *series) entry(n uint64) entry { return s.ring[n%uint64(len(s.ring))] }

// after returns the first reading after an entry, and its tick.
func (s *series) after(n uint64, tick int64) (uint64, int64) {
	for n < s.last {
		n++
		e := s.entry(n)
		tick += e.step()
		if !e.missing() {
			break
		}
	}
	return n, tick
}

// observe stores a reading and returns its value over the step since the one
// before. There is none when the reading only sets the baseline or is no news.
func (s *series) observe(m *monitorPlan, windows []window, at int64, num, den float64) (value float64, ok bool) {
	if !finite(num) || !finite(den) || m.gauge && math.Abs(num) > maxValue || (s.last > 0 && at <= s.at) {
		return 0, false
	}
	tick := floorDiv(at, m.tick)
	if s.last == 0 {
		s.tick = tick
		for i := range windows {
			windows[i].reset(0, tick)
		}
	}
	step := s.skipGap(m, windows, tick)

	value, weight, broken := math.NaN(), 0.0, false
	if m.gauge {
		value, weight, ok = num, float64(min(tick-s.tick, maxStep)), true
	} else if s.last > 0 {
		broken = at-s.at > m.maxGap
		dNum, dDen := num-s.num, den-s.den
		switch v := m.scale * dNum / dDen; {
		case m.sparse && dDen == 0 && dNum >= 0:
			value, ok = 0, true
		case dNum < 0 || dDen <= 0 || v > maxValue || dDen > maxValue:
			broken = true // the counter ran backwards or is nonsense: a new baseline
		default:
			value, weight, ok = v, dDen, true
		}
	}
	s.num, s.den, s.at, s.tick = num, den, at, tick
	s.push(m, windows, newEntry(value, weight, step))
	if broken || s.last == 1 {
		s.unbroken, s.since = s.last, tick
	}
	for i := range windows {
		windows[i].advance(&m.items[i], s)
	}
	return value, ok
}

// skipGap puts fillers where a step is too long for one entry, and returns what
// is left of it.
func (s *series) skipGap(m *monitorPlan, windows []window, tick int64) int64 {
	step := tick - s.tick
	fillers := max(0, step-1) / maxStep
	if fillers < int64(len(s.ring)) {
		for range fillers {
			s.push(m, windows, newEntry(math.NaN(), 0, maxStep))
		}
		return step - fillers*maxStep
	}
	// The gap is longer than the history: nothing before it counts.
	for i := range windows {
		windows[i].reset(s.last, tick)
	}
	s.unbroken, s.since = s.last+1, tick
	return 0
}

func (s *series) push(m *monitorPlan, windows []window, e entry) {
	n := s.last + 1
	for i := range windows {
		w := &windows[i]
		if w.head+uint64(len(s.ring)) < n { // its oldest entry is about to be overwritten
			w.pop(&m.items[i], s)
		}
	}
	s.ring[n%uint64(len(s.ring))] = e
	s.last = n
	for i := range windows {
		windows[i].add(&m.items[i], e)
	}
}

func floorDiv(a, b int64) int64 {
	q := a / b
	if a%b < 0 {
		q--
	}
	return q
}

// ringSize is the number of entries that hold a span: one per interval, the
// reading at its far end, and some for readings that come early.
func ringSize(span, interval time.Duration) int {
	return int((span+interval-1)/interval) + 2
}
