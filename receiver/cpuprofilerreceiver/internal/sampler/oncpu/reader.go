// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package oncpu

import (
	"context"
	"time"

	"go.uber.org/zap"

	"github.com/hotprofile/hotprofile/internal/perfevent"
	"github.com/hotprofile/hotprofile/internal/samples"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/attach"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/buffer"
)

const (
	// idleWait is the longest that the reader waits for records: samples wake it
	// only when a ring is half full.
	idleWait = time.Second / 4
	// gatherWait is how long records are left to gather where each sample would
	// wake the reader.
	gatherWait = 100 * time.Millisecond
	// settleWait is how soon to look again at programs that are being started.
	settleWait = 2 * time.Millisecond
	// msgFull is what operators look for; do not change it.
	msgFull = "Skipping a thread sample period, buffers are full. ** THIS WILL RESULT IN LOSS OF PROFILING DATA **"
)

// reader is the part of a Sampler that its reading goroutine owns.
type reader struct {
	*Sampler
	rec perfevent.Record
	// soon is that programs are being started.
	soon bool

	pace   *pace
	losses *attach.Losses
	stats  perfevent.Stats // of the session, as counted already
	spoken spoken
	batch  uint64 // that the table knows of
	paused bool
	// pausedSince is when the pause began, periodsBefore how many periods all before
	// it took together; droppedBefore and skippedBefore are how many samples had
	// found both buffers full, and periods had passed paused, when the last one
	// ended.
	pausedSince                  int64
	periodsBefore                float64
	droppedBefore, skippedBefore uint64
}

// Idle implements attach.Reader, as do the following.
func (r *reader) Idle() { r.cfg.Sink.ReadUpTo(buffer.Idle) }

func (r *reader) Options(f *attach.Found) perfevent.Options {
	return perfevent.Options{Period: r.full, Kernel: r.cfg.Kernel.Of(f.Rights), UserStack: r.cfg.Stacks.Attach(f.Plan.Wide())}
}

func (r *reader) Begin(session *perfevent.Session) {
	now := r.cfg.Now()
	r.cfg.Sink.ReadUpTo(now)
	r.stats = perfevent.Stats{}
	r.pace.restart(now, r.cfg.Meter.Total())
	if r.pace.halvings > 0 {
		// Its rings are made for the full frequency, which may come again.
		if err := session.SetPeriod(r.pace.period(r.full)); err != nil {
			r.cfg.Logger.Error("The sampling frequency could not be set", zap.Error(err))
		}
	}
	r.cfg.Table.AfterLoss() // nobody told of what happened before
}

func (r *reader) Attached(f *attach.Found, _ []*perfevent.Attachment) {
	for _, w := range f.Plan.Processes {
		r.cfg.Stacks.Prepare(r.cfg.Table.Lookup(w.PID, 0))
	}
}

func (r *reader) Turn(ctx context.Context, session *perfevent.Session) error {
	r.follow(session)
	if !r.Current().HostWide {
		// Samples share the ring of what is told at once. Here that can wait:
		// children that live for milliseconds are not sampled anyway.
		r.gather(ctx)
	}
	wait := idleWait
	if r.soon {
		wait = settleWait
	}
	if err := session.Wait(wait); err != nil {
		return err
	}
	r.cfg.Meter.Do(func() { r.soon = r.drain(session) })
	if err := r.adjust(session); err != nil {
		return err
	}
	r.Again() // it may have been seen just now that copies are needed
	return nil
}

// gather lets time pass, unless there is something to do.
func (r *reader) gather(ctx context.Context) {
	timer := time.NewTimer(gatherWait)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-r.Woken():
	case <-ctx.Done():
	}
}

// drain reads what the rings hold. It reports whether to look again soon.
func (r *reader) drain(session *perfevent.Session) (soon bool) {
	if n := r.cfg.Sink.Batch(); n != r.batch {
		r.batch = n
		r.cfg.Table.NextBatch()
		r.publishTable()
	}
	// What is written from here on may be read in this round or the next.
	upTo := r.cfg.Now()
	for session.Read(&r.rec) {
		r.handle(&r.rec)
	}
	r.cfg.Sink.ReadUpTo(upTo)
	r.count(session.Stats())
	return r.cfg.Table.Settle()
}

// publishTable shows others what the table, which is the reader's alone, holds.
func (r *reader) publishTable() {
	stats := r.cfg.Table.Stats()
	r.table.Store(&stats)
}

// count adds what the kernel could not hand over. A throttled event and a record
// that made no sense have cost at least one sample each.
func (r *reader) count(now perfevent.Stats) {
	was := r.stats
	r.stats = now
	if n := now.Lost - was.Lost + now.LostSamples - was.LostSamples +
		now.Throttled - was.Throttled + now.Corrupt - was.Corrupt; n > 0 {
		r.lost.Add(n)
		r.cfg.Sink.KernelLost(samples.OnCPU, n)
	}
	r.losses.Note(r.cfg.Now(), r.lost.Load())
}

