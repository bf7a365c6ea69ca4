// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package bottleneck

import (
	"github.com/hotprofile/hotprofile/internal/perfevent"
	"github.com/hotprofile/hotprofile/internal/perfevent/switches"
)

// openStream opens a stream of the switches of all CPUs.
func openStream() (stream, error) {
	if perfevent.Probe().ForeignPIDNamespace {
		return nil, ForeignPIDs
	}
	return switches.Open()
}
