// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package oncpu

import (
	"fmt"

	"go.uber.org/zap"

	"github.com/hotprofile/hotprofile/internal/perfevent"
)

// adjust keeps the cost of sampling within its bound.
func (r *reader) adjust(session *perfevent.Session) error {
	if r.paused {
		return nil // a pause costs nothing, whatever the frequency
	}
	was := r.pace.halvings
	if !r.pace.next(r.cfg.Now(), r.cfg.Meter.Total(), len(session.CPUs())) {
		return nil
	}
	r.reportExceeded()
	if r.pace.halvings == was {
		return nil
	}
	message, count := "sampling frequency lowered: sampling costs more than max_overhead", &r.lowered
	if r.pace.halvings < was {
		message, count = "sampling frequency raised: sampling costs well below max_overhead", &r.raised
		if r.pace.vain > 0 {
			message = "sampling frequency raised: the lower one did not cost less"
		}
	}
	count.Add(1)
	r.halvings.Store(int64(r.pace.halvings))
	r.cfg.Logger.Info(message,
		zap.Float64("from", r.frequency(was)),
		zap.Float64("to", r.frequency(r.pace.halvings)),
		zap.Float64("cost_percent", 100*r.pace.cost),
		zap.Float64("max_overhead_percent", 100*r.pace.bound))
	// Samples in the rings keep the period that they were taken with.
	r.drain(session)
	if err := session.SetPeriod(r.pace.period(r.full)); err != nil {
		return fmt.Errorf("change the sampling period: %w", err)
	}
	r.loop.Interrupted()
	return nil
}

// reportExceeded logs that a lower frequency does not help, once until it does.
func (r *reader) reportExceeded() {
	exceeded := r.pace.exceeded()
	if exceeded && !r.logged.exceeded {
		r.cfg.Logger.Warn("sampling costs more than max_overhead, and a lower frequency would not help: processes that start and end cost too, whatever the frequency",
			zap.Float64("frequency", r.frequency(r.pace.halvings)),
			zap.Float64("cost_percent", 100*r.pace.cost),
			zap.Float64("max_overhead_percent", 100*r.pace.bound))
	}
	r.logged.exceeded = exceeded
}
