// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package offcpu

import (
	"time"

	"github.com/hotprofile/hotprofile/internal/perfevent"
	"github.com/hotprofile/hotprofile/internal/samples"
)

// caller is what the sample of a thread that leaves its CPU tells of it.
type caller struct {
	resource *samples.Resource
	stack    *samples.Stack // nil: there was no sample
	thread   samples.Thread
}

// part is a wait, or as much of it as lies in one window.
type part struct {
	caller
	pid       int
	preempted bool
	// end is the first moment after it.
	end    int64
	length int64
}

// state is what a thread does, as far as records told.
type state uint8

const (
	// running: it is on a CPU. It leaves that by a switch off it, to waiting, or
	// by its end.
	running state = iota
	// waiting: it is off its CPU since thread.began, of which what is before
	// thread.since is shown already. It leaves that by a switch onto a CPU.
	waiting
	// ended: its end was told. The switches that follow, of which the last is off
	// its CPU for ever, are nobody's. It is forgotten two cuts later, or when
	// another thread has its id.
	ended
)

// thread is one thread. What is not known to run, wait or have ended has none.
type thread struct {
	tid, pid int
	// target is what the event was attached to that told of it last.
	target    *perfevent.Attachment
	state     state
	preempted bool
	// began is when the wait began, since from when on it is to be shown.
	began, since int64
	// next is of the sample that came since the last switch, caller of the wait.
	next, caller caller
	hasNext      bool
	checked      check
}

// waitCounts are what is not shown, since the beginning.
type waitCounts struct {
	// Switches are the records of switches, Waits the waits whose two ends were
	// seen, Short those of them shorter than is shown.
	Switches, Waits, Short uint64
	// UnderWay are waits whose beginning was not seen, Forgotten those whose end
	// was not: sampling paused, records lost, the target let go, the thread gone
	// elsewhere.
	UnderWay, Forgotten uint64
	// LeftOut are waits of threads that were too many to follow.
	LeftOut uint64
}

// waits makes waits of switches. Times are nanoseconds of one clock.
type waits struct {
	// least is the length from which on waits are shown.
	least int64
	// most is how many threads are followed. At the bound new ones are left out,
	// and counted, until others have ended.
	most int
	// done takes each part. It must not keep it.
	done func(*part)
	// still says whether a thread that has not been told of for a window is still
	// where it was; nil: it is believed to be.
	still func(*thread) bool

	threads map[int]*thread
	free    []*thread
	ended   [2][]int
	counts  waitCounts
	out     part // what done is given
}

// echo is how long after a switch off a CPU another one of the same thread is the
// same one, told by a second event: while one replaces the other.
const echo = int64(50 * time.Microsecond)

// maxChecked bounds the threads that are looked at per cut.
const maxChecked = 256

func newWaits(least time.Duration, most int, done func(*part)) *waits {
	return &waits{least: int64(least), most: most, done: done, threads: make(map[int]*thread)}
}

// known returns a thread, of the pid's process, and makes it known; nil where
// there are too many.
func (w *waits) known(pid, tid int) *thread {
	if t := w.threads[tid]; t != nil {
		t.pid = pid
		return t
	}
	if len(w.threads) >= w.most {
		return nil
	}
	var t *thread
	if n := len(w.free); n > 0 {
		t, w.free = w.free[n-1], w.free[:n-1]
	} else {
		t = new(thread)
	}
	t.tid, t.pid = tid, pid
	w.threads[tid] = t
	return t
}

func (w *waits) drop(t *thread) {
	if t.state == waiting {
		w.counts.Forgotten++
	}
	w.remove(t)
}

func (w *waits) remove(t *thread) {
	delete(w.threads, t.tid)
	*t = thread{}
	w.free = append(w.free, t)
}

// sampled takes who is about to leave its CPU. The record of the switch follows.
func (w *waits) sampled(pid, tid int, c caller) {
	t := w.known(pid, tid)
	if t == nil || t.state == ended {
		return
	}
	t.next, t.hasNext = c, true
}

