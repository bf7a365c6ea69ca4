// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package cgroup

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/hotprofile/hotprofile/internal/cgroup/openfile"
)

func groupOfPID(t testing.TB, tree *Tree, pid int) Group {
	t.Helper()
	p, err := tree.PathsOf(pid)
	require.NoError(t, err)
	return tree.GroupOf(p)
}

func TestCPUTimeOfFixtures(t *testing.T) {
	tests := []struct {
		name, fixture string
		pid           int
		want          time.Duration
		err           error
	}{
		{"v2 cpu.stat", "v2-docker", 300, 1234567 * time.Microsecond, nil},
		{"the container's, not that of the service inside", "v2-docker", 400, 7 * time.Second, nil},
		{"v1 cpuacct.usage", "v1-kubernetes", 1000, 3 * time.Second, nil},
		{"the v2 tree of a hybrid host", "hybrid-systemd", 100, 2500 * time.Millisecond, nil},
		{"a container in v1 hierarchies only", "hybrid-systemd", 300, 1500 * time.Millisecond, nil},
		{"a service that shares its v2 cgroup has a v1 one", "hybrid-systemd", 200, 4 * time.Second, nil},
		{"never the root's figures", "hybrid-systemd", 600, 0, InRoot},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tree := openFixture(t, tt.fixture)
			r := tree.NewReader(openfile.NewSet(8))
			defer r.Close()
			c, err := r.OpenCPUTime(groupOfPID(t, tree, tt.pid))
			require.Equal(t, tt.err, err)
			if err != nil {
				return
			}
			defer c.Close()
			got, replaced, err := c.Read(time.Now())
			require.NoError(t, err)
			require.False(t, replaced)
			require.Equal(t, tt.want, got)
		})
	}
}

func TestCPUTimeFailsRatherThanReadingZero(t *testing.T) {
	for name, content := range map[string]string{
		"empty":           "",
		"no usage":        "user_usec 1\n",
		"no number":       "usage_usec x\n",
		"too large":       "usage_usec 99999999999999999999\n",
		"overflows in ns": "usage_usec 18446744073709551\n",
	} {
		t.Run(name, func(t *testing.T) {
			tree := openFixture(t, "v2-docker")
			r := tree.NewReader(openfile.NewSet(8))
			defer r.Close()
			u := groupOfPID(t, tree, 300)
			c, err := r.OpenCPUTime(u)
			require.NoError(t, err)
			defer c.Close()
			require.NoError(t, os.WriteFile(filepath.Join(tree.Mount(V2Tree), u.Cgroup, "cpu.stat"), []byte(content), 0o644))
			_, _, err = c.Read(time.Now())
			require.ErrorContains(t, err, "cpu.stat")
		})
	}
}

func TestCPUTimeOfCgroupMadeAnew(t *testing.T) {
	for name, keep := range map[string]int{"kept open": 8, "opened each time": 0} {
		t.Run(name, func(t *testing.T) {
			tree := openFixture(t, "v2-docker")
			files := openfile.NewSet(keep)
			r := tree.NewReader(files)
			defer r.Close()
			u := groupOfPID(t, tree, 300)
			c, err := r.OpenCPUTime(u)
			require.NoError(t, err)
			defer c.Close()
			dir := filepath.Join(tree.Mount(V2Tree), u.Cgroup)
			require.NoError(t, os.Rename(dir, dir+".old")) // keeps the inodes in use, so that they are not reused
			c.stat.files[0].Close()                        // a removed cgroup's file has to be opened again, unlike this plain file
			_, _, err = c.Read(time.Now())
			require.Equal(t, ErrGone, err)
			require.NoError(t, os.Mkdir(dir, 0o755))
			_, _, err = c.Read(time.Now())
			require.ErrorIs(t, err, os.ErrNotExist)
			require.NoError(t, os.WriteFile(filepath.Join(dir, "cpu.stat"), []byte("usage_usec \n"), 0o644))
			_, _, err = c.Read(time.Now())
			require.Error(t, err)
			require.NoError(t, os.WriteFile(filepath.Join(dir, "cpu.stat"), []byte("usage_usec 9000000\n"), 0o644))
			used, replaced, err := c.Read(time.Now())
			require.NoError(t, err)
			require.True(t, replaced, "the failed reading before does not hide it")
			require.Equal(t, 9*time.Second, used)
			_, replaced, err = c.Read(time.Now())
			require.NoError(t, err)
			require.False(t, replaced)
		})
	}
}

