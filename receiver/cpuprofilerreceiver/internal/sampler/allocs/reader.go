// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package allocs

import (
	"cmp"
	"context"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/hotprofile/hotprofile/internal/perfevent"
	"github.com/hotprofile/hotprofile/internal/samples"
	"github.com/hotprofile/hotprofile/internal/token"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/goprogram"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/perftargets"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/sampler"
)

// allocation is a sample that is kept until Flush.
type allocation struct {
	time     int64
	resource *samples.Resource
	stack    *samples.Stack
	thread   samples.Thread
	size     uint64
	rate     int64
	of       *reservoir
	capture  *samples.Capture
}

// reader reads the rings. The reading goroutine owns it.
type reader struct {
	cfg  Settings
	link *link
	// most is the maximum number of samples of each process that are kept between two
	// calls of Flush. 0 means that all samples are kept.
	most    int
	rec     perfevent.Record
	uprobes *perfevent.Session // at the last read
	members *map[int]*member   // at the last read
	waiting []*member          // members with samples in their reservoirs
	kept    []allocation       // sorted by time, during flush
	full    episode
	losses  *perftargets.Losses

	counts    Stats                    // the reader's own counters
	published sampler.Published[Stats] // the same counters, for other goroutines
}

// run reads records until ctx is done.
func (r *reader) run(ctx context.Context) {
	defer close(r.link.stopped)
	for ctx.Err() == nil {
		u := r.link.uprobes.Load()
		if u == nil {
			r.idle(ctx)
			continue
		}
		select {
		case req := <-r.link.asked:
			r.answer(req)
			continue
		default:
		}
		if u.Wait(perftargets.IdleWait) != nil {
			r.idle(ctx) // the session was closed, and a new session may follow
			continue
		}
		r.drain()
	}
	r.drain()
	r.flush()
	r.cfg.Table.GiveUp()
	r.losses.End()
}

// idle waits while the sampler has no uprobes.
func (r *reader) idle(ctx context.Context) {
	select {
	case req := <-r.link.asked:
		r.answer(req)
	case <-r.link.wake:
	case <-ctx.Done():
	}
}

func (r *reader) answer(req request) {
	r.drain()
	if req.flush {
		r.flush()
	}
	close(req.done)
}

// drain reads the records in the rings.
func (r *reader) drain() {
	upTo := r.cfg.Now()
	u := r.link.uprobes.Load()
	if u != r.uprobes {
		r.uprobes = u
		r.losses.End()
	}
	if members := r.link.members.Load(); members != r.members {
		r.members = members
		// Earlier mappings of new processes were not recorded.
		r.cfg.Table.AfterLoss()
	}
	if u != nil {
		for u.Read(&r.rec) {
			r.handle(&r.rec)
		}
		r.losses.Count(r.cfg.Now(), u.Stats(), &r.counts.Counts)
	}
	r.cfg.Table.Settle()
	if r.most == 0 {
		r.cfg.Sink.ReadUpTo(upTo)
	}
	r.published.Set(r.counts)
}

// handle processes one record. Some records belong to processes that are not sampled,
// because a uprobe is attached to a file, and every process that executes code of the
// file can hit it. Names and mappings are recorded for every process.
func (r *reader) handle(rec *perfevent.Record) {
	switch rec.Type {
	case perfevent.TypeSample:
		if m := (*r.members)[rec.PID]; m != nil && m.uprobe == rec.Attachment {
			r.hit(m, rec)
		}
	case perfevent.TypeComm:
		if (*r.members)[rec.Comm.PID] == nil {
			return
		}
		if !rec.Comm.Exec {
			r.cfg.Table.Comm(rec.Comm.PID, rec.Comm.TID, rec.Comm.Name)
			return
		}
		r.cfg.Table.Exec(rec.Comm.PID, rec.Comm.Name)
		token.Put(r.link.again) // the process executes another program now
	case perfevent.TypeMmap:
		if (*r.members)[rec.Mmap.PID] != nil {
			r.cfg.Table.Mmap(rec.Mmap.PID, &rec.Mmap)
		}
	case perfevent.TypeLost:
		r.cfg.Table.AfterLoss()
	}
}

// hit processes a sampled allocation. For a known stack, hit allocates no memory.
func (r *reader) hit(m *member, rec *perfevent.Record) {
	r.counts.Read++
	m.program.hit.Store(true)
	r.cfg.Sampled.Mark(rec.PID, rec.Time)
	if !rec.Sample.HasRegisters || len(rec.Sample.User) == 0 {
		r.counts.Unreadable++
		return
	}
	if r.most == 0 {
		var a allocation
		if r.fill(&a, m, rec) {
			r.emit(&a, 1)
		}
		return
	}
	to, keep := m.reservoir.slot(r.most, r.cfg.Random)
	if !keep {
		r.counts.RateLimited++
		return
	}
	replaced := to.stack != nil
	if !r.fill(to, m, rec) {
		// An empty entry counts as a sample without a stack. Without this entry, the factor
		// for the other samples would be too large.
		*to = allocation{time: rec.Time}
	}
	if replaced {
		r.counts.RateLimited++
	}
	if !m.waiting {
		m.waiting = true
		r.waiting = append(r.waiting, m)
	}
}

