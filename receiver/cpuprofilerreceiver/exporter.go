// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package cpuprofilerreceiver

import (
	"context"
	"fmt"
	"time"

	"go.opentelemetry.io/collector/consumer/xconsumer"
	"go.opentelemetry.io/collector/receiver/receiverhelper"
	"go.uber.org/zap"

	"github.com/hotprofile/hotprofile/internal/otlpprofiles"
	"github.com/hotprofile/hotprofile/internal/samples"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/cputime"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/metadata"
)

// namer gives the addresses of a stack of a process their names.
type namer interface {
	Name(pid int, s *samples.Stack)
}

// exporter takes full batches out of the buffer, builds profiles of them and
// hands these to the next component, one at a time, on a goroutine of its own.
type exporter struct {
	interval, timeout time.Duration
	// patience is how long shutdown waits for a component that ignores its
	// context, beyond timeout.
	patience time.Duration
	buffer   *buffer
	// allocations is the buffer of allocations, which is nil where they are not
	// sampled; gather puts what is kept of them into it.
	allocations *buffer
	gather      func()
	namer       namer
	builder     *otlpprofiles.Builder
	next        xconsumer.Profiles
	obs         *receiverhelper.ObsReport
	counters    *counters
	meter       *cputime.Meter // of what samples of running threads cost; may be nil
	logger      *zap.Logger

	// cancel ends the call under way, stop the loops; done is closed at the end
	// of the one that exports, counted at that of the one that counts.
	ctx     context.Context
	cancel  context.CancelFunc
	stop    chan struct{}
	done    chan struct{}
	counted chan struct{}

	failing bool // the last hand-over failed
}

// start begins to export.
func (e *exporter) start() {
	e.ctx, e.cancel = context.WithCancel(context.Background())
	e.stop, e.done, e.counted = make(chan struct{}), make(chan struct{}), make(chan struct{})
	go e.count()
	go e.run()
}

// shutdown hands over what is left and waits for the exporter's end. Nothing may
// be added to the buffer any more. All calls together, the one under way
// included, have the export timeout and no longer than ctx; a component that
// does not return even then is left behind, with an error: the collector's own
// shutdown has no end otherwise.
func (e *exporter) shutdown(ctx context.Context) error {
	close(e.stop)
	<-e.counted
	defer e.cancel()
	timeout := time.AfterFunc(e.timeout, e.cancel)
	defer timeout.Stop()
	late := time.NewTimer(e.timeout + e.patience)
	defer late.Stop()
	select {
	case <-e.done:
		return nil
	case <-late.C:
		return fmt.Errorf("hand over the last profiles: the next component has not returned within %v (export_timeout) and ignores that its context was cancelled %v ago; it is left behind", e.timeout, e.patience)
	case <-ctx.Done():
	}
	e.cancel()
	select {
	case <-e.done:
		return nil
	case <-time.After(stuckTimeout):
		return context.Cause(ctx)
	}
}

const (
	// stuckTimeout is how long a component may take to notice that its context
	// was cancelled, once Shutdown's own time is up.
	stuckTimeout = 500 * time.Millisecond
	// maxPatience is how long it may take where Shutdown has time without end.
	maxPatience = 10 * time.Second
)

func (e *exporter) run() {
	defer close(e.done)
	tick := time.NewTicker(e.interval)
	defer tick.Stop()
	var allocations <-chan struct{}
	if e.allocations != nil {
		allocations = e.allocations.pair.Ready()
	}
	for {
		select {
		case <-tick.C:
			e.buffer.settle(min(e.interval, maxSettle))
			if e.gather != nil {
				e.gather()
			}
		case <-e.buffer.pair.Ready():
		case <-allocations:
		case <-e.stop:
			for e.export() {
			}
			<-e.counted
			e.counters.record(context.WithoutCancel(e.ctx))
			return
		}
		e.export()
	}
}

// count shows what samplers and the symbolizer have counted. It has a goroutine
// of its own: what is lost because a call does not return has to be seen while
// it does not.
func (e *exporter) count() {
	defer close(e.counted)
	tick := time.NewTicker(min(e.interval, maxCountInterval))
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			e.counters.record(e.ctx)
		case <-e.stop:
			return
		}
	}
}

