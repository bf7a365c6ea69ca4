// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package perfevent

import (
	"errors"

	"github.com/hotprofile/hotprofile/internal/perfevent/internal/rights"
)

// ErrNotPerfCgroup is returned for a directory that is not a cgroup of the
// hierarchy that owns perf_event.
var ErrNotPerfCgroup = errors.New("the directory is not a cgroup of the hierarchy that owns perf_event (v2, or v1's perf_event)")

// The errors of sessions, context switches and uprobes.
type (
	// UnsupportedError is returned where this kernel, or this operating system, lacks
	// a feature.
	UnsupportedError = rights.UnsupportedError
	// RightsError is returned for what is not permitted here. It matches
	// errors.Is(err, os.ErrPermission).
	RightsError = rights.Error
	// LimitError is returned where something would take more descriptors than
	// permitted.
	LimitError = rights.LimitError
)
