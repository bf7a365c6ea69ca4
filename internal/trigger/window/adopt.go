// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package window

import (
	"math"
	"slices"
)

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
