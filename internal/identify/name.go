// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package identify

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/hotprofile/hotprofile/internal/cgroup"
	"github.com/hotprofile/hotprofile/internal/procfs"
)

// startFormat is the format of the start time in a process's name.
const startFormat = "2006-01-02T15:04:05.00Z"

// ProcessName returns the name of a unit that is a process.
func ProcessName(pid int, started time.Time) string {
	return strconv.Itoa(pid) + ":" + started.UTC().Format(startFormat)
}

// ByName finds a unit by a name that a person enters. The name is the id of a container
// or at least its first cgroup.MinPrefix digits, the path of a cgroup, or a pid. If there
// is no such unit, ByName returns the reason.
func ByName(h Host, scope Scope, name string) (found Identity, why string) {
	pid, err := strconv.Atoi(name)
	switch {
	case err == nil && pid > 0 && pid <= procfs.MaxPID:
		p, ok := h.Process(pid)
		if !ok {
			return Identity{}, "no process here has that pid"
		}
		found, why := ofProcess(h, p, scope)
		return found, string(why)
	case scope == ScopeProcess:
		return Identity{}, "units are processes here (scope: process): name one by its pid"
	case strings.HasPrefix(name, "/"):
		if g, ok := h.Cgroup(name); ok && !g.ProcessOnly() {
			if g, ok = settle(h, g, name); !ok {
				return Identity{}, "that cgroup carries the id of a container that runs in another cgroup"
			}
			return ofGroup(g), ""
		}
		return Identity{}, "there is no such cgroup"
	case len(name) < cgroup.MinPrefix:
		return Identity{}, fmt.Sprintf("it is no pid, no cgroup's path, which begins with /, and too short for a container's id: %d digits are the least", cgroup.MinPrefix)
	}
	if g, ok := h.Container(name); ok {
		return ofGroup(g), ""
	}
	return Identity{}, "no container here has that id"
}
