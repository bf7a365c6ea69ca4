// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package processes

import (
	"errors"
	"fmt"
	"io/fs"
	"sync"
	"time"

	"github.com/hotprofile/hotprofile/internal/cgroup"
	"github.com/hotprofile/hotprofile/internal/procfs"
)

// Identity is what tells a process apart and where it is now. It is comparable.
type Identity struct {
	procfs.Process
	// Started is Start as a time; zero where it is not known when the host booted.
	Started time.Time
	// Cgroup, ContainerID and PodUID are those of its unit; empty where it has
	// none or where that cannot be read.
	Cgroup, ContainerID, PodUID string
}

// ErrEnded says that there is no process with a pid.
var ErrEnded = errors.New("the process has ended")

// Identifier identifies processes that have come forward by themselves. Safe for
// concurrent use.
type Identifier struct {
	mu          sync.Mutex
	fs          *procReader
	boot        time.Time
	memberships *membershipCache // nil where there are no cgroups to be read
}

// NewIdentifier returns one that reads below root, the place where the host's root
// is mounted; tree is nil where there are no cgroups to be read.
func NewIdentifier(root string, tree *cgroup.Tree) *Identifier {
	i := &Identifier{fs: newProcReader(root), boot: procfs.BootTime()}
	if tree != nil {
		i.memberships = newMembershipCache(tree)
	}
	return i
}

// Identify reads about the process that has a pid now. A cgroup that cannot be
// made out is no error.
func (i *Identifier) Identify(pid int) (Identity, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	id := Identity{Process: procfs.Process{PID: pid}}
	// The cgroup before the start time: whoever knows the process by its start
	// knows then that the cgroup was not read of one that had its pid before.
	if i.memberships != nil {
		if b, cut, err := i.fs.read(i.fs.File(pid, "cgroup"), cgroup.MaxPaths); err == nil && !cut {
			if at, err := i.memberships.parse(b); err == nil {
				id.Cgroup, id.ContainerID, id.PodUID = at.group.Cgroup, at.group.ContainerID, at.group.PodUID
			}
		}
	}
	s, err := i.fs.stat(pid)
	if errors.Is(err, fs.ErrNotExist) {
		err = ErrEnded
	}
	if err != nil {
		return Identity{}, fmt.Errorf("identify process %d: %w", pid, err)
	}
	id.Start = s.Start
	id.Started = procfs.TimeOf(i.boot, s.Start)
	return id, nil
}
