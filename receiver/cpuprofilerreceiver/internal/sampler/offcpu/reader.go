// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package offcpu

import (
	"context"
	"strings"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/hotprofile/hotprofile/internal/perfevent"
	"github.com/hotprofile/hotprofile/internal/samples"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/attach"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/buffer"
)

const (
	// idleWait is the longest that the reader waits for records: they wake it only
	// when a ring is a quarter full.
	idleWait = time.Second / 4
	// settleWait is how soon to look again at programs that are being started.
	settleWait = 2 * time.Millisecond
	// redrawn is after how many samples per CPU the numbers of switches are drawn
	// anew, redrawWait the least time until then: each is a system call per event,
	// and has one more switch sampled.
	redrawn    = 50
	redrawWait = int64(50 * time.Millisecond)
	// msgFull is what operators look for; do not change it.
	msgFull = "Skipping a thread sample period, buffers are full. ** THIS WILL RESULT IN LOSS OF PROFILING DATA **"
)

// check is what was seen of a thread that has waited for longer than a window.
type check struct {
	done, running bool
	switches      uint64
}

// reader is the part of a Sampler that its reading goroutine owns.
type reader struct {
	*Sampler
	soon   bool // programs are being started
	only   func(pid int, cgroup string) bool
	rec    perfevent.Record
	waits  *waits
	scaler *scaler
	rate   *rate
	intN   func(int) int
	key    samples.Key

	counts  Stats           // what is counted here
	stats   perfevent.Stats // of the session, as counted already
	losses  *attach.Losses
	spoken  spoken
	batch   uint64       // that the table knows of
	closing int64        // where waits were cut last
	closed  atomic.Int64 // the same, for others
	// switches and sampled are those of this round.
	switches, sampled int
	sinceDraw         int
	drawn             int64

	// full says that sampling is paused because both buffers are full, resumeAt,
	// above 0, until when it is because there were too many switches.
	full     bool
	resumeAt int64
	paused   int64 // since when
	before   Stats // when the pause began
}

// Idle implements attach.Reader, as do the following.
func (r *reader) Idle() { r.cfg.Sink.ReadUpTo(buffer.Idle) }

func (r *reader) Options(f *attach.Found) perfevent.Options {
	if f.Err == nil && f.Plan.Mode == perfevent.ModeNone {
		r.cfg.Stacks.Forget() // what is wanted next may be another program
	}
	for _, w := range f.Plan.Processes {
		r.cfg.Stacks.Prepare(r.cfg.Table.Lookup(w.PID, 0))
	}
	return perfevent.Options{Switches: 1, Kernel: r.cfg.Kernel.Of(f.Rights), UserStack: r.cfg.Stacks.Attach(f.Plan.Wide())}
}

func (r *reader) Begin(*perfevent.Session) {
	now := r.cfg.Now()
	r.stats = perfevent.Stats{}
	r.rate = newRate(r.cfg.MaxEventsPerSecond, stacksPerSecond(r.cfg.MaxEventsPerSecond, r.Current().UserStack), now)
	r.sinceDraw, r.drawn = 0, now
	r.closing = r.cfg.Sink.Closing()
	r.cfg.Sink.ReadUpTo(now)
	r.cfg.Table.AfterLoss() // nobody told of what happened before
}

func (r *reader) Attached(f *attach.Found, gone []*perfevent.Attachment) {
	r.only = nil
	if f.Plan.Mode == perfevent.ModeFilter {
		r.only = f.Only
	}
	for _, t := range gone {
		r.waits.forgetTarget(t)
	}
}

func (r *reader) Turn(_ context.Context, session *perfevent.Session) error {
	r.follow(session)
	wait := idleWait
	if r.soon {
		wait = settleWait
	}
	if r.resumeAt > 0 {
		wait = min(wait, max(time.Duration(r.resumeAt-r.cfg.Now()), 0))
	}
	if err := session.Wait(wait); err != nil {
		return err
	}
	r.soon = r.drain(session)
	if r.Current().UserStack != r.cfg.Stacks.Copied() {
		r.Again() // it was seen just now that copies are needed
	}
	return nil
}

