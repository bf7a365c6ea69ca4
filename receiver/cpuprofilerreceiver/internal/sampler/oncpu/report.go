// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package oncpu

import (
	"fmt"

	"go.uber.org/zap"

	"github.com/hotprofile/hotprofile/internal/perfevent"
	"github.com/hotprofile/hotprofile/internal/samples"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/attach"
)

// maxListed is the most names that a log line shows.
const maxListed = 10

// logged remembers what was logged: it is logged again only if it changes.
type logged struct {
	started bool
	// exceeded reports whether a lower frequency would not help.
	exceeded bool
}

// Report logs what is sampled, what is not and why; each once until it changes.
func (r *reader) Report(f *attach.Found) {
	refused, changed := r.loop.Refused(f)
	if changed {
		r.reportStatus(f.Err)
	}
	if refused {
		return
	}
	leftOut, changed := r.loop.LeftOut(f)
	if !r.logged.started {
		r.logged.started = true
		r.cfg.Logger.Info("sampling started",
			zap.String("what", what(f)),
			zap.Float64("frequency", r.frequency(r.pace.halvings)),
			zap.Float64("max_overhead_percent", 100*r.cfg.MaxOverhead),
			zap.Strings("rights", rights(f.Rights)),
			zap.Strings("not_sampled", list(append(leftOut, missing(f.Rights)...))),
			zap.Strings("not_shown", list(r.cfg.Notes(f.Rights))),
			zap.String("why", f.Plan.Why),
			zap.Int("perf_events", f.Plan.Descriptors))
		return
	}
	switch {
	case !changed:
	case len(leftOut) == 0:
		r.cfg.Logger.Info("all targets are sampled now", zap.String("what", what(f)))
	default:
		r.cfg.Logger.Warn("some targets cannot be sampled", zap.String("sampler", samples.OnCPU.Sampler),
			zap.String("what", what(f)), zap.Strings("not_sampled", list(leftOut)))
	}
}

// reportStatus reports that sampling is not possible any more, or is again.
func (r *reader) reportStatus(err error) {
	if err != nil {
		err = fmt.Errorf("%w: %w; retried every %v", errNothingPermitted, err, r.cfg.DiscoveryInterval)
		r.logged.started = false
	}
	r.cfg.Status(err)
}

// what names what is sampled.
func what(f *attach.Found) string {
	p := f.Plan
	cpus := fmt.Sprintf("%d CPUs", len(p.CPUs))
	switch p.Mode {
	case attach.ModeHost:
		if f.Rights.ForeignPIDNamespace {
			return "all processes of the collector's own pid namespace, " + cpus
		}
		return "the whole host, " + cpus
	case attach.ModeFilter:
		return "the targets, by events on all of " + cpus
	case attach.ModeTargets:
		if f.Wanted.Host {
			return fmt.Sprintf("all processes of this user, since the whole host is not permitted; %d now, on %s", len(p.Processes), cpus)
		}
		return fmt.Sprintf("%d cgroups and %d processes, on %s", len(p.Cgroups), len(p.Processes), cpus)
	}
	if f.Wanted.Host {
		return "all processes of this user, since the whole host is not permitted; none now"
	}
	return "nothing yet"
}

// rights lists what is permitted.
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

// missing returns what would grant each missing right.
func missing(r perfevent.Rights) (lack []string) {
	if r.Kernel != nil {
		lack = append(lack, r.Kernel.Error())
	}
	if r.ForeignPIDNamespace {
		lack = append(lack, "processes outside of the collector's own pid namespace are invisible: run it in the host's (docker run --pid=host, hostPID: true)")
	}
	return lack
}

// list shortens a list for a log line.
func list(all []string) []string {
	if len(all) > maxListed {
		return append(all[:maxListed:maxListed], fmt.Sprintf("and %d more", len(all)-maxListed))
	}
	return all
}
