// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package network

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
	// maxBegun is the maximum number of connects that are remembered in case they fail.
	maxBegun = 1 << 14
)

// reader reads the rings. The reading goroutine owns it.
type reader struct {
	cfg   Settings
	loop  *perftargets.Loop
	found *atomic.Pointer[sources] // the tracepoints found by the search
	// sources are the tracepoints of the current session.
	sources *sources
	session *perfevent.Session
	rec     perfevent.Record
	pace    *pace
	begun   begun
	intN    func(int) int

	counts    Stats                    // the reader's own counters
	published sampler.Published[Stats] // all counters, for other goroutines
	// unset is true if setting the limit on the number of samples has failed. The failure is
	// logged only once.
	unset bool

	paused int64 // start of the pause while both batches are full; 0 without a pause
	before Stats // counters when the pause began
}

// Options implements perftargets.Reader.
func (r *reader) Options(f *perftargets.Found) perfevent.Options {
	r.loop.PrepareStacks(f)
	// Only user-space stacks are recorded, because the kernel part of these stacks is the
	// same for all calls.
	o := perfevent.Options{Kernel: perfevent.KernelTime, UserStack: r.cfg.Stacks.Copied()}
	if found := r.found.Load(); found != nil {
		o.Tracepoints = found.tracepoints
	}
	return o
}

// Begin resets the reader's state for a new session.
func (r *reader) Begin(session *perfevent.Session) {
	r.session, r.sources = session, r.found.Load()
	r.pace = newPace(perftargets.StacksPerSecond(r.cfg.MaxEventsPerSecond, r.loop.Current().UserStack), r.cfg.Now())
	r.begun = newBegun(maxBegun)
	for i := range r.sources.of {
		if !r.sources.tracepoints[i].Everywhere {
			continue
		}
		everywhere, err := session.AttachTracepoint(i)
		if err != nil {
			r.cfg.Logger.Warn("sampling failed TCP connects is not possible", zap.Error(err))
			continue
		}
		r.pace.began(everywhere, r.sources.of, true)
	}
}

// Attached forgets detached targets and registers new targets.
func (r *reader) Attached(_ *perftargets.Found, gone []*perfevent.Attachment) {
	for _, t := range gone {
		r.pace.forget(t)
	}
	known := len(r.pace.flows)
	for _, t := range r.session.Attachments() {
		r.pace.began(t, r.sources.of, false)
	}
	if len(r.pace.flows) > known {
		r.pace.restart(r.cfg.Now()) // new targets are sampled from now on
	}
}

// Turn waits for records and reads them.
func (r *reader) Turn(_ context.Context, session *perfevent.Session) error {
	r.follow(session)
	return r.loop.Turn(session, perftargets.IdleWait, func() (soon bool) {
		soon = r.drain(session)
		r.adjust(session)
		return soon
	})
}

// End reads the remaining records in the rings.
func (r *reader) End(session *perfevent.Session) {
	if err := session.DetachAll(); err != nil {
		r.cfg.Logger.Debug("detaching perf events failed", zap.String("sampler", samples.NetSent.Sampler), zap.Error(err))
	}
	r.drain(session)
	r.resume("network sampling ended while both buffers were full")
	r.publish()
	r.session = nil
}

// drain reads the records in the rings. It reports whether to read again soon.
func (r *reader) drain(session *perfevent.Session) (soon bool) {
	r.loop.NextBatch()
	upTo := r.cfg.Now()
	for session.Read(&r.rec) {
		r.handle(&r.rec)
	}
	now := session.Stats()
	before, again := r.loop.ReadUpTo(session, now, upTo, &r.counts.Counts)
	r.counts.RateLimited += now.Unsampled - before.Unsampled
	r.publish()
	return r.cfg.Table.Settle() || again
}

// publish makes the counters visible to other goroutines.
func (r *reader) publish() {
	st := r.counts
	st.Table = r.cfg.Table.Stats()
	if r.pace != nil {
		st.Every = r.pace.every()
	}
	if r.paused > 0 {
		st.Paused += time.Duration(r.cfg.Now() - r.paused)
	}
	r.published.Set(st)
}

