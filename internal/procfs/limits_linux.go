// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package procfs

import "golang.org/x/sys/unix"

// OpenFileLimit returns how many files this process may have open, its soft
// RLIMIT_NOFILE; no more than 1<<30.
func OpenFileLimit() int {
	var r unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &r) != nil {
		return 1024 // the usual one; this does not fail
	}
	return int(min(r.Cur, 1<<30))
}