// fill sets the data of an allocation. It returns false if the stack is unknown.
func (r *reader) fill(a *allocation, m *member, rec *perfevent.Record) bool {
	p := r.cfg.Table.Lookup(rec.PID, 0)
	var stack *samples.Stack
	if p != nil {
		rec.Sample.Kernel = nil
		rec.Sample.User = m.program.callers(rec.Sample.User)
		stack = p.Stack(&rec.Sample, false)
	}
	if stack == nil {
		r.counts.Unreadable++
		return false
	}
	*a = allocation{
		time: rec.Time, resource: p.Resource, stack: stack, thread: r.cfg.Table.Thread(rec.PID, rec.TID, r.cfg.ThreadName, r.cfg.ThreadID),
		size: rec.Sample.Registers.Third, rate: m.rate.Load(), of: &m.reservoir, capture: &m.capture,
	}
	return true
}

// callers removes the runtime's own functions from a stack, so that its leaf is the call
// that allocated. The leaf becomes the address of the last byte of that call, because it is
// no longer a return address. If all functions belong to the runtime, callers returns the
// whole stack. It reuses the memory of the stack.
func (p *program) callers(stack []uint64) []uint64 {
	// The first address is the uprobe's address, so it reveals the load offset.
	loaded := stack[0] - p.site.address
	for i := 1; i < len(stack); i++ {
		call := stack[i] - 1
		if !p.allocates(call - loaded) {
			stack[i] = call
			return stack[i:]
		}
	}
	return stack
}

// allocates reports whether a link-time address belongs to the runtime.
func (p *program) allocates(address uint64) bool {
	i, found := slices.BinarySearchFunc(p.Runs, address, func(run goprogram.Run, at uint64) int {
		return cmp.Compare(run.Start, at)
	})
	return found || i > 0 && address < p.Runs[i-1].End
}

// flush emits the kept samples.
func (r *reader) flush() {
	upTo := r.cfg.Now()
	for _, m := range r.waiting {
		r.kept = append(r.kept, m.reservoir.kept...)
	}
	slices.SortFunc(r.kept, func(a, b allocation) int { return cmp.Compare(a.time, b.time) })
	full := r.counts.BufferFull
	for i := range r.kept {
		if a := &r.kept[i]; a.stack != nil {
			r.emit(a, a.of.factor())
		}
	}
	for _, m := range r.waiting {
		m.reservoir.reset()
		m.waiting = false
	}
	clear(r.waiting)
	clear(r.kept)
	r.waiting, r.kept = r.waiting[:0], r.kept[:0]
	r.cfg.Sink.ReadUpTo(upTo)
	r.cfg.Table.NextBatch()
	r.counts.Table = r.cfg.Table.Stats()
	r.published.Set(r.counts)
	r.logRoom(upTo, full)
}

// emit adds an allocation to the sink. Its value is multiplied by factor.
func (r *reader) emit(a *allocation, factor float64) {
	objects := samples.Key{Resource: a.resource, Type: samples.AllocObjects, Stack: a.stack, Thread: a.thread, Period: a.rate, Capture: a.capture}
	space := objects
	space.Type = samples.AllocSpace
	if a.rate <= 0 { // the rate is unknown, or was 0 when it was read
		objects.Type, space.Type = samples.AllocObjectsAssumed, samples.AllocSpaceAssumed
		objects.Period, space.Period = defaultRate, defaultRate
	}
	count := weight(a.size, objects.Period) * factor
	if !r.cfg.Sink.AddBoth(objects, space, a.time, round(count, r.cfg.Random), round(count*float64(a.size), r.cfg.Random)) {
		r.counts.BufferFull++
		if r.full.since == 0 {
			r.full = episode{since: max(r.cfg.Now(), 1), lost: r.counts.BufferFull - 1}
			r.cfg.Logger.Warn(sampler.MsgAllocationsFull)
		}
	}
}

// logRoom logs the end of an episode. before is the number of samples that did not fit
// before this Flush.
func (r *reader) logRoom(now int64, before uint64) {
	if r.full.since != 0 && r.counts.BufferFull == before {
		r.cfg.Logger.Info("allocation buffer has room again",
			zap.Duration("after", time.Duration(now-r.full.since)), zap.Uint64("discarded", before-r.full.lost))
		r.full = episode{}
	}
}
