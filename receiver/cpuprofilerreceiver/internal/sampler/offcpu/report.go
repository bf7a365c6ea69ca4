// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package offcpu

import (
	"errors"

	"go.uber.org/zap"

	"github.com/hotprofile/hotprofile/internal/otlpprofiles/attr"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/perftargets"
)

// Report logs which targets are sampled, which are not, and why. It logs again only after a
// change.
func (r *reader) Report(f *perftargets.Found) {
	sampled := r.loop.Report(f, r.refused, func(leftOut []string) {
		r.cfg.Logger.Info("off-CPU sampling started",
			zap.String("when", r.cfg.When),
			zap.String("what", f.What()),
			zap.Duration("min_duration", r.cfg.MinDuration),
			zap.Int("max_events_per_second", r.cfg.MaxEventsPerSecond),
			zap.Strings("not_sampled", perftargets.Listed(leftOut)),
			zap.Strings("not_shown", r.notShown()),
			zap.String("why", f.Plan.Why))
	})
	if sampled {
		r.cfg.Logger.Debug("off-CPU targets", zap.Int("targets", r.loop.Targets()), zap.Int("perf_events", f.Plan.Descriptors))
	}
}

func (r *reader) refused(err error) {
	if err != nil {
		r.cfg.Logger.Warn("off-CPU sampling is not possible; other samplers continue", zap.Error(err),
			zap.Duration("retry_interval", r.cfg.DiscoveryInterval))
	}
}

// notShown returns the data that samples do not contain, with the reason.
func (r *reader) notShown() []string {
	if r.cfg.NoWaits == nil {
		return nil
	}
	return []string{"what threads waited for (" + attr.Wait + "): " + r.cfg.NoWaits.Error()}
}

// noWaits explains why samples do not contain the wait reasons of threads. It returns nil
// if samples contain them. names explains why the kernel's functions have no names.
func noWaits(kernel perftargets.KernelStacks, names error) error {
	if kernel == perftargets.KernelNever {
		return errors.New("kernel_stacks is false")
	}
	return names
}