// End reads what is left in the rings, and shows what is in progress up to now.
func (r *reader) End(session *perfevent.Session) {
	r.drain(session)
	r.cut(r.cfg.Now())
	r.resume("Off-CPU sampling ended while it paused")
	r.losses.End()
	r.waits.forget()
	r.scaler.setMean(1)
	r.scaler.forget()
	r.only = nil
	r.publish()
}

// drain reads what the rings hold. It reports whether to look again soon.
func (r *reader) drain(session *perfevent.Session) (soon bool) {
	if n := r.cfg.Sink.Batch(); n != r.batch {
		r.batch = n
		r.cfg.Table.NextBatch()
	}
	closing := r.cfg.Sink.Closing()
	due := closing != r.closing
	upTo := r.cfg.Now() // not before closing
	r.switches, r.sampled = 0, 0
	for session.Read(&r.rec) {
		if due && r.rec.Time >= closing && r.rec.Time-closing < int64(time.Second) {
			r.cut(closing)
			due = false
		}
		r.handle(&r.rec)
	}
	if due {
		r.cut(closing)
	}
	r.closing = closing
	r.closed.Store(closing)
	r.cfg.Sink.ReadUpTo(upTo)
	r.count(session.Stats())
	if r.paused == 0 {
		r.adjust(session, upTo)
	}
	r.publish()
	return r.cfg.Table.Settle()
}

// cut ends a window.
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
		r.pause(session, now, "Off-CPU sampling pauses: more switches than can be read",
			zap.Int("most_per_second", tooMany*r.cfg.MaxEventsPerSecond), zap.Duration("for", pause))
		return
	}
	switch {
	case mean != was:
		r.scaler.setMean(mean)
	case mean > 1 && r.sinceDraw >= redrawn*len(session.CPUs()) && now-r.drawn >= redrawWait:
	default:
		return
	}
	r.sinceDraw, r.drawn = 0, now
	err := session.SetSwitches(mean, func(mean int) int { return draw(mean, r.intN) })
	if err != nil && !r.spoken.unset {
		// The bound holds all the same once there are too many switches.
		r.spoken.unset = true
		r.cfg.Logger.Warn("The number of off-CPU stacks could not be limited", zap.Error(err))
	}
}

// count adds what the kernel could not hand over.
func (r *reader) count(now perfevent.Stats) {
	was := r.stats
	if n := now.Lost - was.Lost + now.LostSamples - was.LostSamples + now.Corrupt - was.Corrupt; n > 0 {
		r.lost.Add(n)
		r.cfg.Sink.KernelLost(samples.OffCPU, n)
	}
	r.losses.Note(r.cfg.Now(), r.lost.Load())
	if now.Corrupt != was.Corrupt {
		r.waits.forget() // what was passed over may have been switches
	}
	r.stats = now
}

// publish lets others see the counters.
func (r *reader) publish() {
	st := r.counts
	w := &r.waits.counts
	st.Unreadable += r.scaler.stackless
	st.Switches, st.UnderWay, st.Forgotten, st.Short, st.LeftOut = w.Switches, w.UnderWay, w.Forgotten, w.Short, w.LeftOut
	st.Unshared = time.Duration(r.scaler.unshared)
	st.Threads, st.Every = len(r.waits.threads), int(r.scaler.mean)
	st.Table = r.cfg.Table.Stats()
	if r.paused > 0 {
		r.addPaused(&st)
	}
	r.Sampler.stats.Store(&st)
}

func (r *reader) addPaused(st *Stats) {
	took := time.Duration(r.cfg.Now() - r.paused)
	if r.full {
		st.PausedFull += took
	} else {
		st.PausedRate += took
	}
}

