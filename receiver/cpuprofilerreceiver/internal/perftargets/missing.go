// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package perftargets

import (
	"time"

	"go.uber.org/zap"
)

// Missing logs which targets are missing and which were found again. All samplers search
// for the same targets, so only one sampler has a Missing. The other samplers have a nil
// Missing, which does not log. Only one goroutine may use a Missing.
type Missing struct {
	logger *zap.Logger
	every  time.Duration
	logged map[string]bool
}

// NewMissing returns a Missing. every is the interval between two searches, which only
// appears in log lines.
func NewMissing(logger *zap.Logger, every time.Duration) *Missing {
	return &Missing{logger: logger, every: every}
}

// Report is called after each search with the missing targets.
func (m *Missing) Report(missing []string) {
	if m == nil {
		return
	}
	now := make(map[string]bool, len(missing))
	for _, t := range missing {
		now[t] = true
		if !m.logged[t] {
			m.logger.Warn("target not found, searching again", zap.String("target", t), zap.Duration("every", m.every))
		}
	}
	for t := range m.logged {
		if !now[t] {
			m.logger.Info("target found", zap.String("target", t))
		}
	}
	m.logged = now
}
