// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package offcpu

import (
	"time"

	"github.com/hotprofile/hotprofile/internal/perfevent"
	"github.com/hotprofile/hotprofile/internal/samples"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/languages"
)

// caller holds the resource, stack and thread of a thread that left its CPU.
type caller struct {
	resource *samples.Resource
	stack    *samples.Stack // nil without a sample
	thread   samples.Thread
	span     languages.Span
	// interpreted is nil unless the process keeps interpreted frames outside its stack.
	interpreted *interpreted
}

// part is a wait, or the part of a wait that lies within one capture window.
type part struct {
	caller
	pid, tid  int
	preempted bool
	// weight is n if, when the thread left its CPU, one of n of its switches was sampled.
	// It is 1 if each switch was sampled.
	weight int64
	// target is the attachment that recorded the wait. capture is the time during which the
	// attachment sampled.
	target  *perfevent.Attachment
	capture *samples.Capture
	// end is the first nanosecond after the part.
	end    int64
	length int64
}

// state is the state of a thread, according to its records.
type state uint8

const (
	// running means that the thread is on a CPU. The state changes to waiting when the thread
	// leaves the CPU, and to ended when the thread exits.
	running state = iota
	// waiting means that the thread has been off its CPU since thread.began. The time
	// before thread.since has already been emitted. A switch onto a CPU leads to running,
	// and the thread's end leads to ended.
	waiting
	// ended means that the thread's end was recorded. Later switches of the thread are
	// ignored, including its last switch off a CPU. The thread is forgotten at the second
	// cut, or when another thread gets its id.
	ended
)

// thread is a followed thread. It runs, waits or has ended.
type thread struct {
	tid, pid int
	// target is the attachment that recorded the last event of the thread.
	target    *perfevent.Attachment
	state     state
	preempted bool
	// began is the start of the wait. since is the start of the part that has not been
	// emitted yet. began and since move forward by the length of each period in which the
	// state was unknown. from is the value that since would have without these
	// corrections.
	began, since, from int64
	// next is the sample since the last switch. caller and weight belong to the current
	// wait.
	next, caller caller
	hasNext      bool
	weight       int64
	// round is the last round of reading in which a stack was unwound. skipped is true if
	// the sample since the last switch was not unwound.
	round   uint64
	skipped bool
	// typical is the average length of recent waits. own is the time from which the
	// thread's own events sample each switch. It is 0 without own events. listed reports
	// whether the thread is in missed.
	typical, own int64
	listed       bool
	// lostAt is the end of the last period in which switches were lost while the thread
	// ran. gap is the last period in which switches were lost while the thread waited. sure
	// is the length of the wait from since until the first loss of switches.
	lostAt, sure int64
	gap          [2]int64
	checked      check
}

// WaitCounts are counters since the sampler was created.
type WaitCounts struct {
	// Switches counts switch records. Waits counts waits whose beginning and end are known.
	Switches, Waits uint64
	// The other counters count waits that are not emitted. Short counts waits below the
	// minimum length. UnderWay counts waits without a recorded beginning. Forgotten
	// counts waits whose end was not recorded, because sampling paused, records were
	// lost, the target was detached, or the thread moved. LeftOut counts waits of threads
	// beyond the limit.
	Short, UnderWay, Forgotten, LeftOut uint64
}

// waits turns switches into waits. All times are in nanoseconds on the same clock.
type waits struct {
	// least is the minimum length of an emitted wait.
	least int64
	// most bounds the number of followed threads. At the bound, new threads are counted but
	// not followed until other threads have ended.
	most int
	// done is called with each part. It must not keep the part.
	done func(*part)
	// still reports whether a thread that had no record in a capture window still waits.
	// If still is nil, the thread is assumed to wait.
	still func(*thread) bool

	threads map[int]*thread
	ended   [2][]int
	counts  WaitCounts
	out     part // the argument of done

	// mean is the number of switches per sample from the time meanFrom on. meanWas is the
	// number before that time.
	mean, meanWas, meanFrom int64
	// own maps the id of each thread with its own events to thread.own.
	own map[int]int64
	// missed lists the threads that left their CPU without a stack since missed was last
	// emptied, because the switch was not sampled or the sample was lost.
	missed []int
}

