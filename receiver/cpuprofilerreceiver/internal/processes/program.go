// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package processes

import "github.com/hotprofile/hotprofile/internal/cgroup"

// facts are the properties of the program that a process runs. They are replaced and never
// changed, so that forked children can share them.
type facts struct {
	// path is the path of the executable as the process sees it, or empty if unknown.
	path string
	// called is the name that the program calls itself. It is empty if the program's file
	// has the same name.
	called string
	// kernel is set for a kernel thread.
	kernel bool
	// root identifies the root directory, or is 0 if unknown.
	root uint64
	membership
	env environment
}

// membership is the cgroup of a process in each hierarchy.
type membership struct {
	// raw is /proc/PID/cgroup as it was read, to notice a move.
	raw   string
	paths cgroup.Paths
	group cgroup.Group
}

// maxMemberships bounds the remembered memberships, and maxMembershipBytes bounds their
// memory outside of a Table. At the bound all are forgotten, and have to be parsed again.
const (
	maxMemberships     = 4096
	maxMembershipBytes = 1 << 20
)

// membershipCache parses the content of cgroup files, once for all processes of
// a cgroup.
type membershipCache struct {
	tree  *cgroup.Tree
	known map[string]membership
	// bytes is the memory of the memberships, limit is its bound.
	bytes, limit int
}

func newMembershipCache(tree *cgroup.Tree, limit int) *membershipCache {
	return &membershipCache{tree: tree, known: make(map[string]membership), limit: limit}
}

// parse returns the membership in the content of a cgroup file. It returns the error of the
// tree for malformed content, or for a cgroup that the tree cannot see.
func (c *membershipCache) parse(raw []byte) (membership, error) {
	if m, ok := c.known[string(raw)]; ok {
		return m, nil
	}
	paths, err := c.tree.ParsePaths(raw)
	if err != nil {
		return membership{}, err
	}
	m := membership{raw: string(raw), paths: paths, group: c.tree.GroupOf(paths)}
	n := 3*len(m.raw) + stringBytes + 256 // with the paths
	if len(c.known) >= maxMemberships || c.bytes+n > c.limit {
		clear(c.known)
		c.bytes = 0
	}
	c.known[m.raw] = m
	c.bytes += n
	return m, nil
}
