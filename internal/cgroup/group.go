// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package cgroup

import "strings"

// A Group is the cgroup that tells processes apart from others: of a container, of a service, or, with an empty
// ID, a process that no cgroup of its own tells apart.
type Group struct {
	// ID is the container's id, else the path of the cgroup. Empty: the
	// process itself is the unit.
	ID string
	// Cgroup is the path in the hierarchy that gives the unit its identity.
	Cgroup string
	// ContainerID is the container's id; empty outside containers.
	ContainerID string
	// PodUID is the Kubernetes pod's uid; empty outside pods.
	PodUID string
	// Paths is the unit's path in each hierarchy: the container's where the
	// path carries its id, else the process's.
	Paths Paths
	// by is the hierarchy that Cgroup is a path in.
	by Hierarchy
}

// ProcessOnly says that no cgroup tells the process apart, so that it is a unit
// of its own.
func (u Group) ProcessOnly() bool { return u.ID == "" }

// GroupOf returns the unit that a process with these paths belongs to. A
// container's cgroup decides wherever it is: engines that do not put containers
// into the v2 tree of a hybrid host leave them there in the engine's own
// service.
func (t *Tree) GroupOf(p Paths) Group {
	for _, h := range identity() {
		if id, cgroup, ok := containerIn(p[h]); ok {
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
	u := Group{ID: id, Cgroup: cgroup, ContainerID: id, Paths: p, by: by}
	u.PodUID, _ = PodUID(cgroup)
	for h, path := range p {
		if other, upTo, ok := containerIn(path); ok && other == id {
			u.Paths[h] = upTo
		}
	}
	return u
}

// Under says whether a cgroup's path is parent's or below it.
func Under(path, parent string) bool {
	parent = strings.TrimSuffix(parent, "/")
	return len(path) >= len(parent) && path[:len(parent)] == parent &&
		(len(path) == len(parent) || path[len(parent)] == '/')
}
