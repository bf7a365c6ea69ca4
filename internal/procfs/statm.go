// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package procfs

import (
	"bytes"
	"strconv"
)

// ParseStatm returns the second field of /proc/PID/statm, the pages of the
// process that are in RAM. It does not allocate.
func ParseStatm(b []byte) (resident uint64, err error) {
	_, b, _ = bytes.Cut(b, []byte(" "))
	second, _, ok := bytes.Cut(b, []byte(" "))
	pages, err := strconv.ParseUint(string(second), 10, 64)
	if !ok || err != nil || pages > 1<<40 { // more than 4 PiB
		return 0, ErrMalformed
	}
	return pages, nil
}