func TestCapacityOfFixtures(t *testing.T) {
	const pod = "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod2c48913c_b29f_11e7_9350_020968147796.slice"
	tests := []struct {
		name, fixture string
		pid           int
		want          Capacity
	}{
		{"its own quota, a fraction", "v2-docker", 300, Capacity{1.5, ByQuota, "/system.slice/docker-" + idA + ".scope"}},
		{"an ancestor's quota", "v2-docker", 100, Capacity{6, ByQuota, "/system.slice"}},
		{"the cpuset is least", "v2-docker", 400, Capacity{1, ByCPUSet, "/system.slice/docker-" + idB + ".scope"}},
		{"nothing but the CPUs online", "v2-docker", 2, Capacity{Cores: 8, By: ByOnline}},
		{"the pod's quota", "v2-kubernetes", 1000, Capacity{0.5, ByQuota, pod}},
		{"the container's below the pod's", "v2-kubernetes", 1001, Capacity{0.2, ByQuota, pod + "/cri-containerd-" + idB + ".scope"}},
		{"v1: cpuset below a quota with a period of its own", "v1-kubernetes", 1000, Capacity{2, ByCPUSet, "/kubepods/burstable/pod" + podUID + "/" + idA}},
		{"v1: -1 is no quota, the pod's holds", "v1-kubernetes", 1003, Capacity{2.5, ByQuota, "/kubepods/burstable/pod" + podUID}},
		{"hybrid: the v1 quota", "hybrid-systemd", 300, Capacity{1.5, ByQuota, "/docker/" + idA}},
		{"hybrid: the quota of a shared cgroup binds too", "hybrid-systemd", 200, Capacity{4, ByQuota, "/system.slice"}},
		{"hybrid: no quota", "hybrid-systemd", 100, Capacity{Cores: 8, By: ByOnline}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tree := openFixture(t, tt.fixture)
			files := openfile.NewSet(100)
			r := tree.NewReader(files)
			c, err := r.OpenCPUCapacity(groupOfPID(t, tree, tt.pid).Paths)
			require.NoError(t, err)
			got, err := c.Read(time.Now())
			require.NoError(t, err)
			require.Equal(t, tt.want, got)
			c.Close()
			r.Close()
			require.Zero(t, files.Kept(), "every file is closed")
			require.Empty(t, r.quotas)
			require.Empty(t, r.cpusets)
		})
	}
}

func TestCapacityFollowsItsFiles(t *testing.T) {
	tree := openFixture(t, "v2-docker")
	r := tree.NewReader(openfile.NewSet(100))
	defer r.Close()
	u := groupOfPID(t, tree, 300)
	c, err := r.OpenCPUCapacity(u.Paths)
	require.NoError(t, err)
	defer c.Close()
	now := time.Now()
	file := filepath.Join(tree.Mount(V2Tree), u.Cgroup, "cpu.max")
	for _, step := range []struct {
		name, content string
		want          float64
	}{
		{"as it was", "150000 100000\n", 1.5},
		{"lowered", "25000 100000\n", 0.25},
		{"another period", "25000 50000\n", 0.5},
		{"removed: the cpuset holds", "max 100000\n", 5},
		{"set again", "300000 100000\n", 3},
	} {
		require.NoError(t, os.WriteFile(file, []byte(step.content), 0o644))
		now = now.Add(time.Second)
		got, err := c.Read(now)
		require.NoError(t, err, step.name)
		require.Equal(t, step.want, got.Cores, step.name)
	}
	for _, bad := range []string{"", "x 100000\n", "100000\n", "100000 0\n", "100000 x\n"} {
		require.NoError(t, os.WriteFile(file, []byte(bad), 0o644))
		now = now.Add(time.Second)
		_, err := c.Read(now)
		require.ErrorContains(t, err, "cpu.max", "%q is an error, not a capacity", bad)
	}
	require.NoError(t, os.WriteFile(file, []byte("max 100000\n"), 0o644))
	now = now.Add(time.Second)
	require.NoError(t, os.WriteFile(filepath.Join(tree.Root(), "sys/devices/system/cpu/online"), []byte("0-2\n"), 0o644))
	got, err := c.Read(now)
	require.NoError(t, err)
	require.Equal(t, Capacity{Cores: 3, By: ByOnline}, got, "CPUs were taken offline")
}

func TestLimitsAreReadOnceForAllThatShareThem(t *testing.T) {
	tree := openFixture(t, "v2-kubernetes")
	r := tree.NewReader(openfile.NewSet(100))
	defer r.Close()
	a, err := r.OpenCPUCapacity(groupOfPID(t, tree, 1000).Paths)
	require.NoError(t, err)
	defer a.Close()
	b, err := r.OpenCPUCapacity(groupOfPID(t, tree, 1001).Paths)
	require.NoError(t, err)
	require.Len(t, r.quotas, 5, "three ancestors in common and two containers")
	b.Close()
	require.Len(t, r.quotas, 4)
	got, err := a.Read(time.Now())
	require.NoError(t, err)
	require.Equal(t, 0.5, got.Cores, "what another gave up is still open")
}
