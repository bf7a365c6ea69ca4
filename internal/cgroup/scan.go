// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"os"
	"path/filepath"
)

const (
	maxProcs   = 1 << 20 // bytes of one cgroup.procs
	maxCgroups = 1 << 16 // of one walk
)

// FindContainer returns the unit of a container by its id, or by a prefix of at
// least [MinPrefix] digits. A prefix of several containers is an error.
func (t *Tree) FindContainer(id string) (Unit, bool, error) {
	return Unit{}, false, NeedsLinux // TODO
}

// Units returns every cgroup that is a unit and has processes.
func (t *Tree) Units() ([]Unit, error) { return nil, NeedsLinux }

// PerfDir returns the directory of a unit in the hierarchy that perf events are
// attached to: v1 perf_event where that is mounted, else the v2 tree. The error
// is an [Unavailable] where the unit has none of its own there.
func (t *Tree) PerfDir(u Unit) (string, error) { return "", NeedsLinux }

// Match returns the outermost cgroups that a glob matches, as units: each with
// everything under it. With nothing matched it is empty.
func (t *Tree) Match(g *Glob) ([]Unit, error) { return nil, NeedsLinux }

// walkDirs calls visit for dir's subdirectories, parents first, and goes below
// those for which it returns true. What cannot be read is passed over: it
// vanished, or it is not ours to see.
func walkDirs(dir, path string, depth int, visit func(path string, depth int) bool) {
	if !visit(path, depth) {
		return
	}
	entries, err := os.ReadDir(filepath.Join(dir, path))
	if err != nil {
		return
	}
	for _, e := range entries {
		if e.IsDir() {
			walkDirs(dir, path+"/"+e.Name(), depth+1, visit)
		}
	}
}