// maxSettle is how long samplers are waited for before a batch is taken.
const maxSettle = 250 * time.Millisecond

// maxCountInterval is how old the counters may be, however seldom is exported.
const maxCountInterval = 5 * time.Second

// export hands over one batch of each buffer that has any.
func (e *exporter) export() bool {
	some := e.exportOf(e.buffer)
	if e.allocations != nil {
		some = e.exportOf(e.allocations) || some
	}
	return some
}

// exportOf hands over one batch, if there is any and time for it; without time it
// is only counted.
func (e *exporter) exportOf(b *buffer) bool {
	batch, ok := b.pair.Take()
	b.release()
	if !ok {
		return false
	}
	if e.ctx.Err() != nil {
		for typ, events := range tallyOf(batch) {
			e.counters.left(lostToStop, typ.Sampler, events)
		}
	} else {
		e.handOver(batch)
	}
	// Only now: until the call has returned, the buffer counts as full.
	b.pair.Done()
	return true
}

func (e *exporter) handOver(batch *samples.Batch) {
	begin := time.Now()
	span := cputime.Begin()
	var spent time.Duration
	whole, truncated, running := e.name(batch)
	e.counters.stacks(whole, truncated)

	ctx, cancel := context.WithTimeout(e.ctx, e.timeout)
	defer cancel()
	left := tallyOf(batch)
	failed, tried := 0, false
	var failure error
	for request, tally := range e.builder.Build(batch) {
		spent += span.End() // what others do with it is not ours
		events := 0
		for typ, n := range tally {
			left[typ] -= n
			events += n
		}
		outcome := exported
		if err := ctx.Err(); err != nil && tried {
			outcome = refused // no time left for it
			if failure == nil {
				failure = fmt.Errorf("hand over a batch of %d samples within %v (export_timeout): %w", batch.Events(), e.timeout, err)
			}
		} else {
			op := e.obs.StartProfilesOp(ctx)
			err := e.next.ConsumeProfiles(op, request)
			tried = true
			e.obs.EndProfilesOp(op, metadata.Type.String(), events, err)
			if err != nil {
				outcome, failure = refused, err
			}
		}
		if outcome == refused {
			failed += events
		}
		for typ, n := range tally {
			e.counters.left(outcome, typ.Sampler, n)
		}
		span = cputime.Begin()
	}
	spent += span.End()
	e.meter.Add(time.Duration(float64(spent) * float64(running) / float64(max(batch.Events(), 1))))
	for typ, n := range left {
		e.counters.left(unreadable, typ.Sampler, n)
	}
	e.counters.took(e.ctx, time.Since(begin))
	e.say(failure, failed)
}

// name gives stacks their names, and counts events by how their stacks end, and
// those of running threads.
func (e *exporter) name(batch *samples.Batch) (whole, truncated, running int) {
	for k, events := range batch.Keys() {
		if k.Type == samples.OnCPU {
			running += events
		}
		if !k.Type.Sent { // those come with their names
			e.namer.Name(k.Resource.PID, k.Stack)
		}
		if k.Stack.Truncated {
			truncated += events
		} else {
			whole += events
		}
	}
	return whole, truncated, running
}

// tallyOf counts a batch's events by what they are of.
func tallyOf(batch *samples.Batch) otlpprofiles.Tally {
	t := make(otlpprofiles.Tally)
	for k, events := range batch.Keys() {
		t[k.Type] += events
	}
	return t
}

// say logs when hand-overs begin to fail and when they succeed again, not each
// one that fails: a backend that is down would fill the log.
func (e *exporter) say(failure error, dropped int) {
	switch {
	case failure != nil && !e.failing:
		e.logger.Warn("The next component refused profiles; they are dropped", zap.Int("samples", dropped), zap.Error(failure))
	case failure == nil && e.failing:
		e.logger.Info("The next component accepts profiles again")
	}
	e.failing = failure != nil
}
