// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package cgroup

import "path"

// GroupAt returns the unit that the cgroup of a path is, or is in, and false if
// there is no such cgroup. The path may come from outside: only a clean absolute
// one is looked for, so that it cannot lead out of the tree.
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
