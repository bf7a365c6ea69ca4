// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package offcpu

import (
	"time"

	"github.com/hotprofile/hotprofile/internal/perfevent"
	"github.com/hotprofile/hotprofile/internal/samples"
)

// caller holds what was sampled of a thread as it left its CPU.
type caller struct {
	resource *samples.Resource
	stack    *samples.Stack // nil without a sample
	thread   samples.Thread
}

// part is a wait, or its part within one capture window.
type part struct {
	caller
	pid, tid  int
	preempted bool
	// weight is n if one of n switches of the thread had its stack sampled when it
	// left; 1 if each had.
	weight int64
	// target is the attachment that recorded it; capture is when that sampled.
	target  *perfevent.Attachment
	capture *samples.Capture
	// end is the first moment after it.
	end    int64
	length int64
}

// state is a thread's state, according to its records.
type state uint8

const (
	// running: it is on a CPU. Exits: a switch off the CPU, to waiting; its end, to
	// ended.
	running state = iota
	// waiting: it is off its CPU since thread.began; what is before thread.since is
	// emitted already. Exits: a switch onto a CPU, to running; its end, to ended.
	waiting
	// ended: its end was recorded. Later switches, the last of which takes it off
	// its CPU for ever, are ignored. It is forgotten two cuts later, or when another
	// thread gets its id.
	ended
)

// thread is one thread that is known to run, wait or have ended.
type thread struct {
	tid, pid int
	// target is the attachment whose event recorded it last.
	target    *perfevent.Attachment
	state     state
	preempted bool
	// began is the start of the wait, since the start of the part not yet emitted. Both
	// move forward by the time that is unknown; from is the original start.
	began, since, from int64
	// next is from the sample since the last switch, caller and weight belong to the
	// wait.
	next, caller caller
	hasNext      bool
	weight       int64
	// round is the round of reading in which a stack was unwound last. skipped: there was a
	// sample since the last switch, and its stack was not.
	round   uint64
	skipped bool
	// typical is the length of its recent waits, own the time from which events of its
	// own sample each of its switches; 0 without them. listed: it is among missed.
	typical, own int64
	listed       bool
	// lostAt is the end of the last time for which switches were lost while it ran, sure
	// how much of the wait, from since on, had passed when some were. The last time for
	// which some were lost while it waited is from gap[0] to gap[1].
	lostAt, sure int64
	gap          [2]int64
	checked      check
}

// WaitCounts are counters since the beginning.
type WaitCounts struct {
	// Switches are the switch records, Waits the waits with both ends seen.
	Switches, Waits uint64
	// The others are waits that are not emitted. Short are shorter than the shortest
	// emitted. UnderWay are those whose beginning was not seen, Forgotten those whose
	// end was not: sampling paused, records were lost, the target was detached, or
	// the thread moved. LeftOut are of threads beyond the bound.
	Short, UnderWay, Forgotten, LeftOut uint64
}

// waits turns switches into waits. Times are nanoseconds of one clock.
type waits struct {
	// least is the length of the shortest wait that is emitted.
	least int64
	// most bounds the threads that are followed. At the bound new ones are left out
	// and counted, until others have ended.
	most int
	// done is called with each part, and must not keep it.
	done func(*part)
	// still reports whether a thread without a record for a capture window still waits; if
	// nil, it is believed to.
	still func(*thread) bool

	threads map[int]*thread
	free    []*thread
	ended   [2][]int
	counts  WaitCounts
	out     part // the argument of done

	// One of mean switches is sampled from the time meanFrom on, one of meanWas before.
	mean, meanWas, meanFrom int64
	// own is thread.own of the threads that have events of their own, known or not.
	own map[int]int64
	// missed are the threads that left without a stack since it was emptied: not each
	// switch is sampled, or the sample was lost.
	missed []int
}

// echo is the time within which a second switch of a thread off its CPU is the same
// one, recorded by a second event while one event replaces the other.
const echo = int64(50 * time.Microsecond)

// maxChecked bounds the threads that are checked per cut.
const maxChecked = 256

func newWaits(least time.Duration, most int, done func(*part)) *waits {
	return &waits{
		least: int64(least), most: most, done: done, threads: make(map[int]*thread),
		mean: 1, meanWas: 1, own: make(map[int]int64),
	}
}

// setMean sets that one of mean switches is sampled from time on.
func (w *waits) setMean(mean int, time int64) {
	w.meanWas, w.mean, w.meanFrom = w.mean, int64(mean), time
}

// setOwn sets that each switch of a thread is sampled from time on; 0 ends that.
func (w *waits) setOwn(tid int, time int64) {
	if time == 0 {
		delete(w.own, tid)
	} else {
		w.own[tid] = time
	}
	if t := w.threads[tid]; t != nil {
		t.own = time
	}
}

// weightAt returns part.weight of a wait of t that begins at time.
func (w *waits) weightAt(t *thread, time int64) int64 {
	switch {
	case t.own > 0 && time >= t.own:
		return 1
	case time < w.meanFrom:
		return w.meanWas
	}
	return w.mean
}

// known returns a thread of the pid's process, and adds it if it is new; nil at the
// bound.
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
	if len(w.own) > 0 {
		t.own = w.own[tid]
	}
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

