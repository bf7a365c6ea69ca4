// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package window

import "slices"

// Adopt returns a history for this plan. It continues old, which is the history of the
// same monitor under another plan. old must not be used any more. A test that is in
// both plans keeps its window. A new test starts with the readings in old or, for a
// counter, with the readings since the counter last restarted. It does not hold until
// the readings cover its span.
func (m *Monitor) Adopt(old History) History {
	if len(m.tests) == 0 || len(old.monitor.tests) == 0 {
		return m.NewHistory()
	}
	if m.ring == len(old.ring) && slices.Equal(m.tests, old.monitor.tests) {
		old.monitor = m
		return old
	}
	h := History{monitor: m, windows: make([]window, len(m.tests)), readings: old.readings}
	if h.last == 0 {
		h.ring = make([]entry, m.ring)
		return h
	}
	fresh := make([]bool, len(m.tests))
	for i := range m.tests {
		n := slices.Index(old.monitor.tests, m.tests[i])
		if fresh[i] = n < 0; fresh[i] {
			continue
		}
		h.windows[i] = old.windows[n]
		for w := &h.windows[i]; h.last-w.head > uint64(m.ring); {
			w.pop(&m.tests[i], h.readings)
		}
	}
	kept := min(h.last, uint64(len(h.ring)), uint64(m.ring))
	h.resize(m.ring, kept)
	for i := range m.tests {
		if fresh[i] {
			h.windows[i] = h.windowSince(&m.tests[i], max(h.last-kept, h.unbroken))
		}
	}
	return h
}

// resize changes the length of the ring and keeps the newest entries. Older entries are
// lost, even if the new ring has room for them.
func (r *readings) resize(length int, kept uint64) {
	if length == len(r.ring) {
		return
	}
	ring, tick := make([]entry, length), r.tick
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
