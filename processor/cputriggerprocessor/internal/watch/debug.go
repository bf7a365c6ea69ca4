// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"slices"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/hotprofile/hotprofile/internal/globs"
	"github.com/hotprofile/hotprofile/processor/cputriggerprocessor/internal/units"
)

// nearest is the number of units that the debug log shows where none are named.
const nearest = 10

// DebugUnits are the units whose readings the debug log shows. It is safe for
// concurrent use.
type DebugUnits struct {
	enabled bool
	globs   []string // empty: the nearest to a threshold
	current atomic.Pointer[map[string]bool]
}

// NewDebugUnits returns none unless the log has debug messages.
func NewDebugUnits(globs []string, log *zap.Logger) *DebugUnits {
	return &DebugUnits{enabled: log.Core().Enabled(zapcore.DebugLevel), globs: globs}
}

// Enabled reports whether the log has debug messages.
func (d *DebugUnits) Enabled() bool { return d.enabled }

// Has reports whether the debug log shows a unit.
func (d *DebugUnits) Has(unit string) bool {
	if !d.enabled {
		return false
	}
	if len(d.globs) == 0 {
		current := d.current.Load()
		return current != nil && (*current)[unit]
	}
	return slices.ContainsFunc(d.globs, func(glob string) bool { return globs.Match(glob, unit) })
}

// Statuses returns how those units stand, the nearest to a threshold first.
// Without globs it chooses the units.
func (d *DebugUnits) Statuses(set *units.Set, now time.Time) []units.Status {
	var selected func(string) bool
	if len(d.globs) > 0 {
		selected = d.Has
	}
	out := set.Statuses(selected, nearest, now)
	current := make(map[string]bool, len(out))
	for _, s := range out {
		current[s.Unit] = true
	}
	d.current.Store(&current)
	return out
}
