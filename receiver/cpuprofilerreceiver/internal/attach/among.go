// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package attach

import (
	"context"
	"maps"
	"slices"

	"github.com/hotprofile/hotprofile/internal/cgroup"
	"github.com/hotprofile/hotprofile/internal/perfevent"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/processes"
)

// FindAmong finds the targets within units, and among processes: for samplers of a
// part of the targets. It does not report missing targets.
func (f *TargetFinder) FindAmong(ctx context.Context, hostWide bool, units []cgroup.Group, among []processes.Match) (Finding, error) {
	found := Finding{Starts: make(map[int]uint64)}
	if len(units)+len(among) == 0 {
		return found, nil
	}
	all, err := f.Find(ctx, hostWide)
	if err != nil {
		return found, err
	}
	everything := all.Wanted.Host && hostWide
	if everything {
		for _, u := range outermost(units) {
			found.Wanted.Cgroups = append(found.Wanted.Cgroups, f.wanted(u))
		}
	} else {
		found.Wanted.Cgroups = f.overlap(all.Wanted.Cgroups, units)
	}
	add := func(pid, threads int, start uint64) {
		if _, known := found.Starts[pid]; known || f.covered(pid, found.Wanted.Cgroups) {
			return
		}
		found.Wanted.Processes = append(found.Wanted.Processes, perfevent.WantedProcess{PID: pid, Threads: threads})
		found.Starts[pid] = start
	}
	for _, m := range among {
		if everything || f.covered(m.PID, all.Wanted.Cgroups) {
			add(m.PID, m.Threads, m.Start)
		}
	}
	for _, p := range all.Wanted.Processes {
		start := all.Starts[p.PID]
		hot := slices.ContainsFunc(among, func(m processes.Match) bool { return m.PID == p.PID && m.Start == start })
		if hot || f.within(p.PID, units) {
			add(p.PID, p.Threads, start)
		}
	}
	return found, nil
}

// overlap returns what cgroups and units have in common, each cgroup once.
func (f *TargetFinder) overlap(cgroups []perfevent.WantedCgroup, units []cgroup.Group) []perfevent.WantedCgroup {
	common := make(map[string]perfevent.WantedCgroup)
	for _, c := range cgroups {
		for _, u := range units {
			switch {
			case cgroup.Under(u.Cgroup, c.Path):
				common[u.Cgroup] = f.wanted(u)
			case cgroup.Under(c.Path, u.Cgroup):
				common[c.Path] = c
			}
		}
	}
	var out []perfevent.WantedCgroup
	for _, path := range slices.Sorted(maps.Keys(common)) {
		above := func(c perfevent.WantedCgroup) bool { return cgroup.Under(path, c.Path) }
		if !slices.ContainsFunc(out, above) {
			out = append(out, common[path])
		}
	}
	return out
}

// covered reports whether a process is in one of the cgroups.
func (f *TargetFinder) covered(pid int, cgroups []perfevent.WantedCgroup) bool {
	if len(cgroups) == 0 || f.tree == nil {
		return false
	}
	units := make([]cgroup.Group, 0, len(cgroups))
	for _, c := range cgroups {
		if u, ok := f.tree.GroupAt(c.Path); ok {
			units = append(units, u)
		}
	}
	return f.within(pid, units)
}
