// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package attach

import (
	"time"

	"go.uber.org/zap"
)

// Losses logs losses in the kernel's rings: once when they begin, and once when
// there have been none for a while. It belongs to one goroutine.
type Losses struct {
	logger  *zap.Logger
	sampler string

	// since is the time at which the episode began, 0 without one; last is the time of the
	// last loss. before and total are the losses by its beginning and by now.
	since, last   int64
	before, total uint64
}

// lossless is the loss-free time before recovery is logged.
const lossless = int64(10 * time.Second)

// NewLosses returns the Losses of a sampler.
func NewLosses(logger *zap.Logger, sampler string) *Losses {
	return &Losses{logger: logger, sampler: sampler}
}

// Note records the number of losses by now, on the monotonic clock.
func (l *Losses) Note(now int64, lost uint64) {
	switch {
	case lost != l.total:
		if l.since == 0 {
			l.since, l.before = max(now, 1), l.total
			l.logger.Warn("kernel loses samples or records: they come faster than they are read",
				zap.String("sampler", l.sampler), zap.Uint64("lost", lost-l.before))
		}
		l.last, l.total = now, lost
	case l.since != 0 && now-l.last >= lossless:
		l.End()
	}
}

// End logs the end of an episode, if there is one.
func (l *Losses) End() {
	if l.since == 0 {
		return
	}
	l.logger.Info("kernel no longer loses samples or records",
		zap.String("sampler", l.sampler),
		zap.Duration("lasted", time.Duration(l.last-l.since)),
		zap.Uint64("lost", l.total-l.before))
	l.since = 0
}
