// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// maxGroupProcesses bounds how many processes are looked at to find out whether
// a cgroup is a unit's own; with more it counts as shared.
const maxGroupProcesses = 4096

// Own returns the directory of the unit in a hierarchy if all figures there are
// the unit's and only the unit's; the error is an [Unavailable] otherwise.
func (t *Tree) Own(u Group, h Hierarchy) (dir string, err error) {
	path := u.Paths[h]
	switch {
	case t.trees[h] == nil || path == "":
		return "", NotMounted
	case path == "/":
		return "", InRoot
	case u.ProcessOnly():
		return "", Shared
	}
	dir = t.dir(h, path)
	if id, ok := ContainerID(path); ok && u.ContainerID == id {
		return dir, nil // everything below is the container's
	}
	if h == u.by && t.populatedBelow(dir) {
		return "", Shared // figures include those of the units below
	}
	if t.mode != V2 && !t.sameProcesses(u, h, dir) {
		return "", Shared
	}
	return dir, nil
}

// Childless says that none of a unit's cgroups has one below it, so that no
// figure of it can have become those of several units by what was made there.
func (t *Tree) Childless(u Group) bool {
	for h, path := range u.Paths {
		if t.trees[h] != nil && path != "" && path != "/" && !childless(t.dir(Hierarchy(h), path)) {
			return false
		}
	}
	return true
}

// populatedBelow says whether a cgroup below dir has processes.
func (t *Tree) populatedBelow(dir string) bool {
	found := false
	walkDirs(dir, func(path string, depth int) bool {
		if depth > 0 && !found {
			procs, _ := processesIn(filepath.Join(dir, path), 1)
			found = len(procs) > 0
		}
		return !found
	})
	return found
}

// sameProcesses says whether a cgroup holds all of the unit's processes and no
// other: with several hierarchies, even the one that names a unit may also hold
// the processes of a container that only another hierarchy tells apart.
func (t *Tree) sameProcesses(u Group, h Hierarchy, dir string) bool {
	ours, err := t.Processes(u)
	if err != nil {
		return false
	}
	theirs, err := processesBelow(dir, maxGroupProcesses)
	if err != nil || len(ours) == 0 && u.Paths[h] != u.Cgroup {
		return false
	}
	for pid := range theirs {
		if !t.agrees(pid, func(p Paths) bool { return t.GroupOf(p).ID == u.ID }) {
			return false
		}
	}
	for pid := range ours {
		if !theirs[pid] && !t.agrees(pid, func(p Paths) bool { return t.GroupOf(p).ID != u.ID || Under(p[h], u.Paths[h]) }) {
			return false
		}
	}
	return true
}

// agrees asks a condition of where a process is by now; one that has ended is no
// objection.
func (t *Tree) agrees(pid int, ok func(Paths) bool) bool {
	if pid == 0 { // in a pid namespace that is not ours to see
		return false
	}
	p, err := t.PathsOf(pid)
	if err != nil {
		return isGone(err)
	}
	return ok(p)
}

// Processes returns the pids in a unit's cgroup. On hosts with several hierarchies
// some may belong to a container that only another hierarchy tells apart. With too many of them it
// returns [TooManyProcesses], and [ErrGone] where the cgroup was removed.
func (t *Tree) Processes(u Group) (map[int]bool, error) {
	if u.ProcessOnly() || t.trees[u.by] == nil {
		return nil, NotMounted
	}
	dir := t.dir(u.by, u.Cgroup)
	if !isDir(dir) {
		return nil, ErrGone
	}
	if u.ContainerID != "" {
		return processesBelow(dir, maxGroupProcesses)
	}
	list, err := processesIn(dir, maxGroupProcesses+1)
	if err != nil && !isGone(err) {
		return nil, fmt.Errorf("list the processes of cgroup %s: %w", u.Cgroup, err)
	}
	if len(list) > maxGroupProcesses {
		return nil, TooManyProcesses
	}
	pids := make(map[int]bool, len(list))
	for _, pid := range list {
		pids[pid] = true
	}
	return pids, nil
}

// processesBelow returns the pids in a cgroup and in those below it.
func processesBelow(dir string, limit int) (map[int]bool, error) {
	pids := map[int]bool{}
	var failed error
	walkDirs(dir, func(path string, _ int) bool {
		list, err := processesIn(filepath.Join(dir, path), limit+1)
		if err != nil && !isGone(err) && !isThreaded(err) {
			failed = fmt.Errorf("list the processes of cgroup %s: %w", dir, err)
		}
		for _, pid := range list {
			pids[pid] = true
		}
		if len(pids) > limit {
			failed = TooManyProcesses
		}
		return failed == nil
	})
	return pids, failed
}

// processesIn returns the first pids, at most limit, of a cgroup itself.
func processesIn(dir string, limit int) ([]int, error) {
	f, err := os.Open(filepath.Join(dir, "cgroup.procs"))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var (
		pids []int
		buf  [4096]byte
		kept int // bytes of an unfinished line
	)
	for len(pids) < limit {
		n, err := f.Read(buf[kept:])
		if n <= 0 {
			if err != nil && !isEOF(err) {
				return pids, err
			}
			return pids, nil
		}
		b := buf[:kept+n]
		for {
			line, rest, ok := bytes.Cut(b, []byte("\n"))
			if !ok || len(pids) == limit {
				break
			}
			if pid, _, ok := parseUint(line); ok && pid <= maxPID {
				pids = append(pids, int(pid))
			}
			b = rest
		}
		kept = copy(buf[:], b)
		if kept == len(buf) {
			return pids, errors.New("malformed cgroup.procs")
		}
	}
	return pids, nil
}

const maxPID = 1 << 22 // PID_MAX_LIMIT of the kernel
