// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package cgroup

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// fixture unpacks testdata/NAME.txt into a directory and returns the directory. In the
// text, a line "-- PATH --" precedes the content of each file.
func fixture(t testing.TB, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", name+".txt"))
	require.NoError(t, err)
	root := t.TempDir()
	var path string
	for line := range strings.Lines(string(b)) {
		if p, ok := strings.CutPrefix(line, "-- "); ok {
			path = filepath.Join(root, strings.TrimSuffix(p, " --\n"))
			require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
			require.NoError(t, os.WriteFile(path, nil, 0o644))
			continue
		}
		if path != "" {
			f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
			require.NoError(t, err)
			_, err = f.WriteString(line)
			require.NoError(t, err)
			require.NoError(t, f.Close())
		}
	}
	return root
}

func openFixture(t testing.TB, name string) *Tree {
	t.Helper()
	tree, err := Open(fixture(t, name))
	require.NoError(t, err)
	return tree
}

func TestModeFollowsFromTheMounts(t *testing.T) {
	for name, want := range map[string]Mode{
		"v2-docker":      V2,
		"v2-kubernetes":  V2,
		"v1-kubernetes":  V1,
		"hybrid-systemd": Hybrid,
	} {
		t.Run(name, func(t *testing.T) {
			require.Equal(t, want, openFixture(t, name).Mode())
		})
	}
}

func TestGroupOfProcess(t *testing.T) {
	const (
		checkout = "/system.slice/checkout.service"
		pods     = "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod2c48913c_b29f_11e7_9350_020968147796.slice"
	)
	kubeV1 := "/kubepods/burstable/pod" + podUID + "/" + idA
	everywhere := func(path string, hs ...Hierarchy) (p Paths) {
		for _, h := range hs {
			p[h] = path
		}
		return p
	}
	with := func(p Paths, h Hierarchy, path string) Paths {
		p[h] = path
		return p
	}
	hybrid := []Hierarchy{V2Tree, CPU, CPUAcct, CPUSet, Systemd}
	tests := []struct {
		name, fixture string
		pid           int
		want          Group
	}{
		{
			"v2: a service is its leaf", "v2-docker", 100,
			Group{ID: checkout, Cgroup: checkout, Paths: everywhere(checkout, V2Tree)},
		},
		{
			"v2: a process in the root has no group", "v2-docker", 2,
			Group{Paths: everywhere("/", V2Tree)},
		},
		{
			"v2: a container is named by its id", "v2-docker", 300,
			Group{
				ID: idA, ContainerID: idA, Cgroup: "/system.slice/docker-" + idA + ".scope",
				Paths: everywhere("/system.slice/docker-"+idA+".scope", V2Tree),
			},
		},
		{
			"v2: a service inside a container is the container", "v2-docker", 400,
			Group{
				ID: idB, ContainerID: idB, Cgroup: "/system.slice/docker-" + idB + ".scope",
				Paths: everywhere("/system.slice/docker-"+idB+".scope", V2Tree),
			},
		},
		{
			"v2: of a removed cgroup the name remains", "v2-docker", 500,
			Group{ID: "/system.slice/gone.service", Cgroup: "/system.slice/gone.service", Paths: everywhere("/system.slice/gone.service", V2Tree)},
		},
		{
			"v2 kubernetes: container and pod", "v2-kubernetes", 1001,
			Group{
				ID: idB, ContainerID: idB, PodUID: podUID, Cgroup: pods + "/cri-containerd-" + idB + ".scope",
				Paths: everywhere(pods+"/cri-containerd-"+idB+".scope", V2Tree),
			},
		},
		{
			"v1 kubernetes: the cpu path names the group", "v1-kubernetes", 1000,
			Group{
				ID: idA, ContainerID: idA, PodUID: podUID, Cgroup: kubeV1, by: CPU,
				Paths: everywhere(kubeV1, CPU, CPUAcct, CPUSet, Memory, PerfEvent, Systemd),
			},
		},
		{
			"hybrid: the v2 path names the group, other paths differ", "hybrid-systemd", 100,
			Group{ID: checkout, Cgroup: checkout, Paths: with(with(everywhere("/", hybrid...), V2Tree, checkout), Systemd, checkout)},
		},
		{
			"hybrid: a container that the v2 tree does not know", "hybrid-systemd", 300,
			Group{
				ID: idA, ContainerID: idA, Cgroup: "/docker/" + idA, by: CPU,
				Paths: with(everywhere("/docker/"+idA, hybrid...), V2Tree, "/system.slice/docker.service"),
			},
		},
		{
			"hybrid: only systemd's own hierarchy names it", "hybrid-systemd", 600,
			Group{ID: "/user.slice", Cgroup: "/user.slice", by: Systemd, Paths: with(everywhere("/", hybrid...), Systemd, "/user.slice")},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tree := openFixture(t, tt.fixture)
			p, err := tree.PathsOf(tt.pid)
			require.NoError(t, err)
			require.Equal(t, tt.want, tree.GroupOf(p))
		})
	}
}