// handle processes one record.
func (r *reader) handle(rec *perfevent.Record) {
	if rec.Type == perfevent.TypeSample {
		r.sample(rec)
	} else {
		r.loop.Follow(rec)
	}
}

// sample adds an event to the batch. If the stack is known, sample allocates no memory.
func (r *reader) sample(rec *perfevent.Record) {
	if rec.Attachment == nil {
		return // the record belongs to an earlier session
	}
	source := &r.sources.of[rec.Tracepoint]
	r.pace.sampled(rec.Attachment, rec.Tracepoint, source.kind, rec.Hits)
	if source.kind == failures {
		r.failed(source, rec)
		return
	}
	p := r.cfg.Table.Lookup(rec.PID, rec.Sample.CgroupID)
	if !p.Wanted || !r.loop.Means(rec.PID, p.Cgroup) {
		return
	}
	r.counts.RateLimited += rec.Hits - 1 - rec.HitsLost
	value := int64(rec.Hits)
	k := samples.Key{
		Resource: p.Resource, Type: source.kind.sampleType(), Stack: r.cfg.Stacks.Of(p, &rec.Sample), Thread: r.loop.Thread(rec),
		Period: 1, Capture: r.loop.Capture(rec.Attachment),
	}
	if k.Stack == nil {
		k.Stack = perftargets.NoStack
	}
	if source.kind != connects {
		bytes, ok := source.ret.Int(rec.Sample.Raw)
		if !ok || bytes <= 0 {
			r.counts.Unreadable++
			return
		}
		value *= bytes
		k.Transport = source.transport(rec.Sample.Raw)
	} else if socket, to, ok := source.of(rec.Sample.Raw); ok {
		r.begun.Add(socket, connect{to: to, key: k, hits: value})
	}
	r.emit(k, rec.Time, value)
}

// failed attributes a failed connect to the stack that started the connect.
func (r *reader) failed(s *source, rec *perfevent.Record) {
	socket, to, ok := s.of(rec.Sample.Raw)
	if !ok {
		return
	}
	c, ok := r.begun.take(socket, to)
	if !ok {
		return // the connect was not of a target, began before sampling, or was not sampled
	}
	c.key.Type = s.kind.sampleType()
	// On average, one of c.hits connects and one of rec.Hits failures is sampled. The
	// sampled failure therefore represents c.hits × rec.Hits failures.
	r.emit(c.key, rec.Time, c.hits*int64(rec.Hits))
}

func (r *reader) emit(k samples.Key, time, value int64) {
	if !r.cfg.Sink.AddValue(k, time, value) {
		r.counts.BufferFull++
	}
}

// adjust keeps the number of samples within its bound.
func (r *reader) adjust(session *perfevent.Session) {
	if r.paused > 0 {
		return
	}
	for of, means := range r.pace.next(r.cfg.Now(), len(session.CPUs()), len(r.sources.of)) {
		err := session.SetHits(of, means, func(mean int) int { return draw(mean, r.intN) })
		if err != nil && !r.unset {
			r.unset = true
			r.cfg.Logger.Warn("limiting the number of network samples failed", zap.Error(err))
		}
	}
}

// follow pauses sampling while both batches are full.
func (r *reader) follow(session *perfevent.Session) {
	full := r.cfg.Sink.Paused()
	switch {
	case full && r.paused == 0:
		r.before, r.paused = r.counts, max(r.cfg.Now(), 1)
		r.loop.Pause(session)
		r.cfg.Logger.Warn(sampler.MsgThreadsFull, zap.String("sampler", samples.NetSent.Sampler))
	case !full && r.paused > 0:
		r.resume("network sampling resumed, a buffer is free again")
		r.loop.Resume(session)
		r.pace.restart(r.cfg.Now())
	}
}

// resume ends a pause and logs the message.
func (r *reader) resume(message string) {
	if r.paused == 0 {
		return
	}
	took := time.Duration(r.cfg.Now() - r.paused)
	r.paused = 0
	r.counts.Paused += took
	r.cfg.Logger.Info(message, zap.Duration("paused", took), zap.Uint64("samples_dropped", r.counts.BufferFull-r.before.BufferFull))
}
