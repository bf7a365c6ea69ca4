// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package perftargets

import (
	"time"

	"go.uber.org/zap"

	"github.com/hotprofile/hotprofile/internal/perfevent"
	"github.com/hotprofile/hotprofile/internal/samples"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/processes"
)

// Counts are the common counters of samplers that use perf events, since the sampler was
// created.
type Counts struct {
	// BufferFull counts events that did not fit into the sink. Unreadable counts events
	// without a known process, stack or value. RateLimited counts events that a limit
	// dropped.
	BufferFull, Unreadable, RateLimited uint64
	// Lost is the number of events that the kernel lost. LostRecords is the number of lost
	// records about processes.
	Lost, LostRecords uint64
	// Table contains the counters of the table of processes.
	Table processes.Stats
}

// Losses counts losses in the kernel's rings. It logs when losses begin, and again after a
// time without losses. Only one goroutine may use a Losses.
type Losses struct {
	logger *zap.Logger
	of     *samples.Type
	sink   lossSink
	// lost returns the number of lost events from the kernel's counters. seen contains the
	// counters of the session that were already added.
	lost func(perfevent.Stats) uint64
	seen perfevent.Stats

	// since is the time at which the current episode of losses began. It is 0 if there is
	// no episode. last is the time of the last loss. before contains the total losses
	// before the episode. total contains all losses.
	since, last   int64
	before, total losses
}

// lossSink is the part of the buffer that Losses uses.
type lossSink interface {
	// KernelLost adds n to the number of events that the kernel lost. t is the type of the
	// sampler that lost the events.
	KernelLost(t *samples.Type, n uint64)
}

// losses are the numbers of events and of process records that the kernel lost.
type losses struct{ events, records uint64 }

// fields returns the log fields with the losses since before.
func (l losses) fields(sampler string, before losses) []zap.Field {
	return []zap.Field{
		zap.String("sampler", sampler),
		zap.Uint64("lost", l.events-before.events), zap.Uint64("lost_records", l.records-before.records),
	}
}

// lossless is the loss-free time before recovery is logged.
const lossless = int64(10 * time.Second)

// NewLosses returns the Losses of a sampler. lost returns the number of lost events from the
// kernel's counters.
func NewLosses(logger *zap.Logger, of *samples.Type, lost func(perfevent.Stats) uint64, sink lossSink) *Losses {
	return &Losses{logger: logger, of: of, lost: lost, sink: sink}
}

// Count adds the session's losses since the last call to the sampler's counters. at is the
// time on the monotonic clock. Count returns the session's counters of the last call.
func (l *Losses) Count(at int64, now perfevent.Stats, to *Counts) (before perfevent.Stats) {
	before, l.seen = l.seen, now
	if n := l.lost(now) - l.lost(before); n > 0 {
		to.Lost += n
		l.sink.KernelLost(l.of, n)
	}
	to.LostRecords += now.LostRecords - before.LostRecords
	l.note(at, losses{to.Lost, to.LostRecords})
	return before
}

// note logs a change of the total losses up to the time now, on the monotonic clock.
func (l *Losses) note(now int64, total losses) {
	switch {
	case total != l.total:
		if l.since == 0 {
			l.since, l.before = max(now, 1), l.total
			l.logger.Warn("kernel loses samples or records: they come faster than they are read",
				total.fields(l.of.Sampler, l.before)...)
		}
		l.last, l.total = now, total
	case l.since != 0 && now-l.last >= lossless:
		l.recovered()
	}
}

// recovered logs the end of the current episode, if there is one.
func (l *Losses) recovered() {
	if l.since == 0 {
		return
	}
	l.logger.Info("kernel no longer loses samples or records",
		append(l.total.fields(l.of.Sampler, l.before), zap.Duration("lasted", time.Duration(l.last-l.since)))...)
	l.since = 0
}

// End is called at the end of a session.
func (l *Losses) End() {
	l.recovered()
	l.seen = perfevent.Stats{}
}
