// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package offcpu

import (
	"errors"

	"go.uber.org/zap"

	"github.com/hotprofile/hotprofile/internal/otlpprofiles/attr"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/attach"
)

// logged remembers what was logged: it is logged again only if it changes.
type logged struct {
	// unset reports whether the number of stacks could not be limited, unwatched
	// whether events of single threads could not be opened.
	unset, unwatched bool
}

// Report logs what is sampled, what is not and why; each once until it changes.
func (r *reader) Report(f *attach.Found) {
	r.loop.ReportSampler(f, "off-CPU", func() []zap.Field {
		return []zap.Field{
			zap.String("when", r.cfg.When),
			zap.Duration("min_duration", r.cfg.MinDuration),
			zap.Int("max_events_per_second", r.cfg.MaxEventsPerSecond),
			zap.Strings("not_shown", r.notShown()),
		}
	})
}

// notShown returns what samples lack, and what would show it.
func (r *reader) notShown() []string {
	if r.cfg.NoWaits == nil {
		return nil
	}
	return []string{"what threads waited for (" + attr.Wait + "): " + r.cfg.NoWaits.Error()}
}

// noWaits returns why samples do not have what their threads waited for; nil if they do.
// names is why the kernel's functions have none.
func noWaits(kernel attach.KernelStacks, names error) error {
	if kernel == attach.KernelNever {
		return errors.New("kernel_stacks is false")
	}
	return names
}
