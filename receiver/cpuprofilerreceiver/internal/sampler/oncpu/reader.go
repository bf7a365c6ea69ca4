// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package oncpu

import (
	"context"
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/hotprofile/hotprofile/internal/perfevent"
	"github.com/hotprofile/hotprofile/internal/samples"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/perftargets"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/processes"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/sampler"
)

const (
	// idleWait is the longest wait for records. Records of processes wake the reader at once.
	// Samples wake the reader when a ring is a quarter full. The buffer wakes the reader when
	// a batch is taken.
	idleWait = 5 * time.Second
	// gatherWait is the time during which records accumulate if each sample would otherwise
	// wake the reader.
	gatherWait = 100 * time.Millisecond
	// tablesWait is the longest wait for the unwind tables of new programs. The rings have
	// room for the records that accumulate in at least twice this time.
	tablesWait = 100 * time.Millisecond
)

// reader reads the rings. Only the reading goroutine may use it.
type reader struct {
	cfg  Settings
	loop *perftargets.Loop
	pace *pace
	// full is the sampling period at the configured frequency.
	full time.Duration
	rec  perfevent.Record
	// wait is the longest wait for the next records.
	wait time.Duration
	// exceeded is true while sampling costs more than max_overhead and a lower frequency
	// would not help. This state was logged when it began.
	exceeded bool

	// hot reports whether a process belongs to a hot unit. It is nil if the stacks of all
	// units are unwound.
	hot func(*processes.Process) bool

	counts    Stats                    // the reader's own counters
	published sampler.Published[Stats] // all counters, for other goroutines

	// prompt reports whether each sample wakes the reader.
	prompt bool

	paused bool
	// pausedSince is the start of the current pause. periodsBefore is the number of periods
	// in all earlier pauses.
	pausedSince   int64
	periodsBefore float64
	before        Stats // counters at the end of the last pause
}

// Options implements perftargets.Reader.
func (r *reader) Options(f *perftargets.Found) perfevent.Options {
	return perfevent.Options{Period: r.full, Kernel: r.cfg.Kernel.Of(f.Rights), UserStack: r.cfg.Stacks.Copied()}
}

// Begin resets the reader's state for a new session.
func (r *reader) Begin(session *perfevent.Session) {
	r.prompt = false
	if o := r.loop.Current(); o.HostWide && o.UserStack > 0 {
		r.cfg.Labels.Begin(session)
	}
	r.pace.restart(r.cfg.Now(), r.spent())
	r.publish()
	if r.pace.halvings > 0 {
		// The rings are sized for the full frequency, because it may be restored.
		if err := session.SetPeriod(r.pace.period(r.full)); err != nil {
			r.cfg.Logger.Error("setting the sampling frequency failed", zap.Error(err))
		}
	}
}

// Attached has no effect, because unwinding itself waits for the tables of new programs.
func (r *reader) Attached(*perftargets.Found, []*perfevent.Attachment) {}

// Turn waits for records and reads them.
func (r *reader) Turn(ctx context.Context, session *perfevent.Session) error {
	r.follow(session)
	if !r.loop.Current().HostWide && !r.prompt {
		// Samples share a ring with records of processes, which wake the reader at once.
		// These records can be read later, because children that live only for milliseconds
		// are not sampled anyway.
		r.gather(ctx)
	}
	if err := session.Wait(r.wait); err != nil {
		return err
	}
	r.cfg.Meter.Do(func() { r.wait = r.drain(session) })
	if n := r.cfg.Stacks.Copied(); n != r.loop.Current().UserStack {
		r.cfg.Stacks.Copies(r.loop.Copy(session, n))
	}
	if prompt := r.cfg.Languages.Prompt() || r.cfg.Labels.Prompt(); prompt != r.prompt {
		r.prompt = prompt
		if err := session.SetPrompt(prompt); err != nil {
			r.cfg.Logger.Debug("some samples are read late: changing when they are read failed", zap.Error(err))
		}
	}
	err := r.adjust(session)
	r.publish()
	return err
}

// gather waits for records to accumulate, unless the reader is woken.
func (r *reader) gather(ctx context.Context) {
	timer := time.NewTimer(gatherWait)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-r.loop.Woken():
	case <-ctx.Done():
	}
}

