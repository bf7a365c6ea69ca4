// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package procfs

import "golang.org/x/sys/unix"

// OpenFileLimit returns the most files that this process may have open, its soft
// RLIMIT_NOFILE, and at most 1<<30.
func OpenFileLimit() int {
	var r unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &r) != nil {
		return 1024 // the usual one; this does not fail
	}
	return int(min(r.Cur, 1<<30))
}
