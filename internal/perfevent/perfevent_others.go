// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package perfevent

// Attachment is empty, because attachments need Linux.
type Attachment struct{}

// ClockOffset returns 0, because no records exist without perf events.
func ClockOffset() int64 { return 0 }
