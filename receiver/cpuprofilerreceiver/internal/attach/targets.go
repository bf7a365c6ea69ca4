// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package attach

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/hotprofile/hotprofile/internal/cgroup"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/processes"
)

// TargetFinder finds the configured targets. It searches the cgroup tree for cgroups and
// containers, and the processes for pids and executables.
type TargetFinder struct {
	tree    *cgroup.Tree
	cgroups []cgroupTarget
	// host is true if no targets are configured.
	host bool
	// processes finds processes by pid and executable. If no targets are configured,
	// processes finds the processes to sample while the whole host is not permitted.
	// processes is nil if all targets are cgroups or containers.
	processes *processes.Finder
}

type cgroupTarget struct {
	processes.Target
	glob *cgroup.Glob // nil for a container
}

// NewTargetFinder returns a finder for targets. If there are no targets, the finder finds
// the whole host. cfg.Wanted is ignored. The collector itself is sampled only if a target
// names its pid or executable.
func NewTargetFinder(cfg processes.Config, targets []processes.Target) (*TargetFinder, error) {
	f := &TargetFinder{tree: cfg.Tree, host: len(targets) == 0}
	var named []processes.Target
	for _, t := range targets {
		switch {
		case t.Cgroup != "":
			glob, err := cgroup.ParseGlob(t.Cgroup)
			if err != nil {
				return nil, err
			}
			f.cgroups = append(f.cgroups, cgroupTarget{Target: t, glob: glob})
		case t.ContainerID != "":
			f.cgroups = append(f.cgroups, cgroupTarget{Target: t})
		default:
			named = append(named, t)
		}
	}
	if !f.host && len(named) == 0 {
		return f, nil
	}
	var err error
	if cfg.Wanted, err = processes.NewMatcher(named, os.Getpid()); err != nil {
		return nil, err
	}
	f.processes = processes.NewFinder(cfg, f.host)
	return f, nil
}

// Find finds the targets. A cgroup that cannot be read counts as missing. Find returns an
// error only if the whole search failed.
func (f *TargetFinder) Find(ctx context.Context, hostWide bool) (Finding, error) {
	var found Finding
	found.Wanted.Host = f.host
	if f.host && hostWide {
		return found, nil
	}
	var units []cgroup.Group
	for _, t := range f.cgroups {
		of, err := f.units(t)
		switch {
		case err != nil:
			found.Missing = append(found.Missing, fmt.Sprintf("%s (%v)", t, err))
		case len(of) == 0:
			found.Missing = append(found.Missing, t.String())
		}
		units = append(units, of...)
	}
	units = outermost(units)
	for _, u := range units {
		found.Wanted.Cgroups = append(found.Wanted.Cgroups, f.wanted(u))
	}
	if f.processes == nil {
		return found, nil
	}
	matches, missing, err := f.processes.Find(ctx)
	if err != nil {
		return found, fmt.Errorf("look for processes: %w", err)
	}
	for _, t := range missing {
		found.Missing = append(found.Missing, t.String())
	}
	for _, m := range matches {
		if !f.within(m.PID, units) { // otherwise the cgroup's events sample it
			found.Wanted.Processes = append(found.Wanted.Processes, m)
		}
	}
	return found, nil
}

var errNoCgroups = errors.New("cgroups cannot be read")

func (f *TargetFinder) units(t cgroupTarget) ([]cgroup.Group, error) {
	if f.tree == nil {
		return nil, errNoCgroups
	}
	if t.glob != nil {
		return f.tree.Match(t.glob)
	}
	u, ok, err := f.tree.FindContainer(t.ContainerID)
	if err != nil || !ok {
		return nil, err
	}
	return []cgroup.Group{u}, nil
}

// outermost removes cgroups that are equal to another cgroup or below it. Otherwise two
// events would sample the same threads.
func outermost(units []cgroup.Group) (out []cgroup.Group) {
	slices.SortFunc(units, func(a, b cgroup.Group) int { return strings.Compare(a.Cgroup, b.Cgroup) })
	for _, u := range units {
		if !slices.ContainsFunc(out, func(above cgroup.Group) bool { return cgroup.Under(u.Cgroup, above.Cgroup) }) {
			out = append(out, u)
		}
	}
	return out
}

// within reports whether a process is in one of the cgroups.
func (f *TargetFinder) within(pid int, units []cgroup.Group) bool {
	if len(units) == 0 {
		return false
	}
	paths, err := f.tree.PathsOf(pid)
	if err != nil {
		return false
	}
	return slices.ContainsFunc(units, func(u cgroup.Group) bool {
		for h, path := range u.Paths {
			if path == u.Cgroup && cgroup.Under(paths[h], path) {
				return true
			}
		}
		return false
	})
}

// wanted converts a group to a cgroup to attach to. Directory is empty if the cgroup has no
// directory in the hierarchy of perf_event.
func (f *TargetFinder) wanted(u cgroup.Group) WantedCgroup {
	dir, err := f.tree.PerfDir(u)
	if err != nil {
		dir = ""
	}
	return WantedCgroup{Path: u.Cgroup, Directory: dir}
}

// FindAmong finds the targets that are within units or among the processes in among.
// Samplers that sample only hot targets use FindAmong. The field Missing of the result
// lists all missing targets.
func (f *TargetFinder) FindAmong(ctx context.Context, hostWide bool, units []cgroup.Group, among []processes.Match) (Finding, error) {
	all, err := f.Find(ctx, hostWide)
	if err != nil {
		return Finding{}, err
	}
	found := Finding{Missing: all.Missing}
	everything := all.Wanted.Host && hostWide
	if everything {
		for _, u := range outermost(units) {
			found.Wanted.Cgroups = append(found.Wanted.Cgroups, f.wanted(u))
		}
	} else {
		found.Wanted.Cgroups = f.overlap(all.Wanted.Cgroups, units)
	}
	known := make(map[int]bool)
	add := func(m processes.Match) {
		if !known[m.PID] && !f.covered(m.PID, found.Wanted.Cgroups) {
			known[m.PID] = true
			found.Wanted.Processes = append(found.Wanted.Processes, m)
		}
	}
	for _, m := range among {
		if everything || f.covered(m.PID, all.Wanted.Cgroups) {
			add(m)
		}
	}
	for _, p := range all.Wanted.Processes {
		hot := slices.ContainsFunc(among, func(m processes.Match) bool { return m.Process == p.Process })
		if hot || f.within(p.PID, units) {
			add(p)
		}
	}
	return found, nil
}

// overlap returns the intersection of cgroups and units. The
// result contains each cgroup once.
func (f *TargetFinder) overlap(cgroups []WantedCgroup, units []cgroup.Group) []WantedCgroup {
	common := make(map[string]WantedCgroup)
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
	var out []WantedCgroup
	for _, path := range slices.Sorted(maps.Keys(common)) {
		above := func(c WantedCgroup) bool { return cgroup.Under(path, c.Path) }
		if !slices.ContainsFunc(out, above) {
			out = append(out, common[path])
		}
	}
	return out
}

// covered reports whether a process is in one of the cgroups.
func (f *TargetFinder) covered(pid int, cgroups []WantedCgroup) bool {
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
