// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"bufio"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"

	"github.com/hotprofile/hotprofile/internal/procfs"
)

// maxGroupProcesses is the maximum number of processes that are read to check whether a
// cgroup belongs to one group. A cgroup with more processes counts as shared.
const maxGroupProcesses = 4096

// Own returns the group's directory in a hierarchy if the files in the directory cover
// exactly this group. Otherwise the error is an [Unavailable].
func (t *Tree) Own(g Group, h Hierarchy) (dir string, err error) {
	path := g.Paths[h]
	switch {
	case t.trees[h] == nil || path == "":
		return "", NotMounted
	case path == "/":
		return "", InRoot
	case g.ProcessOnly():
		return "", Shared
	}
	dir = t.dir(h, path)
	if id, ok := ContainerID(path); ok && g.ContainerID == id {
		return dir, nil // all cgroups below belong to the container
	}
	if h == g.by && populated(dir, 1, maxDepth) {
		return "", Shared // the files include the groups below
	}
	if t.mode != V2 && !t.sameProcesses(g, h, dir) {
		return "", Shared
	}
	return dir, nil
}

// Childless reports whether none of a group's cgroups has a child. If so, the group's
// values cannot include values of another group.
func (t *Tree) Childless(g Group) bool {
	for h, path := range g.Paths {
		if t.trees[h] != nil && path != "" && path != "/" && !childless(t.dir(Hierarchy(h), path)) {
			return false
		}
	}
	return true
}

// sameProcesses reports whether a cgroup holds exactly the group's processes. With several
// hierarchies, the cgroup that identifies a group may also hold processes of a container.
// Only another hierarchy then separates the container from the group.
func (t *Tree) sameProcesses(g Group, h Hierarchy, dir string) bool {
	ours, err := t.Processes(g)
	if err != nil {
		return false
	}
	theirs, err := processesBelow(dir, maxDepth, maxGroupProcesses)
	if err != nil || len(ours) == 0 && g.Paths[h] != g.Cgroup {
		return false
	}
	for pid := range theirs {
		if !t.agrees(pid, func(p Paths) bool { return t.GroupOf(p).ID == g.ID }) {
			return false
		}
	}
	for pid := range ours {
		if !theirs[pid] && !t.agrees(pid, func(p Paths) bool { return t.GroupOf(p).ID != g.ID || Under(p[h], g.Paths[h]) }) {
			return false
		}
	}
	return true
}

// agrees reports whether the current paths of a process satisfy ok. It returns true if the
// process has ended.
func (t *Tree) agrees(pid int, ok func(Paths) bool) bool {
	if pid == 0 { // the process is in a pid namespace that is not visible here
		return false
	}
	p, err := t.PathsOf(pid)
	if err != nil {
		return isGone(err)
	}
	return ok(p)
}

// Processes returns the pids in a group's cgroup, at most 4096. The error is
// [TooManyProcesses] if there are more, and [ErrGone] if the cgroup was removed. On hosts
// with several hierarchies, some pids may belong to a container. Only another hierarchy
// then separates the container from the group.
func (t *Tree) Processes(g Group) (map[int]bool, error) {
	if g.ProcessOnly() || t.trees[g.by] == nil {
		return nil, NotMounted
	}
	dir := t.dir(g.by, g.Cgroup)
	if !isDir(dir) {
		return nil, ErrGone
	}
	return processesBelow(dir, g.depth(), maxGroupProcesses)
}

// processesBelow returns the pids in a cgroup and in the cgroups below it, down to a depth.
func processesBelow(dir string, deepest, limit int) (map[int]bool, error) {
	pids := map[int]bool{}
	var failed error
	walkDirs(dir, func(path string, depth int) bool {
		list, err := processesIn(dir+path, limit+1)
		if err != nil && !isGone(err) && (deepest == 0 || !isUnsupported(err)) {
			failed = fmt.Errorf("list the processes of cgroup %s: %w", dir, err)
		}
		for _, pid := range list {
			pids[pid] = true
		}
		if len(pids) > limit {
			failed = TooManyProcesses
		}
		return failed == nil && depth < deepest
	})
	return pids, failed
}

// processesIn returns at most limit pids of a cgroup, without the cgroups below it.
func processesIn(dir string, limit int) (pids []int, err error) {
	var buf [4096]byte
	err = eachID(filepath.Join(dir, "cgroup.procs"), buf[:], func(pid int) bool {
		pids = append(pids, pid)
		return len(pids) < limit
	})
	return pids, err
}

// eachID calls visit for each id in a file with one id per line, until visit returns false.
// buf is the buffer for reading.
func eachID(file string, buf []byte, visit func(id int) bool) error {
	f, err := procfs.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	lines.Buffer(buf, len(buf))
	for lines.Scan() {
		if id, err := strconv.ParseUint(string(lines.Bytes()), 10, 64); err == nil && id <= procfs.MaxPID && !visit(int(id)) {
			return nil
		}
	}
	if errors.Is(lines.Err(), bufio.ErrTooLong) {
		return fmt.Errorf("malformed %s", filepath.Base(file))
	}
	return lines.Err()
}

// AnyProcess returns the pid of one of a group's processes. The error is [ErrGone] if no
// process of the group is visible here.
func (t *Tree) AnyProcess(g Group) (pid int, err error) {
	if g.ProcessOnly() || t.trees[g.by] == nil {
		return 0, NotMounted
	}
	dir := t.dir(g.by, g.Cgroup)
	walkDirs(dir, func(path string, depth int) bool {
		if pid == 0 && depth <= g.depth() {
			var buf [512]byte
			_ = eachID(filepath.Join(dir, path, "cgroup.procs"), buf[:], func(id int) bool { pid = id; return id == 0 })
		}
		return pid == 0
	})
	if pid == 0 {
		return 0, ErrGone
	}
	return pid, nil
}

// ID returns the kernel's id of a group's cgroup in the v2 tree. It returns false if the
// group has no cgroup there.
func (t *Tree) ID(g Group) (uint64, bool) {
	path := g.Paths[V2Tree]
	if t.trees[V2Tree] == nil || g.ProcessOnly() || path == "" || path == "/" {
		return 0, false
	}
	id, err := inode(t.dir(V2Tree, path))
	return id, err == nil
}

// IDs returns the kernel's ids of a group's own cgroup in the v2 tree and of the cgroups
// below it, but stops descending at 4096 ids. It returns the same errors as [Tree.Own].
func (t *Tree) IDs(g Group) (map[uint64]bool, error) {
	dir, err := t.Own(g, V2Tree)
	if err != nil {
		return nil, err
	}
	ids := map[uint64]bool{}
	walkDirs(dir, func(path string, _ int) bool {
		if id, err := inode(filepath.Join(dir, path)); err == nil {
			ids[id] = true
		}
		return len(ids) < maxGroupProcesses
	})
	return ids, nil
}
