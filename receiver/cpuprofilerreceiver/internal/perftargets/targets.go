// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package perftargets

import (
	"context"
	"errors"
	"fmt"
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
	units, found, err := f.find(ctx, hostWide)
	found.Wanted.Cgroups = f.wanted(units)
	return found, err
}

// find finds the targets. It returns the cgroups separately.
func (f *TargetFinder) find(ctx context.Context, hostWide bool) (units []cgroup.Group, found Finding, err error) {
	found.Wanted.Host = f.host
	if f.host && hostWide {
		return nil, found, nil
	}
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
	if f.processes == nil {
		return units, found, nil
	}
	matches, missing, err := f.processes.Find(ctx)
	if err != nil {
		return units, found, fmt.Errorf("look for processes: %w", err)
	}
	for _, t := range missing {
		found.Missing = append(found.Missing, t.String())
	}
	for _, m := range matches {
		if !f.within(m.PID, units) { // otherwise the cgroup's events sample it
			found.Wanted.Processes = append(found.Wanted.Processes, m)
		}
	}
	return units, found, nil
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

// wanted returns the cgroups to attach to. Directory is empty if a cgroup has no directory
// in the hierarchy of perf_event.
func (f *TargetFinder) wanted(units []cgroup.Group) (all []WantedCgroup) {
	for _, u := range units {
		dir, _ := f.tree.PerfDir(u)
		all = append(all, WantedCgroup{Path: u.Cgroup, Directory: dir})
	}
	return all
}

// FindAmong finds the targets that are within units or among the processes in among.
// Samplers that sample only hot targets use FindAmong. The field Missing of the result
// lists all missing targets.
func (f *TargetFinder) FindAmong(ctx context.Context, hostWide bool, units []cgroup.Group, among []processes.Match) (Finding, error) {
	targets, all, err := f.find(ctx, hostWide)
	if err != nil {
		return Finding{}, err
	}
	everything := all.Wanted.Host && hostWide
	both := units
	if !everything {
		both = overlap(targets, units)
	}
	both = outermost(both)
	found := Finding{Missing: all.Missing, Wanted: Wanted{Cgroups: f.wanted(both)}}
	known := make(map[int]bool)
	add := func(m processes.Match) {
		if !known[m.PID] && !f.within(m.PID, both) {
			known[m.PID] = true
			found.Wanted.Processes = append(found.Wanted.Processes, m)
		}
	}
	for _, m := range among {
		if everything || f.within(m.PID, targets) {
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

// overlap returns the cgroups that are equal to a target or below it, and also equal to a
// unit or below it. A cgroup may occur more than once.
func overlap(targets, units []cgroup.Group) (both []cgroup.Group) {
	for _, t := range targets {
		for _, u := range units {
			switch {
			case cgroup.Under(u.Cgroup, t.Cgroup):
				both = append(both, u)
			case cgroup.Under(t.Cgroup, u.Cgroup):
				both = append(both, t)
			}
		}
	}
	return both
}