// echo is the maximum time between two records of the same switch off a CPU. A switch is
// recorded twice while one event replaces another.
const echo = int64(50 * time.Microsecond)

// maxChecked bounds the number of threads that are checked per cut.
const maxChecked = 256

func newWaits(least time.Duration, most int, done func(*part)) *waits {
	return &waits{
		least: int64(least), most: most, done: done, threads: make(map[int]*thread),
		mean: 1, meanWas: 1, own: make(map[int]int64),
	}
}

// setMean sets the number of switches per sample from the given time on.
func (w *waits) setMean(mean int, time int64) {
	w.meanWas, w.mean, w.meanFrom = w.mean, int64(mean), time
}

// setOwn makes each switch of a thread count as sampled from the given time on. If the
// time is 0, the thread is treated like all other threads again.
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

// weightAt returns part.weight for a wait of t that begins at time.
func (w *waits) weightAt(t *thread, time int64) int64 {
	switch {
	case t.own > 0 && time >= t.own:
		return 1
	case time < w.meanFrom:
		return w.meanWas
	}
	return w.mean
}

// known returns a thread of a process. It adds the thread if the thread is unknown, but
// returns nil if the maximum number of threads is reached.
func (w *waits) known(pid, tid int) *thread {
	if t := w.threads[tid]; t != nil {
		t.pid = pid
		return t
	}
	if len(w.threads) >= w.most {
		return nil
	}
	t := &thread{tid: tid, pid: pid, own: w.own[tid]}
	w.threads[tid] = t
	return t
}

func (w *waits) drop(t *thread) {
	if t.state == waiting {
		w.counts.Forgotten++
	}
	delete(w.threads, t.tid)
}

// sampled records the sample of a thread that is about to leave its CPU. The record of the
// switch comes next.
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
		w.counts.Forgotten++ // the return to a CPU was not recorded
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

// came records that a thread was switched onto a CPU at time.
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
		t.began, t.since, t.from = t.lostAt, t.lostAt, t.lostAt // the switch off the CPU was lost
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

// emit emits the part of a wait that has not been emitted.
func (w *waits) emit(t *thread, until int64) {
	if until <= t.since {
		return // a record arrived late
	}
	w.out = part{
		caller: t.caller.until(until), pid: t.pid, tid: t.tid, preempted: t.preempted, weight: t.weight, target: t.target,
		end: until, length: until - t.since,
	}
	w.done(&w.out)
	t.sure = max(t.sure-(until-t.since), 0)
	t.since, t.from = until, until
}

// started records the start of a thread. It drops an earlier thread with the same id.
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
		// The first thread of a process keeps its id until the parent has waited for the
		// process, so the last switch of this thread is recorded with the id. The last
		// switches of other threads are recorded without their ids.
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

// cut ends the capture window at time, and emits waits in progress up to time. A wait below
// the minimum length is kept until its length is known.
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
			delete(w.threads, tid)
		}
	}
	w.ended[0], w.ended[1] = w.ended[1][:0], w.ended[0]
}

// forget forgets all threads, because their state is unknown from now on.
func (w *waits) forget() {
	for _, t := range w.threads {
		w.drop(t)
	}
	w.ended[0], w.ended[1], w.missed = w.ended[0][:0], w.ended[1][:0], w.missed[:0]
}

// lost records that switches were lost between two times. shared is true if rings with
// samples have lost switches. split is true if rings with only switches have lost
// switches. The time between from and to is not counted as part of a wait. The time
// before from and after to is still counted.
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

// unknown records that the state of a waiting thread is unknown between two times. Several
// rings may lose switches at once, so overlapping times are counted only once.
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