func TestPathsOfFails(t *testing.T) {
	tree := openFixture(t, "v2-docker")
	_, err := tree.PathsOf(31337)
	require.ErrorIs(t, err, os.ErrNotExist)
	_, err = tree.PathsOf(501)
	require.ErrorIs(t, err, ErrOutside, "above the mounted root")
}

func TestGroupsAreThePopulatedCgroups(t *testing.T) {
	for name, want := range map[string][]string{
		"v2-docker":      {"/init.scope", "/system.slice/checkout.service", "/system.slice/docker.service", idA, idB},
		"v2-kubernetes":  {idA, idB},
		"v1-kubernetes":  {idA, idB},
		"hybrid-systemd": {"/system.slice/checkout.service", "/system.slice/docker.service", "/user.slice", idA},
	} {
		t.Run(name, func(t *testing.T) {
			tree := openFixture(t, name)
			groups, err := tree.NewScanner().Groups()
			require.NoError(t, err)
			var got []string
			for _, u := range groups {
				got = append(got, u.ID)
			}
			require.Equal(t, want, got)
		})
	}
}

func TestGroupsReportsWhatItCannotList(t *testing.T) {
	tree := openFixture(t, "v2-docker")
	require.NoError(t, os.RemoveAll(tree.Mount(V2Tree)))
	_, err := tree.NewScanner().Groups()
	require.ErrorIs(t, err, os.ErrNotExist)
}

func TestFindContainer(t *testing.T) {
	for _, name := range []string{"v2-docker", "v2-kubernetes", "v1-kubernetes", "hybrid-systemd"} {
		t.Run(name, func(t *testing.T) {
			tree := openFixture(t, name)
			groups, err := tree.NewScanner().Groups()
			require.NoError(t, err)
			for _, u := range groups {
				if u.ContainerID == "" {
					continue
				}
				for _, id := range []string{u.ContainerID, u.ContainerID[:12]} {
					got, ok, err := tree.FindContainer(id)
					require.NoError(t, err)
					require.True(t, ok)
					require.Equal(t, u, got)
				}
			}
			_, ok, err := tree.FindContainer(strings.Repeat("d", 64))
			require.NoError(t, err)
			require.False(t, ok)
		})
	}
	t.Run("a short prefix is refused", func(t *testing.T) {
		_, _, err := openFixture(t, "v2-docker").FindContainer("4f1c0c6b8a2")
		require.ErrorContains(t, err, "at least 12")
	})
	t.Run("a prefix of two containers is refused", func(t *testing.T) {
		tree := openFixture(t, "v2-docker")
		twin := idA[:63] + "0"
		require.NoError(t, os.Mkdir(filepath.Join(tree.Mount(V2Tree), "docker-"+twin+".scope"), 0o755))
		_, _, err := tree.FindContainer(idA[:12])
		require.ErrorContains(t, err, "several containers")
		got, ok, err := tree.FindContainer(twin)
		require.NoError(t, err)
		require.True(t, ok)
		require.Equal(t, "/docker-"+twin+".scope", got.Cgroup)
	})
}