// sampled records the sample of a thread that is about to leave its CPU. The record
// of the switch follows.
func (w *waits) sampled(pid, tid int, round uint64, c caller) {
	t := w.known(pid, tid)
	if t == nil || t.state == ended {
		return
	}
	t.next, t.hasNext, t.round = c, true, round
}

// left records that a thread left its CPU at time.
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
		w.counts.Forgotten++ // its return was not recorded
		if t.sure > 0 && t.sure >= w.least {
			w.emit(t, t.since+t.sure)
		}
	}
	t.lostAt, t.sure, t.gap = 0, 0, [2]int64{}
	t.state, t.preempted, t.target = waiting, preempted, target
	t.began, t.since, t.from = time, time, time
	t.caller = caller{}
	if t.hasNext {
		t.caller = t.next
	}
	t.next, t.hasNext = caller{}, false
	t.checked = check{}
	t.weight = w.weightAt(t, time)
	if t.skipped {
		t.weight, t.skipped = max(t.weight, 2), false
	}
	if t.caller.stack == nil && !t.listed && len(w.missed) < w.most {
		t.listed = true
		w.missed = append(w.missed, tid)
	}
}

// came records that a thread got a CPU at time.
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
	if t.state == running && t.lostAt > 0 {
		t.state, t.preempted, t.caller, t.weight = waiting, false, caller{}, w.weightAt(t, t.lostAt)
		t.began, t.since, t.from = t.lostAt, t.lostAt, t.lostAt // it left before, and that was lost
	}
	if t.state != waiting {
		return // recorded twice, or ended
	}
	w.counts.Waits++
	if length := time - t.began; t.typical == 0 {
		t.typical = length
	} else {
		t.typical += (length - t.typical) / 4
	}
	if time-t.began >= w.least {
		w.emit(t, time)
	} else {
		w.counts.Short++
	}
	t.state, t.target = running, target
	t.caller = caller{}
	t.lostAt, t.sure, t.gap = 0, 0, [2]int64{}
}

// emit emits the part of a wait that is not emitted yet.
func (w *waits) emit(t *thread, until int64) {
	if until <= t.since {
		return // a record was written late
	}
	w.out = part{
		caller: t.caller, pid: t.pid, tid: t.tid, preempted: t.preempted, weight: t.weight, target: t.target,
		end: until, length: until - t.since,
	}
	w.done(&w.out)
	t.sure = max(t.sure-(until-t.since), 0)
	t.since, t.from = until, until
}

// started records that a thread has begun, whatever had its id before.
func (w *waits) started(tid int) {
	delete(w.own, tid)
	if t := w.threads[tid]; t != nil {
		w.drop(t)
	}
}

// exited records the end of a thread.
func (w *waits) exited(pid, tid int) {
	t := w.threads[tid]
	if t == nil {
		// The last switch of a process's first thread is recorded with its id, until
		// its parent has waited for it; those of other threads are not.
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
	delete(w.own, tid)
	w.ended[0] = append(w.ended[0], tid)
}

// executed records that a thread runs another program. If it is not the first thread
// of its process it has got that one's id, whose end was recorded.
func (w *waits) executed(tid int) { w.started(tid) }

// cut ends the capture window at time: waits in progress are emitted up to it. A wait that is
// shorter than the shortest emitted is left until its length is known.
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
		w.emit(t, time)
	}
	for _, tid := range w.ended[1] {
		if t := w.threads[tid]; t != nil && t.state == ended {
			w.remove(t)
		}
	}
	w.ended[0], w.ended[1] = w.ended[1][:0], w.ended[0]
}

// forget forgets every thread: what they do is unknown from here on.
func (w *waits) forget() {
	for _, t := range w.threads {
		w.drop(t)
	}
	w.ended[0], w.ended[1], w.missed = w.ended[0][:0], w.ended[1][:0], w.missed[:0]
}

// lost records that switches were lost between two times: those that share rings with
// samples, or those that have rings of their own. What threads did in between is
// unknown, and no part of any wait; what they did before and do after is known.
func (w *waits) lost(from, to int64, shared, split bool) {
	if !shared && !split {
		return
	}
	for _, t := range w.threads {
		if t.target != nil && (t.target.SharesRing() && !shared || !t.target.SharesRing() && !split) {
			continue
		}
		switch t.state {
		case waiting:
			t.unknown(max(from, t.from), to)
		case running:
			t.lostAt = to
		}
	}
}

// unknown records that it is unknown what a waiting thread did between two times. Several
// rings may lose switches at once: what was unknown already is so only once.
func (t *thread) unknown(from, to int64) {
	length := to - from
	if length <= 0 {
		return
	}
	if from <= t.gap[1] {
		length -= max(min(to, t.gap[1])-max(from, t.gap[0]), 0)
		t.sure = max(t.sure-max(t.gap[0]-from, 0), 0)
		t.gap = [2]int64{min(from, t.gap[0]), max(to, t.gap[1])}
	} else {
		t.sure = max(t.sure, from-t.since)
		t.gap = [2]int64{from, to}
	}
	t.began += length
	t.since += length
}

// forgetTarget forgets the threads that an attachment's events recorded.
func (w *waits) forgetTarget(target *perfevent.Attachment) {
	for _, t := range w.threads {
		if t.target == target {
			w.drop(t)
		}
	}
}