// drain reads the records in the rings. It returns the longest wait for the next records.
func (r *reader) drain(session *perfevent.Session) time.Duration {
	if r.loop.NextBatch() {
		r.cfg.Stacks.NextBatch()
		r.cfg.Languages.NextBatch()
		r.cfg.Labels.NextBatch()
	}
	r.cfg.Stacks.Wait(tablesWait)
	r.hot = nil
	if r.pace.sparing {
		r.hot = r.cfg.Sparing()
	}
	// Records that are written after this time may be read only in the next round.
	upTo := r.cfg.Now()
	for session.Read(&r.rec) {
		r.handle(&r.rec)
	}
	// Held samples are added to the buffer later, so the position must not be after them.
	_, again := r.loop.ReadUpTo(session, session.Stats(), r.cfg.Labels.Oldest(upTo), &r.counts.Counts)
	if !again {
		r.cfg.Labels.Settle(upTo, r.add)
	}
	switch {
	case r.cfg.Table.Settle() || again:
		return perftargets.SettleWait
	case r.paused || r.cfg.Table.Starting():
		return perftargets.IdleWait
	}
	return min(idleWait, r.cfg.Languages.Wait(), r.cfg.Labels.Wait())
}

// publish makes the counters visible to other goroutines.
func (r *reader) publish() {
	st := r.counts
	st.Table, st.Frequency = r.cfg.Table.Stats(), r.frequency(r.pace.halvings)
	r.published.Set(st)
}

// kernelLost returns the minimum number of samples that the kernel has lost. Each
// throttling of a perf event and each corrupt record costs at least one sample.
func kernelLost(s perfevent.Stats) uint64 { return perftargets.KernelLost(s) + s.Throttled }

// follow pauses the kernel's sampling while both batches are full. It resumes sampling when
// a batch is free again.
func (r *reader) follow(session *perfevent.Session) {
	full := r.cfg.Sink.Paused()
	if full == r.paused {
		r.skip()
		return
	}
	if full {
		r.paused = true
		r.pausedSince = r.cfg.Now()
		r.loop.Pause(session)
		r.cfg.Labels.Interrupted()
		r.cfg.Logger.Warn(sampler.MsgThreadsFull)
		return
	}
	r.resume("sampling resumed, a buffer is free again")
	r.loop.Resume(session)
	r.cfg.Labels.Interrupted()
}

// skip counts the skipped periods of the current pause, so that the counter also grows
// during the pause. It returns the length of the pause so far, or 0 without a pause.
func (r *reader) skip() (paused time.Duration) {
	if !r.paused {
		return 0
	}
	paused = time.Duration(r.cfg.Now() - r.pausedSince)
	// The periods of all pauses are summed, so that many short pauses count too.
	r.counts.PeriodsSkipped = uint64(r.periodsBefore + r.periods(paused))
	return paused
}

// periods returns the number of sampling periods in a duration. It uses the current period,
// because the period does not change during a pause.
func (r *reader) periods(of time.Duration) float64 {
	return float64(of) / float64(r.pace.period(r.full))
}

// resume ends a pause and logs the message.
func (r *reader) resume(message string) {
	if !r.paused {
		return
	}
	took := r.skip()
	r.periodsBefore += r.periods(took)
	r.cfg.Logger.Info(message,
		zap.Duration("paused", took),
		zap.Uint64("periods_skipped", r.counts.PeriodsSkipped-r.before.PeriodsSkipped),
		zap.Uint64("samples_dropped", r.counts.BufferFull-r.before.BufferFull))
	r.paused, r.before = false, r.counts
	r.pace.restart(r.cfg.Now(), r.spent())
}

// handle processes one record.
func (r *reader) handle(rec *perfevent.Record) {
	switch {
	case r.cfg.Labels.Hit(rec):
	case rec.Type == perfevent.TypeSample:
		r.sample(rec)
	default:
		if rec.Type == perfevent.TypeLost && !rec.Lost.Records() { // lost in the ring with hits
			r.cfg.Labels.Interrupted()
		}
		r.loop.Follow(rec)
	}
}

// sample adds a sample to the batch. If the stack is known, sample allocates no memory.
func (r *reader) sample(rec *perfevent.Record) {
	if rec.PID <= 0 {
		// The task is exiting, or belongs to a pid namespace that this process is not in.
		r.counts.Read++
		r.counts.Unreadable++
		return
	}
	p := r.cfg.Table.Lookup(rec.PID, rec.Sample.CgroupID)
	if !p.Wanted {
		if rec.Attachment != nil && !r.loop.Last().Plan.Wide() && p.Unknown() {
			// The perf event that took the sample is attached to a target, so the sample
			// counts as lost.
			r.counts.Read++
			r.counts.Unreadable++
		}
		return
	}
	r.counts.Read++
	labelled := r.cfg.Labels.Read(p, rec) // first, because the thread continues to run
	stack := r.stack(p, rec)
	if stack == nil {
		r.counts.Unreadable++
		return
	}
	r.cfg.Sampled.Mark(p.PID, rec.Time)
	span := r.cfg.Languages.Span()
	k := samples.Key{
		Resource: p.Resource, Type: samples.OnCPU, Stack: stack, Thread: r.loop.Thread(rec),
		Period: rec.Sample.Period, Capture: r.loop.Capture(rec.Attachment), Link: span.Link, Labels: span.Labels,
	}
	if labelled {
		r.cfg.Labels.Hold(k, rec.Time)
	} else {
		r.add(k, rec.Time)
	}
}

