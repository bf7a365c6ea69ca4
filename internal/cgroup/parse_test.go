// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// These are the containers and the pod that the tests and fixtures use.
var (
	idA    = "4f1c0c6b8a2e" + strings.Repeat("a", 52)
	idB    = "9d3e5f7a1b2c" + strings.Repeat("b", 52)
	podUID = "2c48913c-b29f-11e7-9350-020968147796"
)

func TestContainerID(t *testing.T) {
	uid := "pod" + podUID
	tests := []struct{ name, path, want string }{
		{"docker, cgroupfs", "/docker/" + idA, idA},
		{"docker, systemd", "/system.slice/docker-" + idA + ".scope", idA},
		{"docker, a parent of its own", "/batch/" + idA, idA},
		{"containerd by ctr", "/default/" + idA, idA},
		{"kubernetes, cgroupfs", "/kubepods/besteffort/" + uid + "/" + idA, idA},
		{"kubernetes, containerd, systemd", "/kubepods.slice/kubepods-x.slice/cri-containerd-" + idA + ".scope", idA},
		{"kubernetes, containerd, systemd names in cgroupfs", "/system.slice/containerd.service/kubepods-burstable-x.slice:cri-containerd:" + idA, idA},
		{"cri-o", "/kubepods.slice/crio-" + idA + ".scope", idA},
		{"cri-o, the container's own cgroup below", "/kubepods.slice/crio-" + idA + ".scope/container", idA},
		{"cri-o's monitor is not the container", "/kubepods.slice/crio-conmon-" + idA + ".scope", ""},
		{"podman", "/machine.slice/libpod-" + idA + ".scope/container", idA},
		{"podman, cgroupfs", "/libpod_parent/libpod-" + idA, idA},
		{"podman's monitor is not the container", "/machine.slice/libpod-conmon-" + idA + ".scope", ""},
		{"podman's pod is not a container", "/machine.slice/machine-libpod_pod_" + idA + ".slice", ""},
		{"a container in podman's pod", "/machine.slice/machine-libpod_pod_" + idA + ".slice/libpod-" + idB + ".scope", idB},
		{"ecs on instances", "/ecs/6cd8b2ab4cd14b07a0e5c5f0b7c1e7e3/" + idA, idA},
		{"ecs on fargate", "/ecs/cd189a933e5849daa93386466019ab50/cd189a933e5849daa93386466019ab50-2495160603", "cd189a933e5849daa93386466019ab50-2495160603"},
		{"garden", "/system.slice/garden.service/garden/70eb9e23-7a1b-4c3d-5e6f-a1b2", "70eb9e23-7a1b-4c3d-5e6f-a1b2"},
		{"nested: the host's", "/docker/" + idA + "/docker/" + idB, idA},
		{"kind: the node is the host's container", "/docker/" + idA + "/kubelet/kubepods/" + uid + "/" + idB, idA},
		{"a mount unit of an overlay", "/system.slice/var-lib-docker-overlay2-" + idA + "-merged.mount", ""},
		{"a service", "/system.slice/checkout.service", ""},
		{"upper case is no id", "/docker/" + strings.ToUpper(idA), ""},
		{"63 digits", "/docker/" + idA[1:], ""},
		{"65 digits", "/docker/a" + idA, ""},
		{"32 digits, as sandboxes have", "/process/72fc0864d1b57a013837c0f9e5581a95", ""},
		{"the root", "/", ""},
		{"nothing", "", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, ok := ContainerID(tt.path)
			require.Equal(t, tt.want, got)
			require.Equal(t, tt.want != "", ok)
		})
	}
}

