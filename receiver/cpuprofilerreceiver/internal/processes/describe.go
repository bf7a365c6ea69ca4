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

// Describe reads about the process that has a pid now what its own samples would
// carry, and what tells it apart. Of cfg it uses Root, Tree, HostName and HostID.
// It remembers nothing from one call to the next, so it is for the few processes
// that are asked for by themselves.
func Describe(cfg Config, pid int) (*samples.Resource, Identity, error) {
	t := NewTable(Config{
		Root: cfg.Root, Tree: cfg.Tree, HostName: cfg.HostName, HostID: cfg.HostID,
		Limits: Limits{Processes: 1},
	})
	s, err := t.fs.stat(pid)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			err = ErrEnded
		}
		return nil, Identity{}, fmt.Errorf("describe process %d: %w", pid, err)
	}
	p := t.add(&Process{PID: pid})
	t.learn(p, s, nil)
	t.describe(p)
	// What was read may be of another process, that has had the pid since.
	if again, err := t.fs.stat(pid); err != nil || again.Start != s.Start {
		return nil, Identity{}, fmt.Errorf("describe process %d: %w", pid, ErrEnded)
	}
	unit := p.facts.group
	return p.Resource, Identity{
		Process: procfs.Process{PID: pid, Start: s.Start}, Started: p.StartTime,
		Cgroup: unit.Cgroup, ContainerID: unit.ContainerID, PodUID: unit.PodUID,
	}, nil
}
