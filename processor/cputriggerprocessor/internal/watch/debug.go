// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"sync/atomic"
	"time"

	"github.com/hotprofile/hotprofile/processor/cputriggerprocessor/internal/units"
)

// nearest is the number of units that the debug log shows.
const nearest = 10

// DebugUnits contains the units nearest to a threshold, which the debug log shows.
// DebugUnits is safe for concurrent use.
type DebugUnits struct {
	current atomic.Pointer[map[string]bool]
}

// Has reports whether the debug log shows a unit.
func (d *DebugUnits) Has(unit string) bool {
	current := d.current.Load()
	return current != nil && (*current)[unit]
}

// Statuses chooses the units. It returns their states, starting with the unit nearest to a
// threshold.
func (d *DebugUnits) Statuses(set *units.Set, now time.Time) []units.Status {
	out := set.Statuses(nearest, now)
	current := make(map[string]bool, len(out))
	for _, s := range out {
		current[s.Unit] = true
	}
	d.current.Store(&current)
	return out
}
