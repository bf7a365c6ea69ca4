// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package processes

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"slices"

	"github.com/hotprofile/hotprofile/internal/cgroup"
	"github.com/hotprofile/hotprofile/internal/procfs"
)

// Finder searches for wanted processes. It is not safe for concurrent use.
type Finder struct {
	fs          *procReader
	memberships *membershipCache
	matcher     *Matcher
	// ownUser restricts the search to processes of this user. It is -1 for all users.
	ownUser int
}

// Match is a wanted process.
type Match struct {
	procfs.Process
	// Threads is the number of threads of the process.
	Threads int
}

// NewFinder returns a Finder. It uses only Root, Tree and Wanted of cfg. If ownUser is
// true, the Finder finds only processes whose real, effective and saved user is the user
// of the collector. The collector may sample these processes without capabilities.
func NewFinder(cfg Config, ownUser bool) *Finder {
	f := &Finder{fs: newProcReader(cfg), memberships: newMembershipCache(cfg.Tree, maxMembershipBytes), matcher: cmp.Or(cfg.Wanted, &Matcher{}), ownUser: -1}
	if ownUser {
		f.ownUser = os.Geteuid()
	}
	return f
}

// Find returns the wanted processes that exist now, sorted by pid, and the targets without
// a process. It never returns kernel threads, because perf events cannot be attached to a
// single kernel thread.
func (f *Finder) Find(ctx context.Context) (found []Match, missing []Target, err error) {
	targets := f.matcher.targets
	pids, onlyPIDs := f.namedPIDs()
	if !onlyPIDs {
		if pids, err = f.fs.PIDs(); err != nil {
			return nil, nil, fmt.Errorf("look for processes in %s: %w", f.fs.Path(), err)
		}
	}
	slices.Sort(pids)
	hit := make([]bool, len(targets))
	for _, pid := range slices.Compact(pids) {
		if err := ctx.Err(); err != nil {
			return nil, nil, err
		}
		s, err := f.fs.stat(pid)
		if err != nil || s.Kernel {
			continue // the process has ended or is a kernel thread
		}
		facts := f.facts(pid)
		wanted := len(targets) == 0 && pid != f.matcher.own
		for i := range targets {
			if f.matcher.selects(&targets[i], pid, &facts) {
				wanted, hit[i] = true, true
			}
		}
		if !wanted || f.ownUser >= 0 && !f.own(pid) {
			continue
		}
		found = append(found, Match{procfs.Process{PID: pid, Start: s.Start}, s.Threads})
	}
	for i := range targets {
		if !hit[i] {
			missing = append(missing, targets[i].Target)
		}
	}
	return found, missing, nil
}

// namedPIDs returns the pids in the targets. If only is true, all targets are pids, and
// other processes need not be searched.
func (f *Finder) namedPIDs() (pids []int, only bool) {
	for i := range f.matcher.targets {
		pid := f.matcher.targets[i].PID
		if pid == 0 {
			return nil, false
		}
		pids = append(pids, pid)
	}
	return pids, len(pids) > 0
}

// facts reads the properties that targets match. It ignores properties that cannot be read.
func (f *Finder) facts(pid int) (found facts) {
	for i := range f.matcher.targets {
		t := &f.matcher.targets[i]
		switch {
		case t.PID != 0:
		case t.Executable != "":
			if found.path == "" {
				found.path, _ = f.fs.executable(pid)
			}
		case found.raw == "" && f.memberships.tree != nil:
			if b, _, err := f.fs.read(f.fs.File(pid, "cgroup"), cgroup.MaxPaths); err == nil {
				found.membership, _ = f.memberships.parse(b)
			}
		}
	}
	return found
}

// own reports whether the real, effective and saved user of a process is ownUser.
func (f *Finder) own(pid int) bool {
	s, err := f.fs.Status(pid)
	user := uint32(f.ownUser)
	return err == nil && s.UIDs[0] == user && s.UIDs[1] == user && s.UIDs[2] == user
}
