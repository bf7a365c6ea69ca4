// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package processes

import (
	"fmt"

	"github.com/hotprofile/hotprofile/internal/procfs"
	"github.com/hotprofile/hotprofile/internal/samples"
)

// Describe returns the resource and the identity of the process that has a pid now. It uses
// only Root, Tree, HostName and HostID of cfg. It has no cache, so it is meant for a few
// processes.
func Describe(cfg Config, pid int) (*samples.Resource, Identity, error) {
	cfg.Limits.Processes = 1
	t := NewTable(cfg)
	s, err := t.fs.running("describe", pid)
	if err != nil {
		return nil, Identity{}, err
	}
	p := t.add(&Process{PID: pid})
	t.learn(p, s, nil)
	t.settle(p) // there is no later call of Settle
	t.searchContext(p)
	t.describe(p)
	// The pid may belong to another process by now.
	if again, err := t.fs.stat(pid); err != nil || again.Start != s.Start {
		return nil, Identity{}, fmt.Errorf("describe process %d: %w", pid, ErrEnded)
	}
	group := p.facts.group
	return p.Resource, Identity{
		Process: procfs.Process{PID: pid, Start: s.Start}, Started: p.StartTime,
		Cgroup: group.Cgroup, ContainerID: group.ContainerID, PodUID: group.PodUID,
	}, nil
}