// follow pauses while both buffers are full, or while there are too many
// switches, and goes on when neither is so any more.
func (r *reader) follow(session *perfevent.Session) {
	full, now := r.cfg.Sink.Paused(), r.cfg.Now()
	if r.resumeAt > 0 && now >= r.resumeAt {
		r.resumeAt = 0
	}
	switch {
	case full && r.paused == 0:
		r.full = true
		r.pause(session, now, msgFull, zap.String("sampler", samples.OffCPU.Sampler))
	case full && !r.full:
		r.addPaused(&r.counts)
		r.full, r.paused = true, now
	case r.paused > 0 && !full && r.resumeAt == 0:
		r.resume("Off-CPU sampling goes on")
		if err := session.Resume(); err != nil {
			r.cfg.Logger.Error("Off-CPU sampling could not be resumed", zap.Error(err))
		}
		if !r.Current().HostWide {
			// Without events that tell of the whole host nobody told of mappings
			// made meanwhile.
			r.cfg.Table.AfterLoss()
		}
		r.rate.resumed(now)
	}
}

// pause has the kernel sample nothing, and forgets all that is in progress: what
// threads do is not known from here on.
func (r *reader) pause(session *perfevent.Session, now int64, said string, fields ...zap.Field) {
	r.publish()
	r.before = r.Stats()
	r.paused = now
	if err := session.Pause(); err != nil {
		// What is read is dropped, only at a greater cost.
		r.cfg.Logger.Warn("Off-CPU sampling could not be paused", zap.Error(err))
	}
	r.forget()
	r.publish()
	r.cfg.Logger.Warn(said, fields...)
}

func (r *reader) forget() {
	r.waits.forget()
	r.counts.BufferFull += uint64(r.scaler.forget())
}

// resume ends the account of a pause.
func (r *reader) resume(said string) {
	if r.paused == 0 {
		return
	}
	took := time.Duration(r.cfg.Now() - r.paused)
	r.addPaused(&r.counts)
	r.full, r.paused, r.resumeAt = false, 0, 0
	r.waits.forget() // what was still in the rings
	r.publish()
	now := r.Stats()
	r.cfg.Logger.Info(said, zap.Duration("paused", took),
		zap.Uint64("waits_forgotten", now.Forgotten-r.before.Forgotten),
		zap.Uint64("samples_dropped", now.BufferFull-r.before.BufferFull))
}

// handle takes one record.
func (r *reader) handle(rec *perfevent.Record) {
	table := r.cfg.Table
	switch rec.Type {
	case perfevent.TypeSwitch:
		r.switched(rec)
	case perfevent.TypeSample:
		r.sample(rec)
	case perfevent.TypeFork:
		if r.Current().HostWide || rec.Task.PID == rec.Task.PPID { // else nobody would tell of the child's end
			table.Fork(rec.Task.PID, rec.Task.PPID, rec.Task.TID, rec.Task.PTID)
		}
		r.waits.started(rec.Task.TID)
	case perfevent.TypeExit:
		table.Exit(rec.Task.PID, rec.Task.TID)
		r.waits.exited(rec.Task.PID, rec.Task.TID)
	case perfevent.TypeComm:
		if rec.Comm.Exec {
			table.Exec(rec.Comm.PID, rec.Comm.Name)
			r.waits.executed(rec.Comm.TID)
		} else {
			table.Comm(rec.Comm.PID, rec.Comm.TID, rec.Comm.Name)
		}
	case perfevent.TypeMmap:
		table.Mmap(rec.Mmap.PID, &rec.Mmap)
	case perfevent.TypeLost:
		if rec.Lost.Records {
			table.AfterLoss()
		}
		r.waits.forget() // switches may be among what was lost
	}
}

