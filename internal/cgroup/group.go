// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/hotprofile/hotprofile/internal/globs"
)

// A Group is the cgroup that separates the processes of a container or service from
// other processes. A Group with an empty ID is a process without such a cgroup.
type Group struct {
	// ID is the container's id. Outside containers, ID is the path of the cgroup. It is
	// empty if no cgroup separates the process from others.
	ID string
	// Cgroup is the path in the hierarchy that identifies the group.
	Cgroup string
	// ContainerID is the container's id. It is empty outside containers.
	ContainerID string
	// PodUID is the Kubernetes pod's uid. It is empty outside pods.
	PodUID string
	// Paths holds the group's path in each hierarchy. It is the container's path if the
	// process's path contains the container's id. Otherwise it is the process's path.
	Paths Paths
	// by is the hierarchy that contains the path Cgroup.
	by Hierarchy
}

// depth returns the depth, below the group's cgroup, down to which all cgroups belong to the
// group.
func (g Group) depth() int {
	if g.ContainerID != "" {
		return maxDepth
	}
	return 0
}

// ProcessOnly reports whether no cgroup separates the process from others.
func (g Group) ProcessOnly() bool { return g.ID == "" }

// GroupOf returns the group of a process with these paths. A container's cgroup in any
// hierarchy takes precedence, because some engines do not put containers into the v2 tree
// of a hybrid host. In the v2 tree, such containers stay in the engine's own service.
func (t *Tree) GroupOf(p Paths) Group {
	for _, h := range identity() {
		if id, cgroup, ok := ContainerIn(p[h]); ok {
			return containerGroup(p, h, id, cgroup)
		}
	}
	for _, h := range identity() {
		if p[h] != "" && p[h] != "/" {
			return Group{ID: p[h], Cgroup: p[h], Paths: p, by: h}
		}
	}
	return Group{Paths: p}
}

func containerGroup(p Paths, by Hierarchy, id, cgroup string) Group {
	g := Group{ID: id, Cgroup: cgroup, ContainerID: id, Paths: p, by: by}
	g.PodUID, _ = PodUID(cgroup)
	for h, path := range p {
		if other, upTo, ok := ContainerIn(path); ok && other == id {
			g.Paths[h] = upTo
		}
	}
	return g
}

// GroupAt returns the group of the cgroup at a path. If the cgroup is inside a container,
// GroupAt returns the group of the container. It returns false if there is no such cgroup.
// The path may be untrusted. GroupAt accepts only a clean absolute path, because such a
// path cannot lead out of the tree.
func (t *Tree) GroupAt(cgroup string) (Group, bool) {
	if !path.IsAbs(cgroup) || path.Clean(cgroup) != cgroup || cgroup == "/" {
		return Group{}, false
	}
	if _, upTo, ok := ContainerIn(cgroup); ok {
		cgroup = upTo
	}
	for h := range t.identifying() {
		if isDir(t.dir(h, cgroup)) {
			return t.groupAt(h, cgroup), true
		}
	}
	return Group{}, false
}

// Under reports whether path equals parent or is below it.
func Under(path, parent string) bool {
	parent = strings.TrimSuffix(parent, "/")
	return len(path) >= len(parent) && path[:len(parent)] == parent &&
		(len(path) == len(parent) || path[len(parent)] == '/')
}

// A Glob matches cgroups by path. * matches within a name, and ** matches across names.
type Glob struct{ pattern string }

// mountNames are the directory names of v1 hierarchies below /sys/fs/cgroup.
var mountNames = []string{"cpu", "cpuacct", "cpu,cpuacct", "cpuset", "memory", "pids", "blkio", "devices", "freezer", "systemd", "unified"}

// ParseGlob parses a pattern and adds a missing leading slash.
func ParseGlob(pattern string) (*Glob, error) {
	p := strings.TrimSuffix(pattern, "/")
	if !strings.HasPrefix(p, "/") {
		p = "/" + p
	}
	if pattern == "" {
		return nil, errors.New("the path of a cgroup is empty: write / for all")
	}
	if err := globs.Check(p); err != nil {
		return nil, err
	}
	if meant, ok := strings.CutPrefix(p, "/sys/fs/cgroup/"); ok {
		if first, rest, ok := strings.Cut(meant, "/"); ok && slices.Contains(mountNames, first) {
			meant = rest
		}
		return nil, fmt.Errorf("%q is a path of the file system and matches no cgroup: the path of a cgroup begins below the mount point, so write /%s", pattern, meant)
	}
	return &Glob{pattern: p}, nil
}

// String returns the pattern.
func (g *Glob) String() string { return g.pattern }

// Match reports whether the glob matches the path or one of its ancestors. A matched cgroup
// therefore includes all cgroups below it. A path that equals the pattern literally also
// matches, even if it contains characters that systemd escaped.
func (g *Glob) Match(path string) bool {
	if Under(path, g.pattern) {
		return true
	}
	for end := 1; end <= len(path); end++ {
		if (end == len(path) || path[end] == '/') && globs.Match(g.pattern, path[:end]) {
			return true
		}
	}
	return false
}
