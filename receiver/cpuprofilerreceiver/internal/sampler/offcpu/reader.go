// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package offcpu

import (
	"context"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/hotprofile/hotprofile/internal/perfevent"
	"github.com/hotprofile/hotprofile/internal/samples"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/perftargets"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/sampler"
)

const (
	// redrawn is the number of samples per CPU after which n is drawn again. redrawWait is
	// the minimum time between two draws, because a draw takes a system call per event and
	// samples one more switch.
	redrawn    = 50
	redrawWait = int64(50 * time.Millisecond)
	// Threads with their own events may use 1/watchedShare of the stacks and descriptors.
	watchedShare = 4
	// A round of reading may always unwind at least 1/roundShare of the stacks that are
	// allowed per second.
	roundShare = 10
)

const (
	// promptWait is the longest wait for records while a process has interpreted frames
	// outside its stack. The frames can be read only while the thread still waits.
	promptWait = 5 * time.Millisecond
	// Reading interpreted frames may take up to 1/readShare of the time. maxReading is the
	// maximum time for which frames are read without a break.
	readShare  = 20
	maxReading = int64(2 * time.Millisecond)
)

// check holds the last check of a thread that has waited longer than a capture window.
type check struct {
	done, running bool
	switches      uint64
}

// reader reads the rings. The reading goroutine owns it.
type reader struct {
	cfg    Settings
	loop   *perftargets.Loop
	rec    perfevent.Record
	waits  *waits
	scaler *scaler
	rate   *rate
	watch  *watch
	intN   func(int) int
	key    samples.Key
	// unread lists threads with interpreted frames that have not been read. readFrom is the
	// earliest time for the next read of frames. again is the sample whose frames are being
	// read.
	unread   []int
	readFrom int64
	again    perfevent.Record

	counts    Stats                    // the reader's own counters
	published sampler.Published[Stats] // all counters, for other goroutines
	// unset is true after limiting the number of stacks has failed. unwatched is true after
	// attaching events to single threads has failed. Each failure is logged only once.
	unset, unwatched bool
	closing          int64        // when waits were last cut
	closed           atomic.Int64 // copy of closing, for other goroutines
	// switches and sampled are counts of the current round of reading. round is the number
	// of the round, and roundAt is its start. most is the number of stacks after which the
	// round unwinds only the first stack of each thread.
	switches, sampled, most int
	round                   uint64
	roundAt                 int64
	sinceDraw               int
	drawn                   int64

	// full reports whether sampling is paused because both batches are full. resumeAt is
	// the end of a pause that too many switches caused. It is 0 without such a pause.
	full     bool
	resumeAt int64
	paused   int64 // start of the pause; 0 without a pause
	before   Stats // counters when the pause began
}

// Options implements perftargets.Reader.
func (r *reader) Options(f *perftargets.Found) perfevent.Options {
	r.loop.PrepareStacks(f)
	return perfevent.Options{Switches: 1, Kernel: r.cfg.Kernel.Of(f.Rights), UserStack: r.cfg.Stacks.Copied()}
}

// Begin resets the reader's state for a new session.
func (r *reader) Begin(session *perfevent.Session) {
	now, options := r.cfg.Now(), r.loop.Current()
	stacks := perftargets.StacksPerSecond(r.cfg.MaxEventsPerSecond, options.UserStack)
	r.rate = newRate(r.cfg.MaxEventsPerSecond, max(1, stacks-stacks/watchedShare), now)
	most := min(maxWatched, r.cfg.MaxEvents/watchedShare/max(len(session.CPUs()), 1))
	r.watch = newWatch(most, stacks/watchedShare, func(pid, tid, most int) (attachment, error) {
		return session.AttachThread(pid, tid, most)
	})
	r.sinceDraw, r.drawn, r.roundAt = 0, now, now
	r.closing = r.cfg.Sink.Closing()
}

// Attached forgets the threads of detached attachments.
func (r *reader) Attached(_ *perftargets.Found, gone []*perfevent.Attachment) {
	for _, t := range gone {
		r.waits.forgetTarget(t)
	}
}

