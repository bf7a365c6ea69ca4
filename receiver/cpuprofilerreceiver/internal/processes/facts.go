// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package processes

import "github.com/hotprofile/hotprofile/internal/cgroup"

// facts are what is known about the program that a process runs. They are
// replaced, never changed, so that forked children share them.
type facts struct {
	// path is the executable's, as the process sees it; empty where unknown.
	path string
	// rawCgroup is /proc/PID/cgroup as it was read, to notice a move.
	rawCgroup string
	paths     cgroup.Paths
	unit      cgroup.Unit
	env       environment
}
