// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package perfevent

import (
	"time"

	"github.com/hotprofile/hotprofile/internal/perfevent/internal/sys"
)

// ClockOffset returns what to add to a Record's Time for nanoseconds since the
// Unix epoch. It changes when the wall clock is set, so call it again now and then.
func ClockOffset() int64 {
	before := sys.Monotonic()
	wall := time.Now().UnixNano()
	after := sys.Monotonic()
	return wall - (before + (after-before)/2)
}