// Turn waits for records and reads them.
func (r *reader) Turn(_ context.Context, session *perfevent.Session) error {
	r.follow(session)
	wait := perftargets.IdleWait
	if r.cfg.Languages.Prompt() {
		wait = min(wait, promptWait)
	}
	if r.resumeAt > 0 {
		wait = min(wait, max(time.Duration(r.resumeAt-r.cfg.Now()), 0))
	}
	return r.loop.Turn(session, wait, func() bool { return r.drain(session) })
}

// End reads the remaining records in the rings. It also emits the elapsed parts of waits
// that are still in progress.
func (r *reader) End(session *perfevent.Session) {
	r.drain(session)
	r.cut(r.cfg.Now())
	r.resume("off-CPU sampling ended while it was paused")
	r.waits.forget()
	r.waits.setMean(1, 0)
	r.watch.end(r.waits)
	r.publish()
}

// drain reads the records in the rings. It reports whether to read again soon.
func (r *reader) drain(session *perfevent.Session) (soon bool) {
	if r.loop.NextBatch() {
		r.cfg.Languages.NextBatch()
	}
	closing := r.cfg.Sink.Closing()
	due := closing != r.closing
	upTo := r.cfg.Now() // upTo is not before closing
	r.begin(upTo)
	for session.Read(&r.rec) {
		if due && r.rec.Time >= closing && r.rec.Time-closing < int64(time.Second) {
			r.cut(closing)
			due = false
		}
		r.handle(&r.rec)
	}
	r.readInterpreted()
	if due {
		r.cut(closing)
	}
	r.closing = closing
	r.closed.Store(closing)
	now := session.Stats()
	before, again := r.loop.ReadUpTo(session, now, upTo, &r.counts.Counts)
	if now.Corrupt != before.Corrupt {
		r.waits.forget() // corrupt records may have been switches
	}
	if r.paused == 0 {
		r.adjust(session, upTo)
		r.look()
	}
	r.publish()
	return r.cfg.Table.Settle() || again
}

// begin starts a round. It limits the number of stacks to unwind in this round to twice the
// bound. If more stacks were unwound, the rings would fill up in the meantime.
func (r *reader) begin(now int64) {
	r.most = max(r.rate.stacks/roundShare, int(int64(2*r.rate.stacks)*(now-r.roundAt)/int64(time.Second)))
	r.switches, r.sampled, r.roundAt = 0, 0, now
	r.round++
}

// cut ends the capture window.
func (r *reader) cut(at int64) {
	if r.paused == 0 {
		r.waits.cut(at)
		r.scaler.settle()
	}
}

// adjust keeps the number of stacks within its bound.
func (r *reader) adjust(session *perfevent.Session, now int64) {
	r.sinceDraw += r.sampled
	was := r.rate.mean
	mean, pause := r.rate.next(now, r.switches, r.sampled)
	if pause > 0 {
		r.resumeAt = now + int64(pause)
		r.pause(session, now, "off-CPU sampling paused: more context switches than can be read",
			zap.Int("most_per_second", tooMany*r.cfg.MaxEventsPerSecond), zap.Duration("for", pause))
		return
	}
	switch {
	case mean != was:
	case mean > 1 && r.sinceDraw >= redrawn*len(session.CPUs()) && now-r.drawn >= redrawWait:
	default:
		return
	}
	r.sinceDraw, r.drawn = 0, now
	if mean > was {
		r.waits.setMean(mean, 0)
	}
	err := session.SetSwitches(mean, func(mean int) int { return draw(mean, r.intN) })
	if err != nil && !r.unset {
		// Sampling still pauses if there are too many switches.
		r.unset = true
		r.cfg.Logger.Warn("limiting the number of off-CPU stacks failed", zap.Error(err))
	}
	if mean < was {
		r.waits.setMean(mean, r.cfg.Now()) // unread records still have the old mean
	}
}

// look attaches extra events to threads with long waits.
func (r *reader) look() {
	err := r.watch.review(r.cfg.Now, r.waits)
	if err != nil && !r.unwatched {
		r.unwatched = true
		r.cfg.Logger.Warn("sampling single threads failed; long waits may be shown without a stack", zap.Error(err))
	}
}

