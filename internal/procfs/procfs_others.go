// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package procfs

import "time"

// Without a procfs nothing calls these.

func sinceBoot() time.Duration { return 0 }

// OpenFileLimit returns 0: it needs Linux.
func OpenFileLimit() int { return 0 }
