// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package window

import "errors"

// Verify recounts what the windows keep running and returns the first broken
// invariant. It is for tests.
func (h *History) Verify() error {
	for i := range h.windows {
		t, w, r := h.test(i)
		if w.head > r.last || r.last-w.head > uint64(len(r.ring)) {
			return errors.New("a window lies outside its history")
		}
		recount := window{}
		tick := w.headTick
		for n := w.head + 1; n <= r.last; n++ {
			recount.add(t, r.entry(n))
			tick += r.entry(n).step()
		}
		switch {
		case recount.readings != w.readings || recount.above != w.above || recount.below != w.below || recount.weighing != w.weighing:
			return errors.New("a window miscounts its readings")
		case r.last > 0 && r.tick != tick:
			return errors.New("a window mistakes its start")
		case !finite(w.weight) || !finite(w.weighted):
			return errors.New("a sum of a window is not a number")
		}
	}
	return nil
}
