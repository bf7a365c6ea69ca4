// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package cputriggerprocessor

import "golang.org/x/sys/unix"

// fileLimit is how many files this process may have open.
func fileLimit() uint64 {
	var r unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &r) != nil {
		return 1024 // what is usual
	}
	return r.Cur
}
