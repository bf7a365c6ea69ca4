// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package oncpu

import (
	"fmt"

	"go.uber.org/zap"

	"github.com/hotprofile/hotprofile/internal/perfevent"
)

// adjust keeps what sampling costs within its bound.
func (r *reader) adjust(session *perfevent.Session) error {
	if r.paused {
		return nil // it costs nothing, which says nothing
	}
	was := r.pace.halvings
	if !r.pace.next(r.cfg.Now(), r.cfg.Meter.Total(), len(session.CPUs())) {
		return nil
	}
	r.reportExceeded()
	if r.pace.halvings == was {
		return nil
	}
	said, count := "sampling frequency lowered: sampling costs more than max_overhead", &r.lowered
	if r.pace.halvings < was {
		said, count = "sampling frequency raised: sampling costs well below max_overhead", &r.raised
		if r.pace.vain > 0 {
			said = "sampling frequency raised: the lower one did not cost less"
		}
	}
	count.Add(1)
	r.halvings.Store(int64(r.pace.halvings))
	r.cfg.Logger.Info(said,
		zap.Float64("from", r.frequency(was)),
		zap.Float64("to", r.frequency(r.pace.halvings)),
		zap.Float64("cost_percent", 100*r.pace.cost),
		zap.Float64("max_overhead_percent", 100*r.pace.bound))
	// What is in the rings keeps the period that it was taken with.
	r.drain(session)
	if err := session.SetPeriod(r.pace.period(r.full)); err != nil {
		return fmt.Errorf("change the sampling period: %w", err)
	}
	if !r.Current().HostWide {
		// The sampling events told of mappings too, and not of those made while they
		// were replaced.
		r.cfg.Table.AfterLoss()
	}
	return nil
}

// reportExceeded says that lowering the frequency does not do, once until it
// does.
func (r *reader) reportExceeded() {
	exceeded := r.pace.exceeded()
	if exceeded && !r.spoken.exceeded {
		r.cfg.Logger.Warn("sampling costs more than max_overhead, and a lower frequency would not help: processes that start and end cost too, whatever the frequency",
			zap.Float64("frequency", r.frequency(r.pace.halvings)),
			zap.Float64("cost_percent", 100*r.pace.cost),
			zap.Float64("max_overhead_percent", 100*r.pace.bound))
	}
	r.spoken.exceeded = exceeded
}
