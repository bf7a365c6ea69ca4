// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package network

import (
	"go.uber.org/zap"

	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/attach"
)

// logged remembers what was logged: it is logged again only if it changes.
type logged struct {
	// unset reports whether the number of samples could not be limited.
	unset bool
}

// Report logs what is sampled, what is not and why; each once until it changes.
func (r *reader) Report(f *attach.Found) {
	r.loop.ReportSampler(f, "network", func() []zap.Field {
		found := r.found.Load()
		return []zap.Field{
			zap.String("when", r.cfg.When),
			zap.Strings("types", found.sampled()),
			zap.Strings("types_not_available", found.missing),
			zap.Int("max_events_per_second", r.cfg.MaxEventsPerSecond),
		}
	})
}