func TestPodUID(t *testing.T) {
	under := strings.ReplaceAll(podUID, "-", "_")
	tests := []struct{ name, path, want string }{
		{"cgroupfs", "/kubepods/burstable/pod" + podUID + "/" + idA, podUID},
		{"systemd", "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod" + under + ".slice/cri-containerd-" + idA + ".scope", podUID},
		{"systemd, guaranteed", "/kubepods.slice/kubepods-pod" + under + ".slice/crio-" + idA + ".scope", podUID},
		{"systemd below a parent", "/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod" + under + ".slice", podUID},
		{"systemd's name in cgroupfs", "/system.slice/containerd.service/kubepods-burstable-pod" + under + ".slice:cri-containerd:" + idA, podUID},
		{"static pod", "/kubepods/besteffort/pod6cd8b2ab4cd14b07a0e5c5f0b7c1e7e3/" + idA, "6cd8b2ab4cd14b07a0e5c5f0b7c1e7e3"},
		{"no pod", "/docker/" + idA, ""},
		{"podman", "/machine.slice/machine-libpod_pod_" + idA + ".slice", ""},
		{"a service of that name", "/system.slice/podsync.service", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, ok := PodUID(tt.path)
			require.Equal(t, tt.want, got)
			require.Equal(t, tt.want != "", ok)
		})
	}
}

func TestGlob(t *testing.T) {
	tests := []struct {
		name, glob, path string
		want             bool
	}{
		{"itself", "/system.slice/a.service", "/system.slice/a.service", true},
		{"under it", "/system.slice/a.service", "/system.slice/a.service/worker/1", true},
		{"above it", "/system.slice/a.service", "/system.slice", false},
		{"a longer name", "/system.slice/a", "/system.slice/ab", false},
		{"without a leading slash", "system.slice", "/system.slice/x", true},
		{"a trailing slash", "/system.slice/", "/system.slice/x", true},
		{"star", "/system.slice/*.service", "/system.slice/a.service/b", true},
		{"a star stays within a name", "/*.service", "/system.slice/a.service", false},
		{"two stars", "/**/a.service", "/x/y/a.service/z", true},
		{"alternatives", "/{a,b}.slice", "/b.slice", true},
		{"systemd's escapes letter for letter", `/system-foo\x2dbar.slice`, `/system-foo\x2dbar.slice/a`, true},
		{"everything", "/", "/anything", true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			g, err := ParseGlob(tt.glob)
			require.NoError(t, err)
			require.Equal(t, tt.want, g.Match(tt.path))
		})
	}
	for _, bad := range []string{"", "/[", "/{a"} {
		_, err := ParseGlob(bad)
		require.Error(t, err, bad)
	}
}

func TestPathsOfTheFileSystemMatchNoCgroup(t *testing.T) {
	for path, meant := range map[string]string{
		"/sys/fs/cgroup/mine/*":                  "write /mine/*",
		"/sys/fs/cgroup/cpu,cpuacct/docker/*":    "write /docker/*",
		"/sys/fs/cgroup/unified/a.slice/b.scope": "write /a.slice/b.scope",
	} {
		_, err := ParseGlob(path)
		require.ErrorContains(t, err, meant)
	}
	_, err := ParseGlob("/sys/fs/cgroups")
	require.NoError(t, err, "a cgroup may have this path")
}

func TestResolve(t *testing.T) {
	at := func(s string) namespacePath {
		p, err := parseNamespacePath(s)
		require.NoError(t, err)
		return p
	}
	tests := []struct {
		name, mounted string
		above         []string
		path, want    string
		outside       bool
	}{
		{"no namespace", "/", nil, "/a/b", "/a/b", false},
		{"no namespace, the root", "/", nil, "/", "/", false},
		{"the host's tree: itself", "/../..", []string{"docker", "me"}, "/", "/docker/me", false},
		{"the host's tree: below itself", "/../..", []string{"docker", "me"}, "/x", "/docker/me/x", false},
		{"the host's tree: a sibling", "/../..", []string{"docker", "me"}, "/../you", "/docker/you", false},
		{"the host's tree: elsewhere", "/../..", []string{"docker", "me"}, "/../../system.slice/a", "/system.slice/a", false},
		{"the host's tree: its root", "/../..", []string{"docker", "me"}, "/../..", "/", false},
		{"own cgroup unknown: elsewhere still", "/../..", nil, "/../../system.slice/a", "/system.slice/a", false},
		{"own cgroup unknown: a sibling", "/../..", nil, "/../you", "", true},
		{"only the own part is mounted: itself", "/", nil, "/", "/", false},
		{"only the own part is mounted: elsewhere", "/", nil, "/../you", "", true},
		{"a part is mounted as the root: itself", "/docker/me", nil, "/docker/me/x", "/x", false},
		{"a part is mounted as the root: a longer name", "/docker/me", nil, "/docker/me2", "", true},
		{"a sibling is mounted: itself", "/../you", nil, "/../you/x", "/x", false},
		{"a sibling is mounted: own", "/../you", nil, "/x", "", true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tr := &mount{namespacePath: at(tt.mounted), above: tt.above}
			got, err := tr.resolve(at(tt.path))
			if tt.outside {
				require.ErrorIs(t, err, ErrOutside)
				return
			}
			require.NoError(t, err)
			require.Equal(t, tt.want, got)
		})
	}
}

