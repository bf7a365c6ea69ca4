// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package perftargets

import (
	"fmt"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/hotprofile/hotprofile/internal/perfevent"
	"github.com/hotprofile/hotprofile/internal/samples"
)

const (
	// IdleWait is the maximum time for which a sampler waits for records. Samplers use it
	// if their records wake the reader only when a ring is a quarter full.
	IdleWait = time.Second / 4
	// SettleWait is the time between two checks of programs that are still starting.
	SettleWait = 2 * time.Millisecond
)

// KernelLost returns the number of events that the kernel has lost.
func KernelLost(s perfevent.Stats) uint64 { return s.Lost + s.LostSamples + s.Corrupt }

// Sink is the part of the buffer that every sampler uses.
type Sink interface {
	// AddValue adds a sample at time (CLOCK_MONOTONIC, in nanoseconds). If the type is
	// Valued, the sample has a value. AddValue reports whether the sample fit.
	AddValue(k samples.Key, time, value int64) bool
	// ReadUpTo sets the time before which all samples have been added. If there is no
	// session, the time is buffer.Idle.
	ReadUpTo(time int64)
	lossSink
	// Paused reports whether sampling has to stop because the buffer has no room.
	Paused() bool
	// Batch returns the number of batches that have been active.
	Batch() uint64
}

// Turn waits for records for at most the given time, and calls drain to read the records.
// drain reports whether the next Turn must read again soon. If the size of copied stacks
// has changed, Turn attaches the targets again.
func (l *Loop) Turn(session *perfevent.Session, wait time.Duration, drain func() (soon bool)) error {
	if l.soon {
		wait = min(wait, SettleWait)
	}
	if err := session.Wait(wait); err != nil {
		return err
	}
	l.soon = drain()
	if l.options.UserStack != l.cfg.Stacks.Copied() {
		l.Reapply() // stacks must be copied from now on
	}
	return nil
}

// NextBatch reports whether the buffer has changed to another batch since the last call.
// If so, NextBatch notifies the table.
func (l *Loop) NextBatch() bool {
	n := l.sink.Batch()
	if n == l.batch {
		return false
	}
	l.batch = n
	l.cfg.Table.NextBatch()
	return true
}

// Follow updates the table of processes from a record.
func (l *Loop) Follow(rec *perfevent.Record) {
	table := l.cfg.Table
	switch rec.Type {
	case perfevent.TypeFork:
		// Without records of the whole host, a child process is not sampled, and its end is
		// not recorded.
		if l.options.HostWide || rec.Task.PID == rec.Task.PPID {
			table.Fork(rec.Task.PID, rec.Task.PPID, rec.Task.TID, rec.Task.PTID)
		}
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
		if rec.Lost.Records() {
			table.AfterLoss()
		}
	}
}

// Capture returns the capture during which an attachment samples. If the attachment is
// nil, Capture returns the capture that precedes the last change of the period.
func (l *Loop) Capture(of *perfevent.Attachment) *samples.Capture {
	if of == nil {
		return l.before
	}
	return captureOf(of)
}

// Means reports whether a process is a target. This check is needed because events may
// also record other processes.
func (l *Loop) Means(pid int, cgroup string) bool {
	return l.last.Plan.Mode != ModeFilter || l.last.Only == nil || l.last.Only(pid, cgroup)
}

// PeriodChanged is called after the sampling period changed.
func (l *Loop) PeriodChanged() {
	l.before = new(samples.Capture)
	l.before.End(l.cfg.Now())
	l.attached.renew()
	l.Interrupted()
}

// Thread returns the thread of a record, with the configured attributes.
func (l *Loop) Thread(rec *perfevent.Record) samples.Thread {
	return l.cfg.Table.Thread(rec.PID, rec.TID, l.cfg.ThreadName, l.cfg.ThreadID)
}

