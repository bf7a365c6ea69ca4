// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package processes

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/hotprofile/hotprofile/internal/procfs"
	"github.com/hotprofile/hotprofile/internal/samples"
)

// Describe returns the resource that samples of the process that has a pid now would
// carry, and its identity. Of cfg it uses Root, Tree, HostName and HostID. It caches
// nothing, so it suits few processes.
func Describe(cfg Config, pid int) (*samples.Resource, Identity, error) {
	cfg.Limits.Processes = 1
	t := NewTable(cfg)
	s, err := t.fs.stat(pid)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			err = ErrEnded
		}
		return nil, Identity{}, fmt.Errorf("describe process %d: %w", pid, err)
	}
	p := t.add(&Process{PID: pid})
	t.learn(p, s, nil)
	t.settle(p) // nobody would later
	t.describe(p)
	// The pid may be another process's since.
	if again, err := t.fs.stat(pid); err != nil || again.Start != s.Start {
		return nil, Identity{}, fmt.Errorf("describe process %d: %w", pid, ErrEnded)
	}
	group := p.facts.group
	return p.Resource, Identity{
		Process: procfs.Process{PID: pid, Start: s.Start}, Started: p.StartTime,
		Cgroup: group.Cgroup, ContainerID: group.ContainerID, PodUID: group.PodUID,
	}, nil
}
