// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"cmp"
	"path"
	"slices"
)

// Any user who may create a cgroup can name it after the id of a running container. If the
// names of several cgroups contain the same id, the container's cgroup is chosen by
// properties that only the kernel controls. The choice is therefore the same each time,
// even after a restart.

// A Claim is a cgroup with processes whose name contains the id of a container, although
// the container runs in another cgroup.
type Claim struct {
	ContainerID string
	Cgroup      string // the claiming cgroup
	Container   string // the container's cgroup
}

// standing ranks a cgroup among the cgroups with the same container id. The cgroup that
// ranks first belongs to the container.
type standing struct {
	delegated bool // a user other than root may have created the cgroup
	rank      int  // rank of the hierarchy, in the order of identity
	inode     uint64
}

// compare orders standings so that the container's standing is first. A cgroup that only
// root could create precedes a cgroup that a user could create in a delegated cgroup.
// Next, cgroups are ordered by the rank of their hierarchy. Within one hierarchy, older
// cgroups precede newer cgroups, because a container's id is not known before the
// container is created. The kernel numbers cgroups in the order of their creation.
func (s standing) compare(other standing) int {
	if s.delegated != other.delegated {
		if s.delegated {
			return 1
		}
		return -1
	}
	return cmp.Or(cmp.Compare(s.rank, other.rank), cmp.Compare(s.inode, other.inode))
}

// standing returns the properties of a cgroup by which compare orders cgroups. ok is
// false if the cgroup does not exist.
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

// RealContainer reports whether the cgroup at a path, and not g, is the real container with
// the id of g. If so, it also returns the group of the cgroup. The path may be untrusted.
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

// Has reports whether a path is the group's path in one of the hierarchies that identify
// groups.
func (g Group) Has(at string) bool {
	for _, h := range identity() {
		if g.Paths[h] == at {
			return true
		}
	}
	return g.Cgroup == at
}

// Same reports whether two groups with the same id are the same group. On hosts with
// several hierarchies, some processes of a container may be in a separate cgroup of
// another hierarchy.
func (g Group) Same(other Group) bool {
	if g.by == other.by {
		return g.Cgroup == other.Cgroup
	}
	return g.Paths[other.by] == other.Cgroup || g.Cgroup == other.Paths[g.by]
}
