// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"cmp"
	"path"
	"slices"
)

// Whoever may make a cgroup may give it a name with the id of any container that
// runs. Of the cgroups that carry one id, the container's is chosen by what the
// kernel reports about them, so that each look, also after a restart, has the same
// result.

// A Claim is a cgroup with processes whose name carries the id of a container that
// runs in another cgroup.
type Claim struct {
	ContainerID string
	Cgroup      string // where the claim is made
	Container   string // the container's
}

// standing decides which of several cgroups with one container's id is the
// container's.
type standing struct {
	delegated bool // others than root may have made it
	rank      int  // of the hierarchy
	inode     uint64
}

// compare orders standings, the container's first: what only root could make comes
// before what a user could make in a cgroup delegated to them. Then the oldest: the
// kernel numbers the cgroups of a hierarchy in the order in which they are made, and
// nobody can know an id before its container is made.
func (s standing) compare(other standing) int {
	if s.delegated != other.delegated {
		if s.delegated {
			return 1
		}
		return -1
	}
	return cmp.Or(cmp.Compare(s.rank, other.rank), cmp.Compare(s.inode, other.inode))
}

// standing returns that of a cgroup; ok is false if it does not exist.
func (t *Tree) standing(h Hierarchy, at string) (s standing, ok bool) {
	if t.trees[h] == nil {
		return s, false
	}
	dir := t.dir(h, at)
	inode, err := inode(dir)
	if err != nil || !isDir(dir) {
		return s, false
	}
	s.inode = inode
	hierarchies := identity()
	s.rank = slices.Index(hierarchies[:], h)
	for above := at; above != "/" && !s.delegated; {
		above = path.Dir(above)
		s.delegated = writableByUsers(t.dir(h, above))
	}
	return s, true
}

// RealContainer returns the group of the cgroup at a path if that one, and not g, is the
// container whose id both carry. The path may come from outside.
func (t *Tree) RealContainer(g Group, at string) (Group, bool) {
	id, upTo, ok := ContainerIn(at)
	if !ok || id != g.ContainerID || upTo != at || !path.IsAbs(at) || path.Clean(at) != at {
		return Group{}, false
	}
	of, ok := t.standing(g.by, g.Cgroup)
	for _, h := range identity() {
		if claim, is := t.standing(h, at); is && (!ok || claim.compare(of) < 0) {
			return t.groupAt(h, at), true
		}
	}
	return Group{}, false
}

// Has reports whether a path is the group's, in one of the hierarchies that tell
// groups apart.
func (g Group) Has(at string) bool {
	for _, h := range identity() {
		if g.Paths[h] == at {
			return true
		}
	}
	return g.Cgroup == at
}

// Same reports whether two groups of one id are one: on hosts with several
// hierarchies, another one may tell some of a container's processes apart.
func (g Group) Same(other Group) bool {
	if g.by == other.by {
		return g.Cgroup == other.Cgroup
	}
	return g.Paths[other.by] == other.Cgroup || g.Cgroup == other.Paths[g.by]
}