// left takes that a thread is off its CPU from time on.
func (w *waits) left(pid, tid int, time int64, preempted bool, target *perfevent.Attachment) {
	w.counts.Switches++
	t := w.known(pid, tid)
	if t == nil {
		w.counts.LeftOut++
		return
	}
	switch t.state {
	case ended:
		return
	case waiting:
		if time-t.began <= echo {
			if t.hasNext && t.caller.stack == nil {
				t.caller = t.next
			}
			t.next, t.hasNext = caller{}, false
			return
		}
		w.counts.Forgotten++ // it came back where nobody told
	}
	t.state, t.preempted, t.target = waiting, preempted, target
	t.began, t.since = time, time
	t.caller = caller{}
	if t.hasNext {
		t.caller = t.next
	}
	t.next, t.hasNext = caller{}, false
	t.checked = check{}
}

// came takes that a thread is on a CPU from time on.
func (w *waits) came(pid, tid int, time int64, target *perfevent.Attachment) {
	w.counts.Switches++
	t := w.threads[tid]
	if t == nil {
		w.counts.UnderWay++
		if t = w.known(pid, tid); t == nil {
			return
		}
		t.target = target
		return
	}
	if t.state != waiting {
		return // told twice, or ended
	}
	w.counts.Waits++
	if time-t.began >= w.least {
		w.show(t, time)
	} else {
		w.counts.Short++
	}
	t.state, t.target = running, target
	t.caller = caller{}
}

// show hands over what is not yet shown of a wait.
func (w *waits) show(t *thread, until int64) {
	if until <= t.since {
		return // a record that was written late
	}
	w.out = part{caller: t.caller, pid: t.pid, preempted: t.preempted, end: until, length: until - t.since}
	w.done(&w.out)
	t.since = until
}

// started takes that a thread has begun, whatever had its id before.
func (w *waits) started(tid int) {
	if t := w.threads[tid]; t != nil {
		w.drop(t)
	}
}

// exited takes the end of a thread.
func (w *waits) exited(pid, tid int) {
	t := w.threads[tid]
	if t == nil {
		// The last switch of the first thread of a process is told with its id,
		// until its parent has asked for its end; those of others are not.
		if pid != tid {
			return
		}
		if t = w.known(pid, tid); t == nil {
			return
		}
	}
	if t.state == ended {
		return
	}
	if t.state == waiting {
		w.counts.Forgotten++
	}
	*t = thread{tid: tid, pid: pid, state: ended}
	w.ended[0] = append(w.ended[0], tid)
}

// executed takes that a thread runs another program. Where it is not the first of
// its process it has taken that one's id, whose end was told.
func (w *waits) executed(tid int) { w.started(tid) }

// cut ends a window at time: waits in progress are shown up to it. One that is
// shorter than is shown waits until its length is known.
func (w *waits) cut(time int64) {
	checks := 0
	for _, t := range w.threads {
		if t.state != waiting || time-t.began < w.least {
			continue
		}
		if w.still != nil && t.since > t.began && checks < maxChecked {
			checks++
			if !w.still(t) {
				w.drop(t)
				continue
			}
		}
		w.show(t, time)
	}
	for _, tid := range w.ended[1] {
		if t := w.threads[tid]; t != nil && t.state == ended {
			w.remove(t)
		}
	}
	w.ended[0], w.ended[1] = w.ended[1][:0], w.ended[0]
}

// forget forgets every thread: what they do is not known from here on.
func (w *waits) forget() {
	for _, t := range w.threads {
		w.drop(t)
	}
	w.ended[0], w.ended[1] = w.ended[0][:0], w.ended[1][:0]
}

// forgetTarget forgets the threads that a target's events told of.
func (w *waits) forgetTarget(target *perfevent.Attachment) {
	for _, t := range w.threads {
		if t.target == target {
			w.drop(t)
		}
	}
}
