// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package oncpu

import (
	"cmp"
	"fmt"
	"slices"

	"go.uber.org/zap"

	"github.com/hotprofile/hotprofile/internal/perfevent"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/perftargets"
)

// Report logs which targets are sampled, which are not, and why. It logs again only after a
// change.
func (r *reader) Report(f *perftargets.Found) {
	r.loop.Report(f, r.reportStatus, func(leftOut []string) {
		notSampled := slices.Concat(leftOut, missing(f.Rights))
		level, why := zap.InfoLevel, f.Plan.Why
		if len(notSampled) > 0 { // less than was configured
			level, why = zap.WarnLevel, cmp.Or(why, notSampled[0])
		}
		r.cfg.Logger.Log(level, "sampling started",
			zap.String("what", f.What()),
			zap.String("why", why),
			zap.Float64("frequency", r.frequency(r.pace.halvings)),
			zap.Float64("max_overhead_percent", 100*r.cfg.MaxOverhead),
			zap.Strings("rights", rights(f.Rights)),
			zap.Strings("not_sampled", perftargets.Listed(notSampled)),
			zap.Strings("not_shown", perftargets.Listed(r.cfg.Notes(f.Rights))),
			zap.Int("perf_events", f.Plan.Descriptors))
	})
}

// reportStatus reports that sampling has become impossible, or possible again.
func (r *reader) reportStatus(err error) {
	if err != nil {
		err = fmt.Errorf("%w: %w; retried every %v", errNothingPermitted, err, r.cfg.DiscoveryInterval)
	}
	r.cfg.Status(err)
}

// rights lists the permitted kinds of sampling.
func rights(r perfevent.Rights) (have []string) {
	if r.Own == nil {
		have = append(have, "own processes")
	}
	if r.HostWide == nil {
		have = append(have, "all processes and cgroups")
	}
	if r.Kernel == nil {
		have = append(have, "kernel stacks")
	}
	return have
}

// missing returns a remedy for each missing right.
func missing(r perfevent.Rights) (lack []string) {
	if r.Kernel != nil {
		lack = append(lack, r.Kernel.Error())
	}
	if r.ForeignPIDNamespace {
		lack = append(lack, "processes outside of the collector's own pid namespace are invisible: run it in the host's (docker run --pid=host, hostPID: true)")
	}
	return lack
}
