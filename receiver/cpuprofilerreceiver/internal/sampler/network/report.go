// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package network

import (
	"go.uber.org/zap"

	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/perftargets"
)

// Report logs which targets are sampled, which are not, and why. It logs again only after a
// change.
func (r *reader) Report(f *perftargets.Found) {
	sampled := r.loop.Report(f, r.refused, func(leftOut []string) {
		found := r.found.Load()
		r.cfg.Logger.Info("network sampling started",
			zap.String("when", r.cfg.When),
			zap.String("what", f.What()),
			zap.Strings("types", found.sampled()),
			zap.Strings("types_not_available", found.missing),
			zap.Int("max_events_per_second", r.cfg.MaxEventsPerSecond),
			zap.Strings("not_sampled", perftargets.Listed(leftOut)),
			zap.String("why", f.Plan.Why))
	})
	if sampled {
		r.cfg.Logger.Debug("network targets", zap.Int("targets", r.loop.Targets()), zap.Int("perf_events", f.Plan.Descriptors))
	}
}

func (r *reader) refused(err error) {
	if err != nil {
		r.cfg.Logger.Warn("network sampling is not possible; other samplers continue", zap.Error(err),
			zap.Duration("retry_interval", r.cfg.DiscoveryInterval))
	}
}