// switched takes a thread off its CPU or onto it.
func (r *reader) switched(rec *perfevent.Record) {
	if rec.PID <= 0 || rec.TID <= 0 || r.paused > 0 || rec.Attachment == nil {
		return // idle, ended, of another pid namespace; or left in a ring
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

// wants says whether a process's threads are to be followed.
func (r *reader) wants(pid int) bool {
	if !r.cfg.Table.WantsPID(pid) {
		return false
	}
	return r.only == nil || r.only(pid, r.cfg.Table.CgroupOf(pid))
}

// sample keeps the stack of a thread that is about to leave its CPU. For a stack
// seen before it allocates nothing.
func (r *reader) sample(rec *perfevent.Record) {
	if r.paused > 0 || rec.Attachment == nil {
		return
	}
	if rec.PID <= 0 || rec.TID <= 0 {
		return // idle, ended, or of another pid namespace
	}
	r.sampled++
	p := r.cfg.Table.Lookup(rec.PID, rec.Sample.CgroupID)
	if !p.Wanted || r.only != nil && !r.only(rec.PID, p.Cgroup) {
		return
	}
	stack := r.cfg.Stacks.Of(p, &rec.Sample)
	if stack == nil {
		return // counted once its wait is over
	}
	c := caller{resource: p.Resource, stack: stack}
	if r.cfg.ThreadName {
		c.thread.Name = r.cfg.Table.ThreadName(rec.PID, rec.TID)
	}
	if r.cfg.ThreadID {
		c.thread.ID = int32(rec.TID)
	}
	r.waits.sampled(rec.PID, rec.TID, c)
}

// add takes a wait, or a part of one.
func (r *reader) add(p *part) {
	if p.stack == nil && r.scaler.mean > 1 {
		r.counts.RateLimited++
	}
	r.scaler.add(p)
}

// emit hands it over with its value.
func (r *reader) emit(p *part, typ *samples.Type, period, value int64) {
	k := &r.key
	k.Resource, k.Type, k.Stack, k.Thread, k.Period = p.resource, typ, p.stack, p.thread, period
	if !r.cfg.Sink.AddValue(*k, p.end-1, value) {
		r.counts.BufferFull++
	}
}

// still looks at a thread that has waited for longer than a window: it may have
// gone where nobody tells of it, as to another cgroup, and wait no more.
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
	// Once it may just have been woken.
	return switches == was.switches && (!running || !was.running)
}

// stacksPerSecond is how many stacks are sampled, of which so many bytes are
// copied each.
func stacksPerSecond(most, copied int) int {
	if copied == 0 {
		return most
	}
	return max(1, min(most, maxCopied/copied))
}

// spoken is what has been said, so that each thing is said once until it changes.
type spoken struct {
	started bool
	leftOut string
	failure string
	refused string
	unset   bool
}

// Report says what is sampled, what is not and why; each once until it changes.
func (r *reader) Report(f *attach.Found) {
	r.spoken.failure = ""
	refused := ""
	if f.Err != nil {
		refused = f.Err.Error()
	}
	if refused != r.spoken.refused {
		r.spoken.refused = refused
		if f.Err != nil {
			r.spoken.started = false
			r.cfg.Logger.Warn("off-CPU sampling is not possible; other samplers go on", zap.Error(f.Err),
				zap.Duration("tried_again_every", r.cfg.DiscoveryInterval))
		}
	}
	if f.Err != nil {
		return
	}
	leftOut := make([]string, 0, len(f.Plan.LeftOut))
	for _, l := range f.Plan.LeftOut {
		leftOut = append(leftOut, l.What+": "+l.Reason)
	}
	if !r.spoken.started {
		r.spoken.started = true
		r.cfg.Logger.Info("off-CPU sampling started",
			zap.String("when", r.cfg.When),
			zap.String("what", f.Plan.Mode.String()),
			zap.Duration("min_duration", r.cfg.MinDuration),
			zap.Int("max_events_per_second", r.cfg.MaxEventsPerSecond),
			zap.Strings("not_sampled", leftOut),
			zap.String("why", f.Plan.Why))
	} else if all := strings.Join(leftOut, "\n"); all != r.spoken.leftOut {
		if all != "" {
			r.cfg.Logger.Warn("not everything that was asked for can be sampled off the CPU", zap.Strings("not_sampled", leftOut))
		}
	}
	r.spoken.leftOut = strings.Join(leftOut, "\n")
	r.cfg.Logger.Debug("off-CPU targets", zap.Int("targets", r.Targets()), zap.Int("perf_events", f.Plan.Descriptors))
}

// Failed says that targets could not be looked for.
func (r *reader) Failed(err error) {
	if text := err.Error(); text != r.spoken.failure {
		r.spoken.failure = text
		r.cfg.Logger.Warn("Looking for targets failed; what is sampled off the CPU stays as it is", zap.Error(err),
			zap.Duration("tried_again_every", r.cfg.DiscoveryInterval))
	}
}
