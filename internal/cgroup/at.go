// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package cgroup

import "path"

// GroupAt returns the group of the cgroup at a path, that of the container around
// it if there is one, and false if there is no such cgroup. The path may come from
// outside: only a clean absolute one is accepted, so that it cannot lead out of the
// tree.
func (t *Tree) GroupAt(cgroup string) (Group, bool) {
	if !path.IsAbs(cgroup) || path.Clean(cgroup) != cgroup || cgroup == "/" {
		return Group{}, false
	}
	if _, upTo, ok := containerIn(cgroup); ok {
		cgroup = upTo
	}
	for _, h := range identity() {
		if t.trees[h] != nil && isDir(t.dir(h, cgroup)) {
			return t.groupAt(h, cgroup), true
		}
	}
	return Group{}, false
}