// ReadUpTo adds losses to the sampler's counters, and sets the time before which all
// samples have been read. While the kernel may still report an earlier loss, the time does
// not change, and again is true. The caller must then read the rings again soon. before
// contains the session's counters of the last call.
func (l *Loop) ReadUpTo(session *perfevent.Session, now perfevent.Stats, time int64, to *Counts) (before perfevent.Stats, again bool) {
	before = l.losses.Count(l.cfg.Now(), now, to)
	if session.LossPending() {
		return before, true
	}
	l.sink.ReadUpTo(time)
	return before, false
}

// Pause pauses sampling in the kernel.
func (l *Loop) Pause(session *perfevent.Session) {
	if err := session.Pause(); err != nil {
		// If pausing fails, samples are still dropped, but at a higher cost.
		l.cfg.Logger.Warn("pausing sampling failed", zap.String("sampler", l.cfg.Type.Sampler), zap.Error(err))
	}
	l.attached.end()
}

// Resume resumes sampling in the kernel.
func (l *Loop) Resume(session *perfevent.Session) {
	if err := session.Resume(); err != nil {
		l.cfg.Logger.Error("resuming sampling failed", zap.String("sampler", l.cfg.Type.Sampler), zap.Error(err))
	}
	l.attached.renew()
	l.Interrupted()
}

// Copy changes the number of bytes that a session copies from each stack. It returns the
// number of bytes that are copied from now on.
func (l *Loop) Copy(session *perfevent.Session, bytes int) int {
	copied, err := session.SetUserStack(bytes)
	if err != nil {
		l.cfg.Logger.Debug("changing the size of copied stacks failed; what is attached keeps its size",
			zap.String("sampler", l.cfg.Type.Sampler), zap.Int("stack_bytes", bytes), zap.Error(err))
	}
	l.options.UserStack = copied
	return copied
}

// Interrupted is called after the sampling events were briefly off. If the session is not
// host-wide, the same events also record mappings. Interrupted then makes the table read
// each process again, because mappings may have been missed.
func (l *Loop) Interrupted() {
	if !l.options.HostWide {
		l.cfg.Table.AfterLoss()
	}
}

// Report logs targets that are left out, and reports whether targets can be sampled. It
// calls refused with the reason when sampling becomes impossible, and with nil when it is
// possible again. It calls started with the left-out targets when sampling starts. Log
// lines and calls are repeated only after a change.
func (l *Loop) Report(f *Found, refused func(error), started func(leftOut []string)) bool {
	why := ""
	if f.Err != nil {
		why = f.Err.Error()
		l.started = false
	}
	if why != l.refused {
		l.refused = why
		refused(f.Err)
	}
	if f.Err != nil {
		return false
	}
	leftOut := make([]string, 0, len(f.Plan.LeftOut))
	for _, o := range f.Plan.LeftOut {
		leftOut = append(leftOut, o.What+": "+o.Reason)
	}
	all := strings.Join(leftOut, "\n")
	changed := all != l.leftOut
	l.leftOut = all
	fields := []zap.Field{zap.String("sampler", l.cfg.Type.Sampler), zap.String("what", f.What())}
	switch {
	case !l.started:
		l.started = true
		started(leftOut)
	case !changed:
	case len(leftOut) == 0:
		l.cfg.Logger.Info("all targets are sampled now", fields...)
	default:
		l.cfg.Logger.Warn("some targets cannot be sampled", append(fields, zap.Strings("not_sampled", Listed(leftOut)))...)
	}
	return true
}

// PrepareStacks prepares the processes of f for unwinding. If there is no target,
// PrepareStacks forgets whether copies of stacks are needed, because the next
// target may be another program.
func (l *Loop) PrepareStacks(f *Found) {
	if f.Err == nil && f.Plan.Mode == ModeNone {
		l.cfg.Stacks.Forget()
	}
	for _, w := range f.Plan.Processes {
		l.cfg.Stacks.Prepare(l.cfg.Table.Lookup(w.PID, 0))
	}
}

// maxListed is the maximum number of items that a log line shows.
const maxListed = 10

// Listed shortens a list for a log line.
func Listed(all []string) []string {
	if len(all) > maxListed {
		return append(all[:maxListed:maxListed], fmt.Sprintf("and %d more", len(all)-maxListed))
	}
	return all
}
