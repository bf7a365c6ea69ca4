// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package network

import (
	"go.uber.org/zap"

	"github.com/hotprofile/hotprofile/internal/samples"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/attach"
)

// logged remembers what was logged: it is logged again only if it changes.
type logged struct {
	started bool
	// unset reports whether the number of samples could not be limited.
	unset bool
}

// Report logs what is sampled, what is not and why; each once until it changes.
func (r *reader) Report(f *attach.Found) {
	refused, changed := r.loop.Refused(f)
	if refused && changed {
		r.logged.started = false
		r.cfg.Logger.Warn("network sampling is not possible; other samplers continue", zap.Error(f.Err),
			zap.Duration("retry_interval", r.cfg.DiscoveryInterval))
	}
	if refused {
		return
	}
	leftOut, changed := r.loop.LeftOut(f)
	if !r.logged.started {
		r.logged.started = true
		found := r.found.Load()
		r.cfg.Logger.Info("network sampling started",
			zap.String("when", r.cfg.When),
			zap.String("what", f.Plan.Mode.String()),
			zap.Strings("types", found.sampled()),
			zap.Strings("types_not_available", found.missing),
			zap.Int("max_events_per_second", r.cfg.MaxEventsPerSecond),
			zap.Strings("not_sampled", leftOut),
			zap.String("why", f.Plan.Why))
	} else if changed && len(leftOut) > 0 {
		r.cfg.Logger.Warn("some targets cannot be sampled", zap.String("sampler", samples.NetSent.Sampler), zap.Strings("not_sampled", leftOut))
	}
	r.cfg.Logger.Debug("network targets", zap.Int("targets", r.loop.Targets()), zap.Int("perf_events", f.Plan.Descriptors))
}
