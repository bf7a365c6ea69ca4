// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package procfs

import (
	"bytes"
	"math"
	"strconv"
)

// ParseLoadavg returns the first figure of /proc/loadavg, the average number of
// threads that ran, could have run or were in uninterruptible sleep during the
// last minute.
func ParseLoadavg(b []byte) (float64, error) {
	first, _, ok := bytes.Cut(b, []byte(" "))
	load, err := strconv.ParseFloat(string(first), 64)
	if !ok || err != nil || !(load >= 0) || math.IsInf(load, 0) {
		return 0, ErrMalformed
	}
	return load, nil
}
