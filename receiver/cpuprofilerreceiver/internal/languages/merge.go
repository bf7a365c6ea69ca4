// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package languages

import (
	"slices"

	"github.com/hotprofile/hotprofile/internal/interpreter"
	"github.com/hotprofile/hotprofile/internal/perfevent"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/processes"
)

// Merge puts the frames of the last walk into the native stack of its sample. Each call of
// the interpreter's loop is a function of that stack, and the frames of the call replace
// it. whole reports whether the native stack reaches the thread's entry. Merge reports
// whether the new stack reaches it.
//
// The numbers of calls may differ, because the thread continued after the sample. Outer
// frames last longer than inner ones, so calls are then matched from the outermost one. If
// the native stack is cut off, they are matched from the innermost one, and the walk has
// the rest.
func (w *Walker) Merge(of *processes.Process, s *perfevent.Sample, whole bool) bool {
	loop := w.process.python.Loop
	calls := 0
	for i, a := range s.User {
		if inLoop(loop, a, i) {
			calls++
		}
	}
	shift := 0 // from the number of a native call to the number of a walked one
	if whole {
		shift = len(w.ends) - calls
	}
	if whole && shift < 0 && w.changed {
		// The innermost frame was freed while it was read, and so its callers were lost.
		w.counts[Torn].Add(1)
		return whole
	}
	w.counts[Walked].Add(1)
	w.merged = w.merged[:0]
	call, replaced := 0, false
	for i, a := range s.User {
		if !inLoop(loop, a, i) {
			// With a perf map, Python has a generated function for each of its own
			// functions. The generated function calls the loop, and its own callers are not
			// found.
			if !replaced || of.Mapping(a-1) != nil {
				w.merged = append(w.merged, a)
			}
			replaced = false
			continue
		}
		n := call + shift
		call++
		replaced = n >= 0 && n < len(w.ends)
		switch {
		case !replaced:
			w.merged = append(w.merged, a)
		case w.start(n) < w.ends[n]:
			w.merged = append(w.merged, w.frames[w.start(n):w.ends[n]]...)
		}
	}
	if !whole && calls > 0 && calls < len(w.ends) {
		w.merged = append(w.merged, w.frames[w.ends[calls-1]:]...)
		// The interpreter's own callers are missing, but the program's functions are
		// complete.
		whole = !w.cut
	}
	if len(w.merged) > maxFrames {
		w.merged, whole = w.merged[:maxFrames], false
	}
	s.User = slices.Clip(w.merged)
	s.Truncated = !whole
	return whole
}

// start returns the position of the first frame of a call.
func (w *Walker) start(call int) int {
	if call == 0 {
		return 0
	}
	return w.ends[call-1]
}

// inLoop reports whether a position of a native stack is in the interpreter's loop. All
// addresses except the first one are return addresses.
func inLoop(loop []interpreter.Range, address uint64, position int) bool {
	if position > 0 {
		address--
	}
	return slices.ContainsFunc(loop, func(r interpreter.Range) bool { return r.Has(address) })
}
