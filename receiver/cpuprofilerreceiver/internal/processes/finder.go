// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package processes

import (
	"context"
	"fmt"
	"os"
	"slices"

	"github.com/hotprofile/hotprofile/internal/cgroup"
)

// Finder looks for the processes that targets name. It belongs to one
// goroutine.
type Finder struct {
	fs      *procfs
	places  *places
	matcher *Matcher
	user    int
}

// Match is a process that was found.
type Match struct {
	PID int
	// Threads is how many it has now.
	Threads int
	// Start is when the process was forked, in clock ticks since the host
	// booted: with the pid it tells a process from an earlier one.
	Start uint64
}

// Found is what a Finder found.
type Found struct {
	// Processes are those that are wanted, by pid.
	Processes []Match
	// Missing are the targets that no process was found for.
	Missing []Target
	// Unreadable is how many processes may be wanted but did not let their
	// executable or cgroup be read.
	Unreadable int
}

// NewFinder returns a finder of the processes that a matcher wants, below root.
// tree may be nil: then no process is in a cgroup.
func NewFinder(root string, tree *cgroup.Tree, matcher *Matcher) *Finder {
	return &Finder{fs: newProcfs(root), places: newPlaces(tree), matcher: matcher, user: os.Geteuid()}
}

// Find looks for the processes that are there now. With ownUser it finds only
// those that run as this process's own user in every respect, which it may
// sample without a right. Kernel threads are never found: they cannot be
// attached to one by one.
func (f *Finder) Find(ctx context.Context, ownUser bool) (Found, error) {
	targets := f.matcher.targets
	pids, onlyPIDs := f.namedPIDs()
	if !onlyPIDs {
		var err error
		if pids, err = f.fs.pids(); err != nil {
			return Found{}, fmt.Errorf("look for processes in %s: %w", f.fs.root, err)
		}
	}
	slices.Sort(pids)
	found := Found{}
	hit := make([]bool, len(targets))
	for _, pid := range slices.Compact(pids) {
		if err := ctx.Err(); err != nil {
			return Found{}, err
		}
		s, err := f.fs.stat(pid)
		if err != nil || s.kernel {
			continue // ended meanwhile
		}
		facts, unreadable := f.facts(pid)
		wanted := len(targets) == 0 && pid != f.matcher.own
		for i := range targets {
			t := &targets[i]
			if (pid != f.matcher.own || t.names()) && t.matches(pid, &facts) {
				wanted, hit[i] = true, true
			}
		}
		if !wanted {
			if unreadable {
				found.Unreadable++
			}
			continue
		}
		if ownUser && !f.own(pid) {
			continue
		}
		found.Processes = append(found.Processes, Match{PID: pid, Threads: s.threads, Start: s.ticks})
	}
	for i := range targets {
		if !hit[i] {
			found.Missing = append(found.Missing, targets[i].Target)
		}
	}
	return found, nil
}

// namedPIDs are the pids that targets name; only says that there are no other
// targets, so that no other process matters.
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

// facts reads what targets ask for.
func (f *Finder) facts(pid int) (found facts, unreadable bool) {
	for i := range f.matcher.targets {
		t := &f.matcher.targets[i]
		switch {
		case t.PID != 0:
		case t.Executable != "":
			if found.path == "" {
				path, err := f.fs.executable(pid)
				found.path = path
				unreadable = unreadable || err != nil && isDenied(err)
			}
		case found.raw == "" && f.places.tree != nil:
			b, _, err := f.fs.read(f.fs.dir(pid)+"/cgroup", maxCgroup)
			if err == nil {
				found.place, err = f.places.of(b)
			}
			unreadable = unreadable || err != nil && !os.IsNotExist(err)
		}
	}
	return found, unreadable
}

// own says whether a process runs as this process's user.
func (f *Finder) own(pid int) bool {
	b, _, err := f.fs.read(f.fs.dir(pid)+"/status", maxStatus)
	if err != nil {
		return false
	}
	u, ok := parseStatus(b)
	return ok && u == ids{f.user, f.user, f.user}
}