func TestCountCPUs(t *testing.T) {
	for list, want := range map[string]int{"0": 1, "0-7\n": 8, "0-3,7": 5, "": 0, "\n": 0, "1,3,5": 3, "0-0": 1} {
		got, ok := countCPUs([]byte(list))
		require.True(t, ok, list)
		require.Equal(t, want, got, list)
	}
	for _, list := range []string{"a", "3-1", "0-", ",", "0,", "0-99999999999999999999", "0-70000", "1 2"} {
		_, ok := countCPUs([]byte(list))
		require.False(t, ok, list)
	}
}

func TestParseMountinfo(t *testing.T) {
	got := parseMountinfo([]byte(strings.Join([]string{
		`33 25 0:28 /../.. /host\040root/sys/fs/cgroup rw,relatime shared:9 master:2 - cgroup2 cgroup2 rw,nsdelegate`,
		`41 30 0:41 /docker/me /sys/fs/cgroup/cpu,cpuacct ro - cgroup cgroup rw,cpu,cpuacct`,
		`42 30 0:42 / /sys/fs/cgroup/blkio ro - cgroup cgroup rw,blkio`,
		`43 30 0:43 a/../b /broken ro - cgroup2 cgroup2 rw`,
		`short`,
		``,
	}, "\n")), "/r")
	require.Equal(t, []mount{
		{dir: "/r/host root/sys/fs/cgroup", device: "0:28", namespacePath: namespacePath{up: 2}, hierarchies: []Hierarchy{V2Tree}},
		{dir: "/r/sys/fs/cgroup/cpu,cpuacct", device: "0:41", namespacePath: namespacePath{rest: "/docker/me"}, hierarchies: []Hierarchy{CPU, CPUAcct}},
	}, got)
}

func FuzzParsePaths(f *testing.F) {
	f.Add([]byte("11:cpu,cpuacct:/docker/x\n1:name=systemd:/\n0::/../../a (deleted)\n"))
	f.Add([]byte("0::/\n"))
	f.Add([]byte("0::/a/../b\n"))
	f.Add([]byte("x"))
	t := &Tree{}
	for h := range t.trees {
		t.trees[h] = &mount{dir: "/m", namespacePath: namespacePath{up: 1}, above: []string{"me"}}
	}
	f.Fuzz(func(tt *testing.T, b []byte) {
		p, err := t.ParsePaths(b)
		if err != nil {
			return
		}
		for h, path := range p {
			if path != "" && (path[0] != '/' || strings.Contains(path+"/", "/../")) {
				tt.Errorf("%s: %q leaves the tree", Hierarchy(h), path)
			}
		}
		u := t.GroupOf(p)
		if u.ID != "" && u.Cgroup == "" {
			tt.Errorf("%+v has no cgroup", u)
		}
	})
}

func FuzzMountinfo(f *testing.F) {
	f.Add([]byte(`33 25 0:28 /../.. /host\040root rw - cgroup2 cgroup2 rw,nsdelegate`))
	f.Add([]byte(`41 30 0:41 / /sys/fs/cgroup/cpu,cpuacct ro - cgroup cgroup rw,cpu,cpuacct`))
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, m := range parseMountinfo(b, "/root") {
			if !Under(m.dir, "/root") {
				t.Errorf("%q is outside of the prefix", m.dir)
			}
		}
	})
}

func FuzzCountCPUs(f *testing.F) {
	f.Add([]byte("0-3,7\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if n, ok := countCPUs(b); ok && (n < 0 || n > 1<<16) {
			t.Errorf("%d CPUs", n)
		}
	})
}
