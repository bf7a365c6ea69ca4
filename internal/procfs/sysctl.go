// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package procfs

import (
	"bytes"
	"strconv"
)

// Sysctl returns a setting of the kernel that is one number, by its path below
// /proc/sys.
func Sysctl(path string) (int, error) {
	b, err := ReadFile(At("").Path("sys", path), 64)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(string(bytes.TrimSpace(b)))
}