// follow pauses the kernel's sampling when both buffers are full and resumes it
// when one is free again.
func (r *reader) follow(session *perfevent.Session) {
	full := r.cfg.Sink.Paused()
	if full == r.paused {
		r.skip()
		return
	}
	if full {
		r.paused = true
		r.pausedSince = r.cfg.Now()
		if err := session.Pause(); err != nil {
			// Samples are still dropped, only at a greater cost.
			r.cfg.Logger.Warn("Sampling could not be paused", zap.Error(err))
		}
		r.cfg.Logger.Warn(msgFull)
		return
	}
	r.resume("Sampling goes on, a buffer is free again")
	if err := session.Resume(); err != nil {
		r.cfg.Logger.Error("Sampling could not be resumed", zap.Error(err))
	}
	if !r.Current().HostWide {
		// Without events that tell of the whole host nobody told of mappings
		// made meanwhile.
		r.cfg.Table.AfterLoss()
	}
}

// skip counts the periods that have passed since the pause began, if there is
// one, so that they are seen while it lasts.
func (r *reader) skip() (paused time.Duration) {
	if !r.paused {
		return 0
	}
	paused = time.Duration(r.cfg.Now() - r.pausedSince)
	// Of the time of all pauses, so that many short ones count too.
	r.skipped.Store(uint64(r.periodsBefore + r.periods(paused)))
	return paused
}

// periods is how many there are in a time. The period does not change during a
// pause.
func (r *reader) periods(of time.Duration) float64 {
	return float64(of) / float64(r.pace.period(r.full))
}

// resume ends the account of a pause; said is how it ended.
func (r *reader) resume(said string) {
	if !r.paused {
		return
	}
	took := r.skip()
	r.periodsBefore += r.periods(took)
	skipped := r.skipped.Load()
	periods := skipped - r.skippedBefore
	r.skippedBefore = skipped
	r.cfg.Logger.Info(said,
		zap.Duration("paused", took),
		zap.Uint64("periods_skipped", periods),
		zap.Uint64("samples_dropped", r.bufferFull.Load()-r.droppedBefore))
	r.paused = false
	r.pace.restart(r.cfg.Now(), r.cfg.Meter.Total())
	r.droppedBefore = r.bufferFull.Load()
}

// handle takes one record.
func (r *reader) handle(rec *perfevent.Record) {
	table := r.cfg.Table
	switch rec.Type {
	case perfevent.TypeSample:
		r.sample(rec)
	case perfevent.TypeFork:
		if !r.Current().HostWide && rec.Task.PID != rec.Task.PPID {
			return // a child, which is not sampled, and whose end nobody would tell
		}
		table.Fork(rec.Task.PID, rec.Task.PPID, rec.Task.TID, rec.Task.PTID)
	case perfevent.TypeExit:
		table.Exit(rec.Task.PID, rec.Task.TID)
	case perfevent.TypeComm:
		if rec.Comm.Exec {
			table.Exec(rec.Comm.PID, rec.Comm.Name)
		} else {
			table.Comm(rec.Comm.PID, rec.Comm.TID, rec.Comm.Name)
		}
	case perfevent.TypeMmap:
		table.Mmap(rec.Mmap.PID, &rec.Mmap)
	case perfevent.TypeLost:
		if rec.Lost.Records {
			table.AfterLoss()
		}
	}
}

// sample turns a record into an event of the batch. For a stack seen before it
// allocates nothing.
func (r *reader) sample(rec *perfevent.Record) {
	if rec.PID <= 0 {
		// Exiting, or of a pid namespace that this process is not in.
		r.read.Add(1)
		r.unreadable.Add(1)
		return
	}
	p := r.cfg.Table.Lookup(rec.PID, rec.Sample.CgroupID)
	if !p.Wanted {
		if rec.Attachment != nil && !r.Last().Plan.Wide() && p.Unknown() {
			// It is of a target: the event that took the sample says so.
			r.read.Add(1)
			r.unreadable.Add(1)
		}
		return
	}
	r.read.Add(1)
	stack := r.cfg.Stacks.Of(p, &rec.Sample)
	if stack == nil {
		r.unreadable.Add(1)
		return
	}
	k := samples.Key{Resource: p.Resource, Type: samples.OnCPU, Stack: stack, Period: rec.Sample.Period}
	if r.cfg.ThreadName {
		k.Thread.Name = r.cfg.Table.ThreadName(rec.PID, rec.TID)
	}
	if r.cfg.ThreadID {
		k.Thread.ID = int32(rec.TID)
	}
	if !r.cfg.Sink.Add(k, rec.Time) {
		r.bufferFull.Add(1)
	}
}

// End reads what is left in the rings.
func (r *reader) End(session *perfevent.Session) {
	r.drain(session)
	r.publishTable()
	r.resume("Sampling ended while both buffers were full")
	r.losses.End()
}
