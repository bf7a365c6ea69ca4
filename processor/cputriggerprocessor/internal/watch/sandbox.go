// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"strings"

	"github.com/hotprofile/hotprofile/internal/cgroup"
	"github.com/hotprofile/hotprofile/internal/procfs"
)

// youngScans is the number of scans in which a container may turn out to be a sandbox. Its
// process is the runtime's until it runs its own program.
const youngScans = 12

// sandboxes finds the containers that are no units. One kind is a pod's sandbox, in which
// the only process holds the namespaces. The other is a container that the runtime is still
// starting, which has no name yet.
type sandboxes struct {
	tree       *cgroup.Tree
	scan       int
	containers map[string]container // containers of the last scan, by id
}

// container remembers what the scans found about a container.
type container struct {
	scans   int // number of scans that read its process
	scan    int // the last scan that found it
	sandbox bool
}

// begin begins a scan. It forgets containers that the last scan did not find.
func (s *sandboxes) begin() {
	for id, c := range s.containers {
		if c.scan != s.scan {
			delete(s.containers, id)
		}
	}
	s.scan++
}

// has reports whether a group is currently no unit. The name of a process proves little, so
// a sandbox is checked in each scan. With a second process it is a unit.
func (s *sandboxes) has(g cgroup.Group) bool {
	if g.ContainerID == "" {
		return false
	}
	if s.containers == nil {
		s.containers = make(map[string]container)
	}
	c := s.containers[g.ContainerID]
	starting := false
	if c.scans < youngScans || c.sandbox {
		comm := s.onlyProcess(g)
		c.scans++
		c.sandbox = comm == "pause"
		starting = strings.HasPrefix(comm, "runc") && c.scans < youngScans
	}
	c.scan = s.scan
	s.containers[g.ContainerID] = c
	return c.sandbox || starting
}

// onlyProcess returns the name of the only process of a group. It returns an empty text if
// the group has several processes.
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
