// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package processes

import (
	"context"
	"fmt"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/hotprofile/hotprofile/internal/perfevent"
	"github.com/hotprofile/hotprofile/internal/procfs"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/mappedfile"
)

func TestTargetCheck(t *testing.T) {
	for name, c := range map[string]struct {
		target Target
		fault  string
	}{
		"a pid":                      {Target{PID: 1}, ""},
		"an executable":              {Target{Executable: "/usr/lib/jvm/*/bin/java"}, ""},
		"an executable anywhere":     {Target{Executable: "**/java"}, ""},
		"a cgroup":                   {Target{Cgroup: "/system.slice/*.service"}, ""},
		"a container":                {Target{ContainerID: containerID[:12]}, ""},
		"nothing":                    {Target{}, "exactly one of pid (above 0), executable, cgroup, container_id; none is set"},
		"two things":                 {Target{PID: 1, Cgroup: "/a"}, "; pid and cgroup is set"},
		"a negative pid":             {Target{PID: -1}, "pid: -1"},
		"a broken executable glob":   {Target{Executable: "/bin/[a"}, `executable: "/bin/[a" is not a glob`},
		"an executable without root": {Target{Executable: "java"}, "executable: \"java\" matches no path"},
		"a broken cgroup glob":       {Target{Cgroup: "/a{"}, "cgroup: "},
		"a short container id":       {Target{ContainerID: "4f1c0c6b8a2"}, "container_id: \"4f1c0c6b8a2\" is too short: at least the first 12"},
		"a glob of container ids":    {Target{ContainerID: "4f1c0c6b8a2*"}, "container_id: "},
	} {
		t.Run(name, func(t *testing.T) {
			err := c.target.Check()
			if c.fault == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, c.fault)
			_, err = NewMatcher([]Target{{PID: 1}, c.target}, 0)
			require.ErrorContains(t, err, "targets[1]: ")
		})
	}
}

func village(t *testing.T) *host {
	h := newHost(t, false)
	uid := os.Geteuid()
	mine := fmt.Sprintf("%d\t%d\t%d\t%d", uid, uid, uid, uid)
	h.process(2, proc{name: "kthreadd", kernel: true, cgroup: "0::/\n", uid: mine})
	h.process(10, proc{name: "java", exe: "/usr/lib/jvm/21/bin/java", cgroup: "0::/system.slice/checkout.service\n", ticks: 7, threads: 40, uid: mine})
	h.process(11, proc{name: "sh", exe: "/bin/sh", cgroup: "0::/system.slice/checkout.service/jobs\n", uid: mine})
	h.process(12, proc{name: "shop", exe: "/bin/shop", cgroup: "0::/docker/" + containerID + "\n", uid: fmt.Sprintf("%d\t%d\t%d\t%d", uid, uid, uid+1, uid)})
	h.process(13, proc{name: "collector", exe: "/bin/collector", cgroup: "0::/system.slice/collector.service\n", uid: mine})
	h.write("proc/14/stat", "nothing that can be understood")
	h.write("proc/self/stat", "")
	return h
}

