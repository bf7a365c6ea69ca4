// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package processes

import "github.com/hotprofile/hotprofile/internal/cgroup"

// facts are the properties of the program that a process runs. They are replaced and never
// changed, so that forked children can share them.
type facts struct {
	// path is the path of the executable as the process sees it. It
	// is empty if the path is unknown.
	path string
	// called is the name under which the program was started. It is empty if the program's
	// file has the same name.
	called string
	// kernel reports whether the process is a kernel thread.
	kernel bool
	// root identifies the root directory. It is 0 if the root directory is unknown.
	root uint64
	membership
	env environment
}

// membership is the cgroup of a process in each hierarchy.
type membership struct {
	// raw is the content of /proc/PID/cgroup. It is compared to
	// detect that the process has moved.
	raw   string
	paths cgroup.Paths
	group cgroup.Group
}

// maxMemberships is the maximum number of cached memberships. maxMembershipBytes is the
// maximum size in bytes of a cache that does not belong to a Table. A cache is cleared
// before it exceeds its limit.
const (
	maxMemberships     = 4096
	maxMembershipBytes = 1 << 20
)

// membershipCache parses the content of cgroup files. It parses the same content only
// once for all processes of a cgroup.
type membershipCache struct {
	tree  *cgroup.Tree
	known map[string]membership
	// bytes is the memory of the memberships. limit is the maximum of bytes.
	bytes, limit int
}

func newMembershipCache(tree *cgroup.Tree, limit int) *membershipCache {
	return &membershipCache{tree: tree, known: make(map[string]membership), limit: limit}
}

// parse returns the membership that a cgroup file describes. It returns the error of the
// tree if the content is malformed or the tree cannot see the cgroup.
func (c *membershipCache) parse(raw []byte) (membership, error) {
	if m, ok := c.known[string(raw)]; ok {
		return m, nil
	}
	paths, err := c.tree.ParsePaths(raw)
	if err != nil {
		return membership{}, err
	}
	m := membership{raw: string(raw), paths: paths, group: c.tree.GroupOf(paths)}
	n := 3*len(m.raw) + stringBytes + 256 // including the paths
	if len(c.known) >= maxMemberships || c.bytes+n > c.limit {
		clear(c.known)
		c.bytes = 0
	}
	c.known[m.raw] = m
	c.bytes += n
	return m, nil
}