// publish makes the counters visible to other goroutines, and returns them.
func (r *reader) publish() Stats {
	st := r.counts
	st.Unreadable += r.scaler.stackless
	st.WaitCounts = r.waits.counts
	st.Unshared = time.Duration(r.scaler.unshared)
	st.Threads, st.Every = len(r.waits.threads), int(r.waits.mean)
	if r.watch != nil {
		st.Watched = len(r.watch.attached)
	}
	st.Table = r.cfg.Table.Stats()
	if r.paused > 0 {
		r.addPaused(&st)
	}
	r.published.Set(st)
	return st
}

func (r *reader) addPaused(st *Stats) {
	took := time.Duration(r.cfg.Now() - r.paused)
	if r.full {
		st.PausedFull += took
	} else {
		st.PausedRate += took
	}
}

// follow pauses sampling when both batches are full. It resumes sampling when a batch has
// room and any pause for too many switches is over.
func (r *reader) follow(session *perfevent.Session) {
	full, now := r.cfg.Sink.Paused(), r.cfg.Now()
	if r.resumeAt > 0 && now >= r.resumeAt {
		r.resumeAt = 0
	}
	switch {
	case full && r.paused == 0:
		r.full = true
		r.pause(session, now, sampler.MsgThreadsFull, zap.String("sampler", samples.OffCPU.Sampler))
	case full && !r.full:
		r.addPaused(&r.counts)
		r.full, r.paused = true, now
	case r.paused > 0 && !full && r.resumeAt == 0:
		r.resume("off-CPU sampling resumed")
		r.loop.Resume(session)
		r.rate.resumed(now)
	}
}

// pause pauses sampling in the kernel. It forgets waits in progress, because the state of
// threads is unknown from now on.
func (r *reader) pause(session *perfevent.Session, now int64, message string, fields ...zap.Field) {
	r.before = r.publish()
	r.paused = now
	r.loop.Pause(session)
	if !r.full {
		r.scaler.settle()
	}
	r.forget()
	r.publish()
	r.cfg.Logger.Warn(message, fields...)
}

func (r *reader) forget() {
	r.waits.forget()
	r.counts.BufferFull += uint64(r.scaler.forget())
}

// resume ends a pause and logs the message.
func (r *reader) resume(message string) {
	if r.paused == 0 {
		return
	}
	took := time.Duration(r.cfg.Now() - r.paused)
	r.addPaused(&r.counts)
	r.full, r.paused, r.resumeAt = false, 0, 0
	r.waits.forget() // these waits were still in the rings
	now := r.publish()
	r.cfg.Logger.Info(message, zap.Duration("paused", took),
		zap.Uint64("waits_forgotten", now.Forgotten-r.before.Forgotten),
		zap.Uint64("samples_dropped", now.BufferFull-r.before.BufferFull))
}

// handle processes one record.
func (r *reader) handle(rec *perfevent.Record) {
	r.loop.Follow(rec)
	switch rec.Type {
	case perfevent.TypeSwitch:
		r.switched(rec)
	case perfevent.TypeSample:
		r.sample(rec)
	case perfevent.TypeFork:
		r.waits.started(rec.Task.TID)
	case perfevent.TypeExit:
		r.waits.exited(rec.Task.PID, rec.Task.TID)
	case perfevent.TypeComm:
		if rec.Comm.Exec {
			// If the thread was not the first thread of its process, it takes over the id of
			// the first thread, whose end was recorded under this id.
			r.waits.started(rec.Comm.TID)
		}
	case perfevent.TypeLost:
		shared, split := rec.Lost.Switches()
		r.waits.lost(rec.Lost.Since, rec.Time, shared, split)
	}
}

