// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package oncpu

import (
	"context"
	"errors"
	"time"

	"go.uber.org/zap"

	"github.com/hotprofile/hotprofile/internal/perfevent"
	"github.com/hotprofile/hotprofile/internal/samples"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/unwind"
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
	attached *attached
	rec      perfevent.Record

	// last is what was found last, needed that copies of stacks were found to be.
	last     found
	needed   bool
	unwinder *unwind.Unwinder

	stats  perfevent.Stats // of the session, as counted already
	spoken spoken
	batch  uint64 // that the table knows of
	paused bool
	// pausedSince is when the pause began, pausedTotal what all before it took
	// together; droppedBefore and skippedBefore are how many samples had found
	// both buffers full, and periods had passed paused, when the last one ended.
	pausedSince                  int64
	pausedTotal                  time.Duration
	droppedBefore, skippedBefore uint64
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
			r.cfg.Sink.ReadUpTo(Idle)
			select {
			case f := <-r.found:
				r.apply(f)
			case <-r.wake:
			case <-ctx.Done():
			}
			continue
		}
		r.follow(session)
		if !r.attached.options.HostWide {
			// Samples share the ring of what is told at once. Here that can wait:
			// children that live for milliseconds are not sampled anyway.
			r.gather(ctx)
		}
		if err := session.Wait(wait); err != nil {
			r.cfg.Logger.Error("Reading perf events failed; sampling ends until targets are looked for again", zap.Error(err))
			r.close()
			continue
		}
		wait = idleWait
		if r.drain(session) {
			wait = settleWait
		}
		if r.session.Load() != nil && r.attached.options.UserStack != r.userStack(r.last) {
			r.apply(r.last) // it was seen just now that copies are needed
		}
	}
}

// gather lets time pass, unless there is something to do.
func (r *reader) gather(ctx context.Context) {
	timer := time.NewTimer(gatherWait)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-r.wake:
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
	r.lost.Add(now.Lost - was.Lost + now.LostSamples - was.LostSamples +
		now.Throttled - was.Throttled + now.Corrupt - was.Corrupt)
	r.stats = now
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
	if !r.attached.options.HostWide {
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
	r.skipped.Store(uint64((r.pausedTotal + paused) / r.period))
	return paused
}

// resume ends the account of a pause; said is how it ended.
func (r *reader) resume(said string) {
	if !r.paused {
		return
	}
	took := r.skip()
	r.pausedTotal += took
	skipped := r.skipped.Load()
	periods := skipped - r.skippedBefore
	r.skippedBefore = skipped
	r.cfg.Logger.Info(said,
		zap.Duration("paused", took),
		zap.Uint64("periods_skipped", periods),
		zap.Uint64("samples_dropped", r.bufferFull.Load()-r.droppedBefore))
	r.paused = false
	r.droppedBefore = r.bufferFull.Load()
}

// handle takes one record.
func (r *reader) handle(rec *perfevent.Record) {
	table := r.cfg.Table
	switch rec.Type {
	case perfevent.TypeSample:
		r.sample(rec)
	case perfevent.TypeFork:
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
		return
	}
	r.read.Add(1)
	stack := r.stack(p, &rec.Sample)
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

// No code of a user lies below or above these: the first page is never mapped,
// and no processor that Linux runs on gives user space more than 56 bits.
const (
	leastAddress = 4096
	mostAddress  = 1 << 56
)

// reached is the part of a stack's user half that frame pointers led through.
// Where they lead astray the kernel goes on until it cannot read, and may give
// what is no address of code on the way: that one and what follows are no
// callers. The leaf is where the processor was, whatever it looks like.
func reached(user []uint64) []uint64 {
	for i, a := range user {
		if a == 0 || i > 0 && (a < leastAddress || a >= mostAddress) {
			return user[:i]
		}
	}
	return user
}

// close reads what is left in the rings and gives up the session.
func (r *reader) close() {
	session := r.session.Swap(nil)
	if session == nil {
		return
	}
	r.drain(session)
	r.publishTable()
	r.resume("Sampling ended while both buffers were full")
	r.attached.clear()
	r.targets.Store(0)
	if err := session.Close(); err != nil && !errors.Is(err, context.Canceled) {
		r.cfg.Logger.Debug("Closing perf events failed", zap.Error(err))
	}
	r.stats = perfevent.Stats{}
}