func TestOwn(t *testing.T) {
	tests := []struct {
		name, fixture string
		pid           int
		h             Hierarchy
		want          error
	}{
		{"a service's v2 cgroup", "v2-docker", 100, V2Tree, nil},
		{"a container's, though there are cgroups below", "v2-docker", 400, V2Tree, nil},
		{"a process in the root has none", "v2-docker", 2, V2Tree, InRoot},
		{"no v1 hierarchy on a v2 host", "v2-docker", 100, CPU, NotMounted},
		{"a container's in every v1 hierarchy", "v1-kubernetes", 1000, CPUSet, nil},
		{"a service without CPU accounting is in the root", "hybrid-systemd", 100, CPUAcct, InRoot},
		{"a service that is alone in its slice's cgroup", "hybrid-systemd", 200, CPUAcct, nil},
		{"the engine's service is not the container's", "hybrid-systemd", 300, V2Tree, Shared},
		{"the engine's service holds a container's processes", "hybrid-systemd", 200, V2Tree, Shared},
		{"systemd's hierarchy tells the two apart", "hybrid-systemd", 200, Systemd, nil},
		{"a hierarchy that this host lacks", "hybrid-systemd", 200, Memory, NotMounted},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tree := openFixture(t, tt.fixture)
			p, err := tree.PathsOf(tt.pid)
			require.NoError(t, err)
			_, err = tree.Own(tree.GroupOf(p), tt.h)
			require.Equal(t, tt.want, err)
		})
	}
	t.Run("a leaf that got populated cgroups below it", func(t *testing.T) {
		tree := openFixture(t, "v2-docker")
		p, err := tree.PathsOf(100)
		require.NoError(t, err)
		child := filepath.Join(tree.Mount(V2Tree), p[V2Tree], "worker")
		require.NoError(t, os.Mkdir(child, 0o755))
		procs := filepath.Join(child, "cgroup.procs")
		require.NoError(t, os.WriteFile(procs, nil, 0o644))
		_, err = tree.Own(tree.GroupOf(p), V2Tree)
		require.NoError(t, err, "an empty one adds nothing")
		require.NoError(t, os.WriteFile(procs, []byte("900\n"), 0o644))
		_, err = tree.Own(tree.GroupOf(p), V2Tree)
		require.Equal(t, Shared, err)
	})
}

func TestMatchAndPerfDir(t *testing.T) {
	tests := []struct {
		name, fixture, glob string
		want                []string
		dir                 string // directory of the first match, below sys/fs/cgroup
	}{
		{"a service", "v2-docker", "/system.slice/checkout.service", []string{"/system.slice/checkout.service"}, "system.slice/checkout.service"},
		{"a slice stands for all below it", "v2-docker", "/system.*", []string{"/system.slice"}, "system.slice"},
		{"services by a star", "v2-docker", "/*/*.service", []string{"/system.slice/checkout.service", "/system.slice/docker.service", "/system.slice/empty.service"}, "system.slice/checkout.service"},
		{"nothing", "v2-docker", "/nothing", nil, ""},
		{"the perf_event hierarchy of v1", "v1-kubernetes", "/kubepods/**/" + idA, []string{"/kubepods/burstable/pod" + podUID + "/" + idA}, "perf_event/kubepods/burstable/pod" + podUID + "/" + idA},
		{"the v2 tree of a hybrid host", "hybrid-systemd", "/system.slice/checkout.service", []string{"/system.slice/checkout.service"}, "unified/system.slice/checkout.service"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tree := openFixture(t, tt.fixture)
			g, err := ParseGlob(tt.glob)
			require.NoError(t, err)
			groups, err := tree.Match(g)
			require.NoError(t, err)
			var got []string
			for _, u := range groups {
				got = append(got, u.Cgroup)
			}
			require.Equal(t, tt.want, got)
			if len(groups) > 0 {
				dir, err := tree.PerfDir(groups[0])
				require.NoError(t, err)
				require.Equal(t, filepath.Join(tree.Root(), "sys/fs/cgroup", tt.dir), dir)
			}
		})
	}
	t.Run("a container that is not in the v2 tree has none", func(t *testing.T) {
		tree := openFixture(t, "hybrid-systemd")
		u, ok, err := tree.FindContainer(idA)
		require.NoError(t, err)
		require.True(t, ok)
		_, err = tree.PerfDir(u)
		require.Equal(t, Shared, err)
	})
}

func TestOpenErrorNamesWhatWasLookedFor(t *testing.T) {
	_, err := Open(t.TempDir())
	require.ErrorContains(t, err, "root_path")
	require.ErrorContains(t, err, "sys/fs/cgroup")
}

func TestGroupAt(t *testing.T) {
	tests := []struct {
		name, fixture, path, want string
	}{
		{"a service", "v2-docker", "/system.slice/checkout.service", "/system.slice/checkout.service"},
		{"inside a container", "v2-docker", "/system.slice/docker-" + idB + ".scope/system.slice/app.service", idB},
		{"in the cpu hierarchy only", "hybrid-systemd", "/docker/" + idA, idA},
		{"in systemd's hierarchy only", "hybrid-systemd", "/user.slice", "/user.slice"},
		{"no such cgroup", "v2-docker", "/system.slice/nothing.service", ""},
		{"the root", "v2-docker", "/", ""},
		{"a relative path", "v2-docker", "system.slice", ""},
		{"a path that leads out of the tree", "v2-docker", "/../../proc", ""},
		{"a path that leads out and in again", "v2-docker", "/../cgroup/system.slice", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			u, ok := openFixture(t, tt.fixture).GroupAt(tt.path)
			require.Equal(t, tt.want != "", ok)
			require.Equal(t, tt.want, u.ID)
		})
	}
}
