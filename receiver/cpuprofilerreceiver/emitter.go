// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package cpuprofilerreceiver

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/hotprofile/hotprofile/internal/late"
	"github.com/hotprofile/hotprofile/internal/otlpprofiles"
	"github.com/hotprofile/hotprofile/internal/otlpprofiles/attr"
	"github.com/hotprofile/hotprofile/internal/samples"
	"github.com/hotprofile/hotprofile/internal/token"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/buffer"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/cputime"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/metadata"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/sampler"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/waitreason"
)

// emitter takes batches from the buffers, builds profiles from them, and passes the
// profiles to the next component. It emits one batch at a time, on its own goroutine.
type emitter struct {
	*profiler
	// patience is the additional time after the export timeout for which Stop waits for a
	// component that ignores its context.
	patience time.Duration
	// sources are the buffers to emit. Samplers without their own
	// buffer share the first buffer.
	sources []source
	// full receives a token when a full batch is ready to be taken.
	full     chan struct{}
	names    namer
	builder  *otlpprofiles.Builder
	counters *sampler.Counters

	// cancel ends the current call. stop ends the two loops. When run ends, it closes done.
	// When recordNowAndThen ends, it closes recorded.
	ctx      context.Context
	cancel   context.CancelFunc
	stop     chan struct{}
	done     chan struct{}
	recorded chan struct{}

	failing bool                  // the last call failed
	charged map[int]time.Duration // CPU time of each process when it was last sampled, by PID
}

// namer resolves the addresses of a batch to names. The names are valid until Release.
type namer interface {
	// Begin begins a batch.
	Begin(batch *samples.Batch)
	// Take runs work, which may call Name but must not change other data. If reading a
	// file blocks for too long, Take ends work early and returns an error. work may then
	// be run again.
	Take(work func()) error
	// Name resolves the addresses of a process's stack.
	Name(pid int, s *samples.Stack)
	// Mark marks a stack as truncated or whole, based on the names of its addresses.
	Mark(s *samples.Stack)
	// Release releases the names of a batch.
	Release(batch *samples.Batch)
}

// noNames is the namer for sent samples, which already have names.
type noNames struct{}

func (noNames) Begin(*samples.Batch)     {}
func (noNames) Name(int, *samples.Stack) {}
func (noNames) Mark(*samples.Stack)      {}
func (noNames) Take(work func()) error   { work(); return nil }
func (noNames) Release(*samples.Batch)   {}

// source is a buffer to emit.
type source struct {
	name string
	*buffer.Buffer
	// flush is called before each interval's batch is taken. It may be nil.
	flush func()
}

// add registers a buffer. It is called before Start.
func (e *emitter) add(name string, b *buffer.Buffer, flush func()) {
	e.sources = append(e.sources, source{name, b, flush})
	b.OnFull(func() { token.Put(e.full) })
	b.OnUnheld(func() { e.counters.LimitHit(context.Background(), "starting_samples", 1) })
	b.OnLost(func(t *samples.Type) { e.counters.Samples(sampler.BufferFull, t.Sampler, 1) })
}

// Start implements sampler.Sampler. The emitter starts before the samplers and stops after
// them.
func (e *emitter) Start(context.Context) error {
	e.ctx, e.cancel = context.WithCancel(context.Background())
	e.charged = make(map[int]time.Duration)
	e.stop, e.done, e.recorded = make(chan struct{}), make(chan struct{}), make(chan struct{})
	go e.recordNowAndThen()
	go e.run()
	return nil
}

// Stop emits the remaining samples and waits until the emitter has ended. Samplers must
// not add samples any more. The remaining calls to the next component share one export
// timeout, which ctx may shorten. If a call ignores its cancelled context, Stop abandons
// the call and returns an error, because the shutdown of the collector might never end
// otherwise.
func (e *emitter) Stop(ctx context.Context) error {
	if e.stop == nil {
		return nil
	}
	close(e.stop)
	<-e.recorded
	defer e.cancel()
	timeout := time.AfterFunc(e.exportTimeout, e.cancel)
	defer timeout.Stop()
	ctx, cancel := context.WithTimeoutCause(ctx, e.exportTimeout+e.patience,
		fmt.Errorf("emit the last profiles: the next component has not returned within %v and ignores that its context was cancelled %v ago; it is left behind", e.exportTimeout, e.patience))
	defer cancel()
	if late.Wait(ctx, e.done, e.cancel, stuckTimeout) {
		return nil
	}
	return context.Cause(ctx)
}