// add adds a sample to the batch.
func (r *reader) add(k samples.Key, time int64) {
	if !r.cfg.Sink.AddValue(k, time, 0) {
		r.counts.BufferFull++
	}
}

// stack returns the stack of a sample. It unwinds the stack unless the stack is spared.
func (r *reader) stack(p *processes.Process, rec *perfevent.Record) *samples.Stack {
	s := &rec.Sample
	walked := r.cfg.Languages.Walk(p, rec) // first, because the thread continues to run
	if r.hot != nil && !r.hot(p) {
		r.counts.Spared++
		return r.cfg.Stacks.Flat(p, s)
	}
	whole := r.cfg.Stacks.Unwind(p, s, r.cfg.Languages.Generated(s))
	if walked {
		whole = r.cfg.Languages.Merge(p, s, whole)
	}
	return p.Stack(s, whole)
}

// End reads the remaining records in the rings.
func (r *reader) End(session *perfevent.Session) {
	r.drain(session)
	r.cfg.Labels.End(r.add)
	r.resume("sampling ended while both buffers were full")
	r.publish()
}

// spent returns the CPU time that the sampling frequency affects.
func (r *reader) spent() time.Duration { return r.cfg.Meter.Total() + r.cfg.Names.Total() }

// adjust keeps the cost of sampling within its bound.
func (r *reader) adjust(session *perfevent.Session) error {
	if r.paused {
		return nil // a pause has no cost at any frequency
	}
	was, spared := r.pace.halvings, r.pace.sparing
	if !r.pace.next(r.cfg.Now(), r.spent(), len(session.CPUs())) {
		return nil
	}
	r.reportExceeded()
	r.reportSparing(spared)
	if r.pace.halvings == was {
		return nil
	}
	message, count := "sampling frequency lowered: sampling costs more than max_overhead", &r.counts.Lowered
	if r.pace.halvings < was {
		message, count = "sampling frequency raised: sampling costs well below max_overhead", &r.counts.Raised
		if r.pace.vain > 0 {
			message = "sampling frequency raised: the lower one did not cost less"
		}
	}
	*count++
	r.cfg.Logger.Info(message,
		zap.Float64("from", r.frequency(was)),
		zap.Float64("to", r.frequency(r.pace.halvings)),
		zap.Float64("cost_percent", 100*r.pace.cost),
		zap.Float64("max_overhead_percent", 100*r.pace.bound))
	// The samples in the rings were taken with the old period, so they are read before the
	// period changes.
	r.drain(session)
	if err := session.SetPeriod(r.pace.period(r.full)); err != nil {
		return fmt.Errorf("change the sampling period: %w", err)
	}
	r.loop.PeriodChanged()
	return nil
}

// reportExceeded logs when sampling costs more than max_overhead and a lower frequency would
// not help. It does not log again while this state lasts.
func (r *reader) reportExceeded() {
	exceeded := r.pace.exceeded()
	if exceeded && !r.exceeded {
		r.cfg.Logger.Warn("sampling costs more than max_overhead, and a lower frequency would not help: processes that start and end cost too, whatever the frequency",
			zap.Float64("frequency", r.frequency(r.pace.halvings)),
			zap.Float64("cost_percent", 100*r.pace.cost),
			zap.Float64("max_overhead_percent", 100*r.pace.bound))
	}
	r.exceeded = exceeded
}

// reportSparing logs when sparing begins or ends. During sparing, only the stacks of hot
// units are unwound.
func (r *reader) reportSparing(was bool) {
	switch {
	case was == r.pace.sparing:
	case was:
		r.cfg.Logger.Info("stacks of all units are unwound again")
	default:
		r.cfg.Logger.Warn("only stacks of hot units are unwound: sampling costs more than max_overhead",
			zap.Float64("cost_percent", 100*r.pace.cost),
			zap.Float64("max_overhead_percent", 100*r.pace.bound))
	}
}
