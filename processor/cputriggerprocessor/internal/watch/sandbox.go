// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"strings"

	"github.com/hotprofile/hotprofile/internal/cgroup"
	"github.com/hotprofile/hotprofile/internal/procfs"
)

// youngScans is the number of scans in which a container may turn out to be a sandbox: its
// process is the runtime's until it runs its own program.
const youngScans = 12

// sandboxes finds the containers that are no units: a pod's sandbox, whose only process
// holds its namespaces, and one that the runtime is still starting, which has no name yet.
type sandboxes struct {
	tree       *cgroup.Tree
	scan       int
	containers map[string]container // those of the last scan, by id
}

// container remembers what the scans found about a container.
type container struct {
	scans   int // in which it was looked at
	scan    int // the last one
	sandbox bool
}

// begin begins a scan, and forgets containers that the last one did not find.
func (s *sandboxes) begin() {
	for id, c := range s.containers {
		if c.scan != s.scan {
			delete(s.containers, id)
		}
	}
	s.scan++
}

// has reports whether a group is no unit now. The name of a process is a claim, so a
// sandbox is looked at in each scan: with a second process it is a unit.
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

// onlyProcess returns the name of the only process of a group; empty if it has others.
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