// Record has no effect, because the emitter updates its counters when it emits.
func (*emitter) Record(context.Context) {}

const (
	// exportTimeout is the deadline for one batch, which the next component accepts in
	// several calls.
	exportTimeout = 5 * time.Second
	// stuckTimeout is the maximum time for which Stop waits for a component after Shutdown
	// has cancelled the component's context.
	stuckTimeout = 500 * time.Millisecond
	// maxPatience limits the wait for a component that ignores its context, after the
	// export timeout. The limit only matters if the context of Shutdown lasts longer.
	maxPatience = 10 * time.Second
	// maxSettle is the longest wait for samplers before a batch is taken.
	maxSettle = 250 * time.Millisecond
	// maxRecordInterval is the maximum time between two records of the counters, even if
	// the export interval is longer.
	maxRecordInterval = 5 * time.Second
)

func (e *emitter) run() {
	defer close(e.done)
	tick := time.NewTicker(e.cfg.ExportInterval)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			e.sources[0].Settle(min(e.cfg.ExportInterval, maxSettle))
			for _, s := range e.sources {
				if s.flush != nil {
					s.flush()
				}
			}
		case <-e.full:
		case <-e.stop:
			for e.emit() {
			}
			<-e.recorded
			e.record(context.WithoutCancel(e.ctx))
			return
		}
		e.emit()
	}
}

// recordNowAndThen records the counters. It runs on its own goroutine, so that losses are
// visible even while a call blocks.
func (e *emitter) recordNowAndThen() {
	defer close(e.recorded)
	tick := time.NewTicker(min(e.cfg.ExportInterval, maxRecordInterval))
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			e.record(e.ctx)
		case <-e.stop:
			return
		}
	}
}

// emit emits one batch of each buffer that has samples.
func (e *emitter) emit() (any bool) {
	for _, s := range e.sources {
		any = e.emitOf(s.Buffer) || any
	}
	return any
}

// emitOf emits one batch if the buffer has samples. After the emitter was cancelled,
// emitOf only counts the samples of the batch as lost.
func (e *emitter) emitOf(b *buffer.Buffer) bool {
	batch, ok := b.Take()
	if !ok {
		return false
	}
	if e.ctx.Err() != nil {
		for typ, events := range tallyOf(batch) {
			e.counters.Samples(sampler.Shutdown, typ.Sampler, events)
		}
	} else {
		e.consume(batch)
	}
	// Done is called after consume, so that the buffer counts as full until the call has
	// returned.
	b.Done()
	return true
}

// consume passes a batch to the next component, in one or more requests.
func (e *emitter) consume(batch *samples.Batch) {
	begin := time.Now()
	e.names.Begin(batch)
	defer e.names.Release(batch)
	e.charge(batch)
	spent := e.resolve(batch)
	span := cputime.Begin()
	waitreason.Find(batch)
	whole, truncated, running := count(batch)
	e.counters.CPUProfilerStacks.Add(context.Background(), int64(whole), sampler.With("outcome", "whole"))
	e.counters.CPUProfilerStacks.Add(context.Background(), int64(truncated), sampler.With("outcome", "truncated"))

	ctx, cancel := context.WithTimeout(e.ctx, e.exportTimeout)
	defer cancel()
	left := tallyOf(batch)
	failed, tried := 0, false
	var failure error
	for request, tally := range e.builder.Build(batch) {
		spent += span.End() // the next component's time does not count
		events := 0
		for typ, n := range tally {
			left[typ] -= n
			events += n
		}
		err := ctx.Err()
		if err != nil && tried { // no time is left for this request
			err = fmt.Errorf("emit a batch of %d samples within %v: %w", batch.Count(), e.exportTimeout, err)
		} else {
			op := e.obs.StartProfilesOp(ctx)
			err = e.next.ConsumeProfiles(op, request)
			tried = true
			e.obs.EndProfilesOp(op, metadata.Type.String(), events, err)
		}
		outcome := sampler.Exported
		if err != nil {
			outcome, failure = sampler.Refused, cmp.Or(failure, err)
			failed += events
		}
		for typ, n := range tally {
			e.counters.Samples(outcome, typ.Sampler, n)
		}
		span = cputime.Begin()
	}
	spent += span.End()
	e.meters.Names.Add(time.Duration(float64(spent) * float64(running) / float64(max(batch.Count(), 1))))
	for typ, n := range left {
		e.counters.Samples(sampler.Unreadable, typ.Sampler, n)
	}
	e.counters.CPUProfilerExportDuration.Record(e.ctx, time.Since(begin).Seconds())
	e.log(failure, failed)
}

