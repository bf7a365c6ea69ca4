// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package procfs

import (
	"bytes"
	"strconv"
	"time"
)

// ParseSchedstat returns the first field of /proc/PID/task/TID/schedstat, the
// time that the thread was on a CPU. It does not allocate.
func ParseSchedstat(b []byte) (onCPU time.Duration, err error) {
	first, _, ok := bytes.Cut(b, []byte(" "))
	ns, err := strconv.ParseUint(string(first), 10, 63)
	if !ok || err != nil {
		return 0, ErrMalformed
	}
	return time.Duration(ns), nil
}
