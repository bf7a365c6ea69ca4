// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package processes

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/hotprofile/hotprofile/internal/cgroup"
	"github.com/hotprofile/hotprofile/internal/procfs"
	"github.com/hotprofile/hotprofile/internal/samples"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/mappedfile"
)

// Identity is a process and its current group. It is comparable.
type Identity struct {
	procfs.Process
	// Started is the start time of the process. It is zero if the boot time of the host is
	// unknown.
	Started time.Time
	// Cgroup, ContainerID and PodUID identify the process's group. A value is empty if it
	// does not exist or cannot be read.
	Cgroup, ContainerID, PodUID string
}

// ErrEnded means that no process has the pid.
var ErrEnded = errors.New("the process has ended")

// Identifier identifies processes by their pid. It is safe for concurrent use.
type Identifier struct {
	mu          sync.Mutex
	fs          *procReader
	boot        time.Time
	memberships *membershipCache
}

// NewIdentifier returns an Identifier that reads below root, where the host's root is
// mounted. tree is nil if cgroups cannot be read.
func NewIdentifier(root string, tree *cgroup.Tree) *Identifier {
	return &Identifier{
		fs: newProcReader(Config{Access: mappedfile.Access{Root: root}}), boot: procfs.BootTime(),
		memberships: newMembershipCache(tree, maxMembershipBytes),
	}
}

// Identify returns the process that has a pid now. A cgroup that cannot be read or parsed
// is not an error.
func (i *Identifier) Identify(pid int) (Identity, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	s, err := i.fs.running("identify", pid)
	if err != nil {
		return Identity{}, err
	}
	id := Identity{Process: procfs.Process{PID: pid, Start: s.Start}, Started: procfs.TimeOf(i.boot, s.Start)}
	if i.memberships.tree == nil {
		return id, nil
	}
	// The start time is read before and after the cgroup, so that the start time and
	// the cgroup belong to one process.
	if b, cut, err := i.fs.read(i.fs.File(pid, "cgroup"), cgroup.MaxPaths); err == nil && !cut {
		if at, err := i.memberships.parse(b); err == nil {
			id.Cgroup, id.ContainerID, id.PodUID = at.group.Cgroup, at.group.ContainerID, at.group.PodUID
		}
	}
	if err := i.fs.stillRunning("identify", pid, s.Start); err != nil {
		return Identity{}, err
	}
	return id, nil
}

// running is like stat, but its error contains the name of the action. If the process has
// ended, the error wraps ErrEnded.
func (r *procReader) running(action string, pid int) (stat, error) {
	s, err := r.stat(pid)
	if procfs.IsGone(err) {
		err = ErrEnded
	}
	if err != nil {
		return stat{}, fmt.Errorf("%s process %d: %w", action, pid, err)
	}
	return s, nil
}

// stillRunning is like running, but returns an error if another process has the pid by now.
func (r *procReader) stillRunning(action string, pid int, start uint64) error {
	s, err := r.running(action, pid)
	if err == nil && s.Start != start {
		return fmt.Errorf("%s process %d: %w", action, pid, ErrEnded)
	}
	return err
}

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
	if err := t.fs.stillRunning("describe", pid, s.Start); err != nil {
		return nil, Identity{}, err
	}
	group := p.facts.group
	return p.Resource, Identity{
		Process: procfs.Process{PID: pid, Start: s.Start}, Started: p.StartTime,
		Cgroup: group.Cgroup, ContainerID: group.ContainerID, PodUID: group.PodUID,
	}, nil
}
