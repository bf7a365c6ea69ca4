// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package oncpu

import (
	"fmt"
	"strings"

	"go.uber.org/zap"

	"github.com/hotprofile/hotprofile/internal/perfevent"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/attach"
)

// maxListed is how many names a log line shows before it only counts.
const maxListed = 10

// spoken is what has been said, so that each thing is said once until it changes.
type spoken struct {
	started bool
	missing map[string]bool
	leftOut string
	failing string
	failure string
	// exceeded is that a lower frequency would not help.
	exceeded bool
}

// Report says what is sampled, what is not and why; each once until it changes.
func (r *reader) Report(f *attach.Found) {
	r.spoken.failure = ""
	r.reportTargets(f.Missing)
	r.reportStatus(f.Err)
	if f.Err != nil {
		return
	}
	leftOut := make([]string, 0, len(f.Plan.LeftOut))
	for _, l := range f.Plan.LeftOut {
		leftOut = append(leftOut, l.What+": "+l.Reason)
	}
	all := strings.Join(leftOut, "\n")
	if !r.spoken.started {
		r.spoken.started = true
		r.spoken.leftOut = all
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
	if all != r.spoken.leftOut {
		r.spoken.leftOut = all
		if all == "" {
			r.cfg.Logger.Info("everything that was asked for is sampled now", zap.String("what", what(f)))
		} else {
			r.cfg.Logger.Warn("not everything that was asked for can be sampled",
				zap.String("what", what(f)), zap.Strings("not_sampled", list(leftOut)))
		}
	}
}

// reportTargets says which targets are not there, and when they come.
func (r *reader) reportTargets(absent []string) {
	now := make(map[string]bool, len(absent))
	for _, t := range absent {
		now[t] = true
		if !r.spoken.missing[t] {
			r.cfg.Logger.Warn("target not found, it is looked for again", zap.String("target", t),
				zap.Duration("every", r.cfg.DiscoveryInterval))
		}
	}
	for t := range r.spoken.missing {
		if !now[t] {
			r.cfg.Logger.Info("target found", zap.String("target", t))
		}
	}
	r.spoken.missing = now
}

// Failed says that targets could not be looked for.
func (r *reader) Failed(err error) {
	if text := err.Error(); text != r.spoken.failure {
		r.spoken.failure = text
		r.cfg.Logger.Warn("Looking for targets failed; what is sampled stays as it is", zap.Error(err),
			zap.Duration("tried_again_every", r.cfg.DiscoveryInterval))
	}
}

func (r *reader) reportStatus(err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	if text == r.spoken.failing {
		return
	}
	r.spoken.failing = text
	if err != nil {
		err = fmt.Errorf("%w: %w; tried again every %v", errNothingPermitted, err, r.cfg.DiscoveryInterval)
		r.spoken.started = false
	}
	r.cfg.Status(err)
}

// what names what is sampled.
func what(f *attach.Found) string {
	p := f.Plan
	cpus := fmt.Sprintf("%d CPUs", len(p.CPUs))
	switch p.Mode {
	case perfevent.ModeHost:
		if f.Rights.ForeignPIDNamespace {
			return "all processes of the collector's own pid namespace, " + cpus
		}
		return "the whole host, " + cpus
	case perfevent.ModeFilter:
		return "the targets, by events on all of " + cpus
	case perfevent.ModeTargets:
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

// missing says of each right that is not there what would give it.
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
