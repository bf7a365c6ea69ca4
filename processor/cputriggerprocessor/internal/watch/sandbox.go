// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"strings"

	"github.com/hotprofile/hotprofile/internal/cgroup"
	"github.com/hotprofile/hotprofile/internal/procfs"
)

// youngScans is the number of scans after which a container is no longer checked, unless
// it is a sandbox. While a container is starting, its only process belongs to the
// container runtime.
const youngScans = 12

// sandboxes finds the containers that are not units. These containers are the sandboxes
// of pods, whose only process holds the pod's namespaces, and containers that the runtime
// is still starting.
type sandboxes struct {
	tree          *cgroup.Tree
	last, current map[string]container // containers of the last scan and of this scan, by id
}

// container is the result of the scans for one container.
type container struct {
	scans   int // number of scans that read its process
	sandbox bool
}

// begin starts a scan. It forgets containers that the last scan did not find.
func (s *sandboxes) begin() { s.last, s.current = s.current, map[string]container{} }

// has reports whether a group is a sandbox or a container that is still starting. has
// checks a sandbox again in each scan, because the name of a process is weak evidence. A
// sandbox that gets a second process becomes a unit.
func (s *sandboxes) has(g cgroup.Group) bool {
	if g.ContainerID == "" {
		return false
	}
	c := s.last[g.ContainerID]
	starting := false
	if c.scans < youngScans || c.sandbox {
		comm := s.onlyProcess(g)
		c.scans++
		c.sandbox = comm == "pause"
		starting = strings.HasPrefix(comm, "runc") && c.scans < youngScans
	}
	s.current[g.ContainerID] = c
	return c.sandbox || starting
}

// onlyProcess returns the name of a group's process. It returns an empty string if the group
// does not have exactly one process.
func (s *sandboxes) onlyProcess(g cgroup.Group) string {
	processes, err := s.tree.Processes(g)
	if err != nil || len(processes) != 1 {
		return ""
	}
	for pid := range processes {
		if stat, err := procfs.At(s.tree.Root()).Stat(pid); err == nil {
			return string(stat.Comm)
		}
	}
	return ""
}
