// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package offcpu

import (
	"slices"

	"github.com/hotprofile/hotprofile/internal/perfevent"
	"github.com/hotprofile/hotprofile/internal/samples"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/languages"
)

// interpreted contains the interpreted frames of a waiting thread. The frames do not change
// until the thread gets a CPU. If the thread still waits after the frames were read, the
// frames belong to the sample.
type interpreted struct {
	// sample contains the addresses of the native stack. whole reports whether the stack is
	// known to reach the thread's entry.
	sample perfevent.Sample
	whole  bool
	// read is the time at which the frames were read, or 0 if they have not been read. stack
	// is the stack with the frames, or nil if they could not be read.
	read  int64
	stack *samples.Stack
	span  languages.Span // the active span
}

func newInterpreted(s *perfevent.Sample, whole bool) *interpreted {
	in := &interpreted{sample: *s, whole: whole}
	in.sample.Kernel, in.sample.User = slices.Clone(s.Kernel), slices.Clone(s.User)
	in.sample.Stack, in.sample.Raw = nil, nil // the next record overwrites them
	return in
}

// until returns the caller of a wait that ends at the given time. If the interpreted
// frames were read before this time, the returned caller contains these frames.
func (c caller) until(time int64) caller {
	if in := c.interpreted; in != nil && in.stack != nil && in.read <= time {
		c.stack, c.span = in.stack, in.span
	}
	return c
}

// readInterpreted reads the interpreted frames of threads that are still waiting.
// Threads for which there is not enough time stay in the list.
func (r *reader) readInterpreted() {
	began := r.cfg.Now()
	now := began
	r.unread = slices.DeleteFunc(r.unread, func(tid int) bool {
		t := r.waits.threads[tid]
		switch {
		case t == nil:
			return true
		case t.next.interpreted != nil:
			return false // the record of the switch is not read yet
		case t.state != waiting || t.caller.interpreted == nil || t.caller.interpreted.read > 0:
			return true
		case began < r.readFrom || now-began > maxReading:
			return false
		}
		r.readWaiting(t)
		now = r.cfg.Now()
		return true
	})
	if now > began {
		r.readFrom = now + (readShare-1)*(now-began)
	}
}

// readWaiting reads the interpreted frames of a thread.
func (r *reader) readWaiting(t *thread) {
	in, p, rec := t.caller.interpreted, r.cfg.Table.Known(t.pid), &r.again
	rec.PID, rec.TID, rec.Time, rec.Sample = t.pid, t.tid, r.cfg.Now(), in.sample
	if r.cfg.Languages.Walk(p, rec) {
		whole := r.cfg.Languages.Merge(p, &rec.Sample, in.whole)
		in.stack, in.span = p.Stack(&rec.Sample, whole), r.cfg.Languages.Span()
	}
	in.read = r.cfg.Now()
}
