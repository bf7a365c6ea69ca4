// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package window

import "slices"

// Adopt returns a history for this plan that continues one of another plan of the
// same monitor, which must not be used any more. A test that both plans have keeps
// its window. A new test is judged by the readings that are there, a count only by
// those since the counter last restarted; until its span is covered it does not hold.
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

// resize gives the ring another length. It keeps the newest entries. What it had
// before them is lost, also where the ring has room for it.
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
