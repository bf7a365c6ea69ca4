// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package perfevent

import (
	"errors"
	"fmt"
	"strings"
)

// ErrUnsupported is returned on systems other than Linux, and matches what
// kernels without perf events answer.
var ErrUnsupported = errors.New("perf events need Linux with CONFIG_PERF_EVENTS")

// ErrNotPerfCgroup is returned for a directory that is not a cgroup of the
// hierarchy that owns perf_event.
var ErrNotPerfCgroup = errors.New("the directory is not a cgroup of the hierarchy that owns perf_event (v2, or v1's perf_event)")

// LimitError is an attachment that would take more descriptors than permitted.
type LimitError struct {
	Needed, Limit int
}

// Error names both numbers and what raises the limit.
func (e *LimitError) Error() string {
	return fmt.Sprintf("at least %d perf events are needed, and %d are permitted: by max_perf_events, and by half of RLIMIT_NOFILE", e.Needed, e.Limit)
}

// RightsError says what is not permitted here and what would permit it. It
// matches errors.Is(err, os.ErrPermission).
type RightsError struct {
	// What was tried, as "sampling the whole host".
	What string
	// Needed are the alternatives, any of which permits it, the least privilege
	// first.
	Needed []string
	// Have is what was found instead, as "kernel.perf_event_paranoid is 2".
	Have string
	// Err is what the kernel answered.
	Err error
}

// Error names what was tried, what is needed and what is there.
func (e *RightsError) Error() string {
	msg := e.What + " is not permitted: it needs " + strings.Join(e.Needed, " or ")
	if e.Have != "" {
		msg += " (" + e.Have + ")"
	}
	return msg
}

// Unwrap returns what the kernel answered.
func (e *RightsError) Unwrap() error { return e.Err }
