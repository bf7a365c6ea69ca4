// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package allocs

import (
	"context"
	"fmt"

	"github.com/hotprofile/hotprofile/internal/cgroup"
	"github.com/hotprofile/hotprofile/internal/procfs"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/perftargets"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/processes"
)

// finder finds the processes of the targets, or only the processes of hot units. The
// attacher determines which of these processes run Go programs.
type finder struct {
	targets *processes.Finder
	tree    *cgroup.Tree           // nil if cgroups cannot be read
	hot     *perftargets.HotFinder // nil if all targets are sampled
	missing *perftargets.Missing
}

func (f *finder) find(ctx context.Context) (found []procfs.Process, err error) {
	wanted := func(int) bool { return true }
	if f.hot != nil {
		pids := f.hotPIDs()
		if len(pids) == 0 && f.missing == nil {
			return nil, nil
		}
		wanted = func(pid int) bool { return pids[pid] }
	}
	matches, missing, err := f.targets.Find(ctx)
	if err != nil {
		return nil, fmt.Errorf("look for processes: %w", err)
	}
	names := make([]string, 0, len(missing))
	for _, t := range missing {
		names = append(names, t.String())
	}
	f.missing.Report(names)
	for _, m := range matches {
		if wanted(m.PID) {
			found = append(found, m.Process)
		}
	}
	return found, nil
}

// hotPIDs returns the processes of hot units. It ignores a cgroup that cannot be listed,
// because the cgroup may have been removed.
func (f *finder) hotPIDs() map[int]bool {
	groups, alone := f.hot.Groups()
	pids := make(map[int]bool)
	for _, m := range f.hot.Processes(alone) {
		pids[m.PID] = true
	}
	for _, g := range groups {
		of, err := f.tree.Processes(g)
		if err != nil {
			continue
		}
		for pid := range of {
			pids[pid] = true
		}
	}
	return pids
}
