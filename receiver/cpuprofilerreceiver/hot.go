// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package cpuprofilerreceiver

import (
	"context"
	"slices"

	"github.com/hotprofile/hotprofile/extension/hotunitsextension"
	"github.com/hotprofile/hotprofile/internal/cgroup"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/attach"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/processes"
)

// hotFinder finds those of the targets that are hot.
type hotFinder struct {
	hot     hotunitsextension.HotUnits
	tree    *cgroup.Tree // nil where cgroups cannot be read
	known   processes.Config
	targets *attach.TargetFinder
}

func (f *hotFinder) Find(ctx context.Context, hostWide bool) (attach.Finding, error) {
	units, pids := f.units()
	among, err := f.processes(ctx, pids)
	if err != nil {
		return attach.Finding{}, err
	}
	found, err := f.targets.FindAmong(ctx, hostWide, units, among)
	found.Only = only(units, among)
	return found, err
}

// units are the cgroups that are hot, and the start times of the processes, by
// pid, that are hot by themselves.
func (f *hotFinder) units() (units []cgroup.Group, pids map[int]uint64) {
	pids = make(map[int]uint64)
	for _, u := range f.hot.Hot() {
		var unit cgroup.Group
		ok := false
		if f.tree != nil && u.Cgroup != "" {
			unit, ok = f.tree.GroupAt(u.Cgroup)
		}
		if !ok && f.tree != nil && u.ContainerID != "" {
			if found, is, err := f.tree.FindContainer(u.ContainerID); err == nil && is {
				unit, ok = found, true
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

// processes are those that are still what was hot.
func (f *hotFinder) processes(ctx context.Context, pids map[int]uint64) (among []processes.Match, err error) {
	if len(pids) == 0 {
		return nil, nil
	}
	targets := make([]processes.Target, 0, len(pids))
	for pid := range pids {
		targets = append(targets, processes.Target{PID: pid})
	}
	cfg := f.known
	// Nobody named the collector itself.
	if cfg.Wanted, err = processes.NewMatcher(targets, ownPID()); err != nil {
		return nil, err
	}
	found, _, err := processes.NewFinder(processes.FinderConfig{Config: cfg}).Find(ctx)
	for _, m := range found {
		if start := pids[m.PID]; start == 0 || start == m.Start {
			among = append(among, m)
		}
	}
	return among, err
}

// only tells the processes that are hot from others that events on every CPU see.
func only(units []cgroup.Group, among []processes.Match) func(pid int, path string) bool {
	pids := make(map[int]bool, len(among))
	for _, m := range among {
		pids[m.PID] = true
	}
	return func(pid int, path string) bool {
		return pids[pid] || path != "" && slices.ContainsFunc(units, func(u cgroup.Group) bool { return cgroup.Under(path, u.Cgroup) })
	}
}
