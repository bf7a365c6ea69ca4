// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package procfs

import (
	"os"
	"strings"
)

// Executable returns the path of the program that a process runs, as the process
// sees it; the kernel writes at most a page. A kernel thread has none.
func (fs FS) Executable(pid int) (string, error) {
	path, err := os.Readlink(fs.File(pid, "exe"))
	return strings.TrimSuffix(path, " (deleted)"), err
}