// switched processes a context switch, at which a thread leaves its CPU or gets a CPU.
func (r *reader) switched(rec *perfevent.Record) {
	if rec.PID <= 0 || rec.TID <= 0 || r.paused > 0 || rec.Attachment == nil {
		return // the thread is idle, ended or in another pid namespace, or the record was left over in a ring
	}
	if !rec.Switch.Out {
		if r.waits.threads[rec.TID] != nil || r.wants(rec.PID) {
			r.waits.came(rec.PID, rec.TID, rec.Time, rec.Attachment)
		}
		return
	}
	r.switches++
	if r.waits.threads[rec.TID] == nil && !r.wants(rec.PID) {
		return
	}
	r.waits.left(rec.PID, rec.TID, rec.Time, rec.Switch.Preempted, rec.Attachment)
}

// wants reports whether the threads of a process are followed.
func (r *reader) wants(pid int) bool {
	p := r.cfg.Table.Known(pid)
	return p.Wanted && r.loop.Means(pid, p.Cgroup)
}

// sample keeps the stack of a thread that is about to leave its CPU. For a known stack,
// sample allocates memory only if the process keeps interpreted frames outside its native
// stack. In this case, it copies the sample, because the frames are read later.
func (r *reader) sample(rec *perfevent.Record) {
	if r.paused > 0 || rec.Attachment == nil && r.waits.threads[rec.TID] == nil {
		return // left over in a ring, or without an attachment, in which case the switch adds the thread
	}
	if rec.PID <= 0 || rec.TID <= 0 {
		return // idle, ended, or of another pid namespace
	}
	if t := r.waits.threads[rec.TID]; t == nil || t.own == 0 { // threads with extra events have a separate bound
		r.sampled++
		if t != nil && t.round == r.round && r.sampled > r.most {
			t.skipped = true
			return
		}
	} else {
		r.watch.sampled(rec.TID, rec.CPU)
	}
	p := r.cfg.Table.Lookup(rec.PID, rec.Sample.CgroupID)
	if !p.Wanted || !r.loop.Means(rec.PID, p.Cgroup) {
		return
	}
	outside := r.cfg.Languages.Enter(p)
	whole := r.cfg.Stacks.Unwind(p, &rec.Sample, r.cfg.Languages.Generated(&rec.Sample))
	stack := p.Stack(&rec.Sample, whole)
	if stack == nil {
		return // counted when the wait has ended
	}
	c := caller{resource: p.Resource, stack: stack, thread: r.loop.Thread(rec)}
	if outside {
		c.interpreted = newInterpreted(&rec.Sample, whole)
		r.unread = append(r.unread, rec.TID)
	}
	r.waits.sampled(rec.PID, rec.TID, r.round, c)
}

// add adds a wait, or a part of a wait, to the scaler.
func (r *reader) add(p *part) {
	if p.stack == nil && p.weight > 1 {
		r.counts.RateLimited++
	}
	p.capture = r.loop.Capture(p.target)
	r.scaler.add(p)
}

// emit adds a part to the sink with its value.
func (r *reader) emit(p *part, typ *samples.Type, period, value int64) {
	if p.stack == nil {
		p.caller = r.without(p.pid, p.tid)
	}
	k := &r.key
	k.Resource, k.Type, k.Stack, k.Thread, k.Period, k.Capture = p.resource, typ, p.stack, p.thread, period, p.capture
	k.Link, k.Labels = p.span.Link, p.span.Labels
	if !r.cfg.Sink.AddValue(*k, p.end-1, value) {
		r.counts.BufferFull++
	}
}

// without returns the caller of a part that has no stack.
func (r *reader) without(pid, tid int) caller {
	var rec perfevent.Record
	rec.PID, rec.TID = pid, tid
	return caller{resource: r.cfg.Table.Known(pid).Resource, stack: perftargets.NoStack, thread: r.loop.Thread(&rec)}
}

// still reports whether a thread that has waited longer than a capture window still waits.
// The thread may have moved to a place without events, such as another cgroup.
func (r *reader) still(t *thread) bool {
	switches, running, ok := r.cfg.Still(t.pid, t.tid)
	if !ok {
		return false
	}
	was := t.checked
	t.checked = check{done: true, running: running, switches: switches}
	if !was.done {
		return true
	}
	// If the thread was seen running only once, it may just have been woken.
	return switches == was.switches && (!running || !was.running)
}
