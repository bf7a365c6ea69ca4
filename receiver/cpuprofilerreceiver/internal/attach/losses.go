// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package attach

import (
	"time"

	"go.uber.org/zap"
)

// Losses logs losses in the kernel's rings. It logs when losses begin, and again after a
// time without losses. Only one goroutine may use a Losses.
type Losses struct {
	logger  *zap.Logger
	sampler string

	// since is the time at which the current episode of losses began. It is 0 if there is
	// no episode. last is the time of the last loss. before contains the total losses
	// before the episode. total contains all losses.
	since, last   int64
	before, total Lost
}

// Lost counts the samples and the process records that the kernel lost.
type Lost struct{ Samples, Records uint64 }

// fields returns the log fields with the losses since before.
func (l Lost) fields(sampler string, before Lost) []zap.Field {
	return []zap.Field{
		zap.String("sampler", sampler),
		zap.Uint64("lost", l.Samples-before.Samples), zap.Uint64("lost_records", l.Records-before.Records),
	}
}

// lossless is the loss-free time before recovery is logged.
const lossless = int64(10 * time.Second)

// NewLosses returns the Losses of a sampler.
func NewLosses(logger *zap.Logger, sampler string) *Losses {
	return &Losses{logger: logger, sampler: sampler}
}

// Note records the total losses up to the time now, on the monotonic clock.
func (l *Losses) Note(now int64, lost Lost) {
	switch {
	case lost != l.total:
		if l.since == 0 {
			l.since, l.before = max(now, 1), l.total
			l.logger.Warn("kernel loses samples or records: they come faster than they are read",
				lost.fields(l.sampler, l.before)...)
		}
		l.last, l.total = now, lost
	case l.since != 0 && now-l.last >= lossless:
		l.End()
	}
}

// End logs the end of the current episode, if there is one.
func (l *Losses) End() {
	if l.since == 0 {
		return
	}
	l.logger.Info("kernel no longer loses samples or records",
		append(l.total.fields(l.sampler, l.before), zap.Duration("lasted", time.Duration(l.last-l.since)))...)
	l.since = 0
}
