// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package offcpu

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/hotprofile/hotprofile/internal/perfevent"
	"github.com/hotprofile/hotprofile/internal/samples"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/oncpu"
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
	attached *oncpu.Attachments
	options  perfevent.Options
	only     func(pid int, cgroup string) bool
	rec      perfevent.Record
	waits    *waits
	scaler   *scaler
	rate     *rate
	intN     func(int) int
	key      samples.Key

	counts  Stats           // what is counted here
	stats   perfevent.Stats // of the session, as counted already
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

// run reads until ctx is done.
func (r *reader) run(ctx context.Context) {
	defer r.close()
	wait := idleWait
	for ctx.Err() == nil {
		select {
		case f := <-r.found:
			r.apply(f)
		default:
		}
		session := r.session.Load()
		if session == nil {
			r.cfg.Sink.ReadUpTo(oncpu.Idle)
			select {
			case f := <-r.found:
				r.apply(f)
			case <-r.wake:
			case <-ctx.Done():
			}
			continue
		}
		r.follow(session)
		if r.resumeAt > 0 {
			wait = min(wait, max(time.Duration(r.resumeAt-r.cfg.Now()), 0))
		}
		if err := session.Wait(wait); err != nil {
			r.cfg.Logger.Error("Reading switches failed; off-CPU sampling ends until targets are looked for again", zap.Error(err))
			r.close()
			continue
		}
		wait = idleWait
		if r.drain(session) {
			wait = settleWait
		}
	}
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
	r.lost.Add(now.Lost - was.Lost + now.LostSamples - was.LostSamples + now.Corrupt - was.Corrupt)
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
		if !r.options.HostWide {
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
		table.Fork(rec.Task.PID, rec.Task.PPID, rec.Task.TID, rec.Task.PTID)
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
	if rec.PID <= 0 || rec.TID <= 0 || r.paused > 0 || rec.Target == nil {
		return // idle, ended, of another pid namespace; or left in a ring
	}
	if !rec.Switch.Out {
		if r.waits.threads[rec.TID] != nil || r.wants(rec.PID) {
			r.waits.came(rec.PID, rec.TID, rec.Time, rec.Target)
		}
		return
	}
	r.switches++
	if r.waits.threads[rec.TID] == nil && !r.wants(rec.PID) {
		return
	}
	r.waits.left(rec.PID, rec.TID, rec.Time, rec.Switch.Preempted, rec.Target)
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
	if r.paused > 0 || rec.Target == nil {
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
	rec.Sample.User = oncpu.Reached(rec.Sample.User)
	stack := p.Stack(&rec.Sample)
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

// apply makes what is attached be what was found.
func (r *reader) apply(f found) {
	options := perfevent.Options{
		CPUs:           f.plan.CPUs,
		Switches:       1,
		Kernel:         f.rights.KernelMode(r.cfg.Kernel != oncpu.KernelNever),
		HostWide:       f.plan.HostWide,
		MaxDescriptors: r.cfg.MaxEvents,
	}
	session := r.session.Load()
	if f.failed && session != nil {
		r.reportFailure(f.err)
		return // what is attached stays: nothing says that it should not
	}
	if session != nil && (f.plan.Mode == perfevent.ModeNone || !sameOptions(options, r.options)) {
		r.close()
		session = nil
	}
	if f.plan.Mode == perfevent.ModeNone {
		r.report(f)
		return
	}
	if session == nil {
		opened, err := perfevent.Open(options)
		if err != nil {
			f.err = err
			r.report(f)
			return
		}
		session = opened
		r.options = options
		r.begin(session)
	}
	r.only = nil
	if f.plan.Mode == perfevent.ModeFilter {
		r.only = f.Only
	}
	gone, refused, err := r.attached.Apply(session, f.plan, f.Starts)
	if err != nil {
		r.cfg.Logger.Debug("Detaching perf events failed", zap.Error(err))
	}
	for _, t := range gone {
		r.waits.forgetTarget(t)
	}
	f.plan.LeftOut = append(f.plan.LeftOut, refused...)
	if r.attached.Count() == 0 {
		r.close()
		if len(refused) > 0 {
			f.err = errors.New(refused[0].Reason)
		}
	}
	r.targets.Store(int64(r.attached.Count()))
	r.report(f)
}

// begin takes a session that was just opened.
func (r *reader) begin(session *perfevent.Session) {
	now := r.cfg.Now()
	r.rate = newRate(r.cfg.MaxEventsPerSecond, now)
	r.sinceDraw, r.drawn = 0, now
	r.closing = r.cfg.Sink.Closing()
	r.cfg.Sink.ReadUpTo(now)
	r.cfg.Table.AfterLoss() // nobody told of what happened before
	r.session.Store(session)
}

func sameOptions(a, b perfevent.Options) bool {
	return slices.Equal(a.CPUs, b.CPUs) && a.Kernel == b.Kernel && a.HostWide == b.HostWide && a.MaxDescriptors == b.MaxDescriptors
}

// close reads what is left in the rings, shows what is in progress up to now, and
// gives up the session.
func (r *reader) close() {
	session := r.session.Load()
	if session == nil {
		return
	}
	r.drain(session)
	r.cut(r.cfg.Now())
	r.session.Store(nil)
	r.resume("Off-CPU sampling ended while it paused")
	r.attached = oncpu.NewAttachments()
	r.targets.Store(0)
	if err := session.Close(); err != nil {
		r.cfg.Logger.Debug("Closing perf events failed", zap.Error(err))
	}
	r.waits.forget()
	r.scaler.setMean(1)
	r.scaler.forget()
	r.only, r.stats = nil, perfevent.Stats{}
	r.publish()
}

// spoken is what has been said, so that each thing is said once until it changes.
type spoken struct {
	started bool
	leftOut string
	failure string
	refused string
	unset   bool
}

// report says what is sampled, what is not and why; each once until it changes.
func (r *reader) report(f found) {
	r.spoken.failure = ""
	refused := ""
	if f.err != nil {
		refused = f.err.Error()
	}
	if refused != r.spoken.refused {
		r.spoken.refused = refused
		if f.err != nil {
			r.spoken.started = false
			r.cfg.Logger.Warn("off-CPU sampling is not possible; other samplers go on", zap.Error(f.err),
				zap.Duration("tried_again_every", r.cfg.DiscoveryInterval))
		}
	}
	if f.err != nil {
		return
	}
	leftOut := make([]string, 0, len(f.plan.LeftOut))
	for _, l := range f.plan.LeftOut {
		leftOut = append(leftOut, l.What+": "+l.Reason)
	}
	if !r.spoken.started {
		r.spoken.started = true
		r.cfg.Logger.Info("off-CPU sampling started",
			zap.String("when", r.cfg.When),
			zap.String("what", f.plan.Mode.String()),
			zap.Duration("min_duration", r.cfg.MinDuration),
			zap.Int("max_events_per_second", r.cfg.MaxEventsPerSecond),
			zap.Strings("not_sampled", leftOut),
			zap.String("why", f.plan.Why))
	} else if all := strings.Join(leftOut, "\n"); all != r.spoken.leftOut {
		if all != "" {
			r.cfg.Logger.Warn("not everything that was asked for can be sampled off the CPU", zap.Strings("not_sampled", leftOut))
		}
	}
	r.spoken.leftOut = strings.Join(leftOut, "\n")
	r.cfg.Logger.Debug("off-CPU targets", zap.Int("targets", int(r.targets.Load())), zap.Int("perf_events", f.plan.Descriptors))
}

// reportFailure says that targets could not be looked for.
func (r *reader) reportFailure(err error) {
	if text := err.Error(); text != r.spoken.failure {
		r.spoken.failure = text
		r.cfg.Logger.Warn("Looking for targets failed; what is sampled off the CPU stays as it is", zap.Error(err),
			zap.Duration("tried_again_every", r.cfg.DiscoveryInterval))
	}
}
