// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !windows

package procfs

import (
	"errors"
	"os"
	"strings"
)

// HasFiles reports whether information about processes is read from files. On
// Windows, it comes from system calls.
const HasFiles = true

// Stat reads the stat file of a process, at most [MaxStat] bytes.
func (fs FS) Stat(pid int) (Stat, error) { return ParseFile(fs.File(pid, "stat"), MaxStat, ParseStat) }

// PIDs returns the pids of all processes, at most [MaxPID].
func (fs FS) PIDs() ([]int, error) { return ids(fs.dir) }

// Executable returns the path of the program that a process runs, as the process sees it.
// The kernel writes at most one page. The path is empty for a kernel thread. Some container
// runtimes execute a file that is itself a mount. The kernel reports / for such a file, and
// Executable returns an empty path.
func (fs FS) Executable(pid int) (string, error) {
	path, err := os.Readlink(fs.File(pid, "exe"))
	if path == "/" {
		return "", err
	}
	return strings.TrimSuffix(path, " (deleted)"), err
}

// List returns an error, because it needs Windows.
func List() ([]Listed, error) { return nil, errors.ErrUnsupported }
