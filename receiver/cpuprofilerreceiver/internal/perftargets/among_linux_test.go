// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package perftargets

import (
	"os/exec"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/hotprofile/hotprofile/internal/cgroup"
	"github.com/hotprofile/hotprofile/internal/procfs"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/processes"
	"github.com/hotprofile/hotprofile/test/hosttest"
)

// TestTargetsAmongUnits checks which cgroups and processes are sampled, for different targets
// and hot units. It uses two cgroups with one process each.
func TestTargetsAmongUnits(t *testing.T) {
	tree, err := cgroup.Open("/")
	require.NoError(t, err)
	var groups [2]*hosttest.Cgroup
	var units [2]cgroup.Group
	var among [2]processes.Match
	for i := range groups {
		groups[i] = hosttest.NewCgroup(t, "hotprofile-among")
		cmd := groups[i].Command("sleep", "60")
		require.NoError(t, cmd.Start())
		t.Cleanup(func() { stop(cmd) })
		among[i] = processes.Match{Process: procfs.Process{PID: cmd.Process.Pid, Start: 7}, Threads: 1}
		var ok bool
		units[i], ok = tree.GroupAt(groups[i].Path)
		require.True(t, ok)
		require.Eventually(t, func() bool { // the process moves itself to the cgroup
			paths, err := tree.PathsOf(cmd.Process.Pid)
			return err == nil && slices.Contains(paths[:], groups[i].Path)
		}, patience, time.Millisecond)
	}
	none, all := []cgroup.Group(nil), units[:]
	for name, test := range map[string]struct {
		targets   []processes.Target
		units     []cgroup.Group
		among     []processes.Match
		cgroups   []string
		processes []int
	}{
		"nothing is hot":                        {nil, none, nil, nil, nil},
		"of the whole host, a cgroup":           {nil, all[:1], nil, []string{groups[0].Path}, nil},
		"and a process in it, which is covered": {nil, all[:1], among[:1], []string{groups[0].Path}, nil},
		"and one that is not":                   {nil, all[:1], among[1:], []string{groups[0].Path}, []int{among[1].PID}},
		"of one cgroup, both":                   {[]processes.Target{{Cgroup: groups[1].Path}}, all, nil, []string{groups[1].Path}, nil},
		"of one cgroup, the other":              {[]processes.Target{{Cgroup: groups[1].Path}}, all[:1], nil, nil, nil},
		"of one cgroup, processes":              {[]processes.Target{{Cgroup: groups[1].Path}}, none, among[:], nil, []int{among[1].PID}},
		"of one process, its cgroup":            {[]processes.Target{{PID: among[0].PID}}, all[:1], nil, nil, []int{among[0].PID}},
		"of one process, the other's cgroup":    {[]processes.Target{{PID: among[0].PID}}, all[1:], nil, nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			f, err := NewTargetFinder(processes.Config{Tree: tree}, test.targets)
			require.NoError(t, err)
			found, err := f.FindAmong(t.Context(), true, test.units, test.among)
			require.NoError(t, err)
			require.False(t, found.Wanted.Host)
			var paths []string
			for _, c := range found.Wanted.Cgroups {
				paths = append(paths, c.Path)
			}
			require.Equal(t, test.cgroups, paths)
			var pids []int
			for _, p := range found.Wanted.Processes {
				pids = append(pids, p.PID)
				require.NotZero(t, p.Start)
			}
			require.Equal(t, test.processes, pids)
		})
	}
}

func stop(cmd *exec.Cmd) {
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
}
