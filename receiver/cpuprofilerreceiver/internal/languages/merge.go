// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package languages

import (
	"slices"

	"github.com/hotprofile/hotprofile/internal/interpreter"
	"github.com/hotprofile/hotprofile/internal/perfevent"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/processes"
)

// Merge merges the frames of the last walk into the native stack of its sample. Each call
// of the interpreter's loop is a frame of the native stack. The walked frames of the call
// replace this frame. whole reports whether the native stack reaches the thread's entry.
// Merge reports whether the new stack reaches the thread's entry.
//
// The thread continued after the sample, so the walk may have more or fewer calls than
// the native stack. Outer frames live longer than inner frames, so the calls are matched
// from the outermost call on. If the native stack is cut off, the calls are matched from
// the innermost call on, and the remaining frames of the walk are appended.
func (w *Walker) Merge(of *processes.Process, s *perfevent.Sample, whole bool) bool {
	calls := 0
	for i, a := range s.User {
		if w.process.inLoop(of, a, i) {
			calls++
		}
	}
	shift := 0 // the number of a walked call minus the number of its native call
	if whole {
		shift = len(w.ends) - calls
	}
	if whole && shift < 0 && w.changed {
		// The innermost frame was freed while it was read, and its callers were lost.
		w.counts[Torn].Add(1)
		return whole
	}
	w.counts[Walked].Add(1)
	w.merged = w.merged[:0]
	call, replaced := 0, false
	for i, a := range s.User {
		if !w.process.inLoop(of, a, i) {
			// With -X perf, CPython calls the interpreter loop through a generated trampoline for
			// each Python function. The trampoline would show the function a second time, so it is
			// left out.
			if !replaced || of.Mapping(a-1) != nil {
				w.merged = append(w.merged, a)
			}
			replaced = false
			continue
		}
		n := call + shift
		call++
		if n < 0 || n >= len(w.ends) {
			w.merged, replaced = append(w.merged, a), false
			continue
		}
		w.merged = append(w.merged, w.frames[w.start(n):w.ends[n]]...)
		replaced = w.start(n) < w.ends[n]
	}
	if !whole && calls <= len(w.ends) {
		w.merged = append(w.merged, w.frames[w.start(calls):]...)
		// The interpreter's native callers are missing, but the Python functions are
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

// start returns the position in frames of the first frame of a call.
func (w *Walker) start(call int) int {
	if call == 0 {
		return 0
	}
	return w.ends[call-1]
}

// inLoop reports whether an address of a native stack is in the interpreter's loop. The
// code that PHP compiles counts as the loop, because it continues in the loop's frame.
// position is the index of the address in the stack. All addresses except the first are
// return addresses.
func (p *process) inLoop(of *processes.Process, address uint64, position int) bool {
	const compiled = "/dev/zero (deleted)"
	if position > 0 {
		address--
	}
	var loop []interpreter.Range
	if p.php != nil {
		if m := of.Mapping(address); m == nil || m.Path == compiled {
			return true
		}
		loop = p.php.Loop
	} else {
		loop = p.python.Loop
	}
	return slices.ContainsFunc(loop, func(r interpreter.Range) bool { return r.Has(address) })
}