// maxCharged is the maximum number of processes whose CPU time is remembered.
const maxCharged = 1 << 14

// charge adds the CPU time of each sampled process to the batch, so that a profile
// contains CPU times and samples. The CPU time is counted from the last charge, or from
// the start of the process if the process started within this batch.
func (e *emitter) charge(batch *samples.Batch) {
	if len(e.charged) > maxCharged {
		clear(e.charged)
	}
	read := make(map[int]bool)
	for k := range batch.Keys() {
		pid := k.Resource.PID
		if k.Type != samples.OnCPU || read[pid] {
			continue
		}
		read[pid] = true
		used, err := cputime.OfProcess(pid)
		if err != nil {
			continue // the process has ended
		}
		before, known := e.charged[pid]
		e.charged[pid] = used
		if !known || used < before {
			if startOf(k.Resource) < batch.Start {
				continue
			}
			before = 0
		}
		batch.Charge(k.Resource, used-before)
	}
}

// startOf returns the start time of a process in nanoseconds since 1970, or 0 if it is
// unknown.
func startOf(r *samples.Resource) int64 {
	at, err := time.Parse(time.RFC3339Nano, r.Text(attr.CreationTime))
	if err != nil {
		return 0
	}
	return at.UnixNano()
}

// maxTakes is the maximum number of attempts to resolve the addresses in a batch. An
// attempt fails if reading a file blocks for too long. After the last attempt, unresolved
// addresses are emitted without a name.
const maxTakes = 8

// resolve resolves the addresses of all stacks, and then marks the truncated stacks.
// The order matters, because the root of a stack may get its name through another
// stack. resolve returns the CPU time of both steps. If reading a file blocks, only the
// names from this file are missing.
func (e *emitter) resolve(batch *samples.Batch) (spent time.Duration) {
	each := func(do func(pid int, s *samples.Stack)) time.Duration {
		span := cputime.Begin()
		for k := range batch.Keys() {
			if !k.Type.Sent { // sent samples already have names
				do(k.Resource.PID, k.Stack)
			}
		}
		return span.End()
	}
	for range maxTakes {
		var took time.Duration
		if e.names.Take(func() { took = each(e.names.Name) }) == nil {
			spent = took
			break
		}
	}
	return spent + each(func(_ int, s *samples.Stack) { e.names.Mark(s) })
}

// count returns the number of events with whole stacks, with truncated stacks, and on
// running threads.
func count(batch *samples.Batch) (whole, truncated, running int) {
	for k, events := range batch.Keys() {
		if k.Type == samples.OnCPU {
			running += events
		}
		if k.Stack.Truncated {
			truncated += events
		} else {
			whole += events
		}
	}
	return whole, truncated, running
}

// tallyOf counts the events of a batch by type.
func tallyOf(batch *samples.Batch) otlpprofiles.Tally {
	t := make(otlpprofiles.Tally)
	for k, events := range batch.Keys() {
		t[k.Type] += events
	}
	return t
}

// log logs when calls start to fail and when they succeed again. It does not log each
// failure, because a backend that is down would fill the log.
func (e *emitter) log(failure error, dropped int) {
	switch {
	case failure != nil && !e.failing:
		e.logger.Warn("next component refused profiles, dropping them", zap.Int("samples", dropped), zap.Error(failure))
	case failure == nil && e.failing:
		e.logger.Info("next component accepts profiles again")
	}
	e.failing = failure != nil
}