func TestTargetsFindAndMatch(t *testing.T) {
	const collector = 13
	for name, c := range map[string]struct {
		targets []Target
		want    []int
		missing []Target
	}{
		"everything but the collector":   {want: []int{10, 11, 12}},
		"a pid":                          {targets: []Target{{PID: 12}}, want: []int{12}},
		"the collector by its pid":       {targets: []Target{{PID: collector}}, want: []int{collector}},
		"the collector by its program":   {targets: []Target{{Executable: "/bin/collector"}}, want: []int{collector}},
		"not the collector by its group": {targets: []Target{{Cgroup: "/system.slice"}}, want: []int{10, 11}},
		"a glob of programs":             {targets: []Target{{Executable: "/usr/lib/jvm/*/bin/java"}}, want: []int{10}},
		"a star stays within a name":     {targets: []Target{{Executable: "/usr/*/java"}}, missing: []Target{{Executable: "/usr/*/java"}}},
		"a cgroup and what is below it":  {targets: []Target{{Cgroup: "/system.slice/check*.service"}}, want: []int{10, 11}},
		"a container":                    {targets: []Target{{ContainerID: containerID[:12]}}, want: []int{12}},
		"a missing container":            {targets: []Target{{ContainerID: "000000000000"}}, missing: []Target{{ContainerID: "000000000000"}}},
		"several, some missing": {
			targets: []Target{{PID: 99}, {Executable: "/bin/sh"}, {Cgroup: "/gone"}, {PID: 12}},
			want:    []int{11, 12}, missing: []Target{{PID: 99}, {Cgroup: "/gone"}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := village(t)
			m, err := NewMatcher(c.targets, collector)
			require.NoError(t, err)
			finder := NewFinder(Config{Access: mappedfile.Access{Root: h.root}, Tree: h.tree, Wanted: m}, false)
			found, missing, err := finder.Find(context.Background())
			require.NoError(t, err)
			var pids []int
			for _, f := range found {
				pids = append(pids, f.PID)
			}
			require.Equal(t, c.want, pids)
			require.Equal(t, c.missing, missing)

			table := h.table(func(cfg *Config) { cfg.Wanted = m })
			var wanted []int
			for pid := 10; pid <= 13; pid++ {
				if table.Lookup(pid, 0).Wanted {
					wanted = append(wanted, pid)
				}
			}
			require.Equal(t, c.want, wanted)
		})
	}
}

func TestFindReturnsThreadsAndStart(t *testing.T) {
	h := village(t)
	m, err := NewMatcher([]Target{{PID: 10}}, 0)
	require.NoError(t, err)
	found, _, err := NewFinder(Config{Access: mappedfile.Access{Root: h.root}, Wanted: m}, false).Find(context.Background())
	require.NoError(t, err)
	require.Equal(t, []Match{{procfs.Process{PID: 10, Start: 7}, 40}}, found)
}

func TestFindOwnUser(t *testing.T) {
	h := village(t)
	m, err := NewMatcher(nil, 13)
	require.NoError(t, err)
	found, missing, err := NewFinder(Config{Access: mappedfile.Access{Root: h.root}, Tree: h.tree, Wanted: m}, true).Find(context.Background())
	require.NoError(t, err)
	require.Empty(t, missing)
	require.Len(t, found, 2, "one with another saved user id may not be sampled")
}

func TestFindFails(t *testing.T) {
	_, _, err := NewFinder(Config{Access: mappedfile.Access{Root: t.TempDir()}}, false).Find(context.Background())
	require.ErrorContains(t, err, "look for processes in")

	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, _, err = NewFinder(Config{Access: mappedfile.Access{Root: village(t).root}}, false).Find(ctx)
	require.ErrorIs(t, err, context.Canceled)
}

func TestForkedChildIsWantedWhereItsParentIs(t *testing.T) {
	h := village(t)
	m, err := NewMatcher([]Target{{Executable: "/usr/lib/jvm/*/bin/java"}}, 0)
	require.NoError(t, err)
	table := h.table(func(cfg *Config) { cfg.Wanted = m })
	table.Fork(20, 10, 20, 10)
	require.True(t, table.Lookup(20, 0).Wanted)
	table.Exec(20, []byte("ls"))
	table.Mmap(20, mmapOf("/bin/ls"))
	require.False(t, table.Lookup(20, 0).Wanted)
	table.Exec(20, []byte("java"))
	table.Mmap(20, mmapOf("/usr/lib/jvm/17/bin/java"))
	require.True(t, table.Lookup(20, 0).Wanted)
}

func mmapOf(path string) *perfevent.Mmap {
	return &perfevent.Mmap{Address: 0x400000, Length: 0x1000, Inode: 1, Prot: 5, Filename: []byte(path)}
}
