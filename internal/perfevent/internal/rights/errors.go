// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package rights

import (
	"fmt"
	"strings"
)

// UnsupportedError is returned where this kernel, or this operating system, lacks
// a feature.
type UnsupportedError struct {
	// Feature names what is missing, such as "perf events".
	Feature string
	// Needs names the kernel that has it.
	Needs string
	// Err is the kernel's answer; nil on operating systems other than Linux.
	Err error
}

// Unsupported is the answer to everything on operating systems other than Linux.
var Unsupported = &UnsupportedError{Feature: "perf events", Needs: "Linux 4.8 or later with CONFIG_PERF_EVENTS"}

// Error names the feature, what it needs and the kernel's answer.
func (e *UnsupportedError) Error() string {
	msg := e.Feature + " need " + e.Needs
	if e.Err != nil {
		msg += ": " + e.Err.Error()
	}
	return msg
}

// Unwrap returns the kernel's answer.
func (e *UnsupportedError) Unwrap() error { return e.Err }

// LimitError is returned where something would take more descriptors than
// permitted.
type LimitError struct {
	Needed, Limit int
}

// Error names both numbers and what raises the limit.
func (e *LimitError) Error() string {
	return fmt.Sprintf("at least %d perf events are needed, and %d are permitted: by max_perf_events, and by half of RLIMIT_NOFILE", e.Needed, e.Limit)
}

// Error is returned for what is not permitted here. It names what would permit it,
// and matches errors.Is(err, os.ErrPermission).
type Error struct {
	// What was tried, such as "sampling the whole host".
	What string
	// Needed are the alternatives, the least privilege first. Any of them is enough.
	Needed []string
	// Have is the value that was found instead, such as "it is 2".
	Have string
	// Err is the kernel's answer.
	Err error
}

// Error names what was tried, what is needed and what is there.
func (e *Error) Error() string {
	msg := e.What + " is not permitted: it needs " + strings.Join(e.Needed, " or ")
	if e.Have != "" {
		msg += " (" + e.Have + ")"
	}
	return msg
}

// Unwrap returns the kernel's answer.
func (e *Error) Unwrap() error { return e.Err }
