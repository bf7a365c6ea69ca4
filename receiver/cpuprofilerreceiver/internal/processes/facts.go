// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package processes

import "github.com/hotprofile/hotprofile/internal/cgroup"

// facts are what is known about the program that a process runs. They are
// replaced, never changed, so that forked children share them.
type facts struct {
	// path is the executable's, as the process sees it; empty where unknown.
	path string
	// kernel says that it is a kernel thread.
	kernel bool
	place
	env environment
}

// place is where a process is in the cgroup hierarchies.
type place struct {
	// raw is /proc/PID/cgroup as it was read, to notice a move.
	raw   string
	paths cgroup.Paths
	unit  cgroup.Group
}

// maxPlaces bounds the places that are remembered. At the bound all are
// forgotten, which costs parsing them again.
const maxPlaces = 4096

// places turns the content of cgroup files into places, once for all processes
// of a cgroup.
type places struct {
	tree  *cgroup.Tree
	known map[string]place
}

func newPlaces(tree *cgroup.Tree) *places {
	return &places{tree: tree, known: make(map[string]place)}
}

// of returns the place that a cgroup file's content means. The error is the
// tree's, for content that is malformed or a place that it cannot see.
func (ps *places) of(raw []byte) (place, error) {
	if p, ok := ps.known[string(raw)]; ok {
		return p, nil
	}
	paths, err := ps.tree.ParsePaths(raw)
	if err != nil {
		return place{}, err
	}
	p := place{raw: string(raw), paths: paths, unit: ps.tree.GroupOf(paths)}
	if len(ps.known) >= maxPlaces {
		clear(ps.known)
	}
	ps.known[p.raw] = p
	return p, nil
}
