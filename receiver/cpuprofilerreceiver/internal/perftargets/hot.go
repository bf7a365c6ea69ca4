// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package perftargets

import (
	"context"
	"maps"
	"slices"

	"github.com/hotprofile/hotprofile/extension/hotunitsextension"
	"github.com/hotprofile/hotprofile/internal/cgroup"
	"github.com/hotprofile/hotprofile/internal/procfs"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/processes"
)

// HotFinder finds the hot targets of a TargetFinder.
type HotFinder struct {
	hot     *hotunitsextension.HotUnits
	known   processes.Config
	targets *TargetFinder
	missing bool
}

// NewHotFinder returns a finder for hot targets. targets may be nil if Find is not called.
// If missing is set, Find searches for missing targets even if no unit is hot.
func NewHotFinder(hot *hotunitsextension.HotUnits, known processes.Config, targets *TargetFinder, missing bool) *HotFinder {
	return &HotFinder{hot: hot, known: known, targets: targets, missing: missing}
}

// Find implements Finder.
func (f *HotFinder) Find(ctx context.Context, hostWide bool) (Finding, error) {
	units, pids := f.Groups()
	among := f.Processes(pids)
	if len(units)+len(among) == 0 && !f.missing {
		return Finding{}, nil
	}
	found, err := f.targets.FindAmong(ctx, hostWide, units, among)
	found.Only = only(units, among)
	return found, err
}

// Groups returns the hot cgroups. For processes that are hot without a known cgroup, pids
// maps the pid to the start time.
func (f *HotFinder) Groups() (units []cgroup.Group, pids map[int]uint64) {
	pids = make(map[int]uint64)
	for _, u := range f.hot.Hot() {
		var unit cgroup.Group
		ok := false
		if tree := f.known.Tree; tree != nil {
			if unit, ok = tree.GroupAt(u.Cgroup); !ok {
				unit, ok, _ = tree.FindContainer(u.ContainerID) // an empty id is not found
			}
		}
		switch {
		case ok:
			units = append(units, unit)
		case u.PID > 0:
			pids[u.PID] = u.Start
		}
	}
	return units, pids
}

// Processes returns the processes with these pids. It leaves out a pid that now belongs to
// another process.
func (f *HotFinder) Processes(pids map[int]uint64) (among []processes.Match) {
	proc := procfs.At(f.known.Root)
	for _, pid := range slices.Sorted(maps.Keys(pids)) {
		s, err := proc.Stat(pid)
		if start := pids[pid]; err == nil && !s.Kernel && (start == 0 || start == s.Start) {
			among = append(among, processes.Match{Process: procfs.Process{PID: pid, Start: s.Start}, Threads: s.Threads})
		}
	}
	return among
}

// only returns a filter that accepts hot processes. The filter is needed for events that
// record every process on a CPU.
func only(units []cgroup.Group, among []processes.Match) func(pid int, path string) bool {
	pids := make(map[int]bool, len(among))
	for _, m := range among {
		pids[m.PID] = true
	}
	return func(pid int, path string) bool {
		return pids[pid] || path != "" && slices.ContainsFunc(units, func(u cgroup.Group) bool { return cgroup.Under(path, u.Cgroup) })
	}
}
