// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package cgroup

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/hotprofile/hotprofile/test/hosttest"
)

const aUser = 1000

// claimant returns a cgroup with a process. The cgroup's name contains a container's id.
// If user is not 0, the cgroup is below a cgroup that is delegated to this user.
func claimant(t *testing.T, tree *Tree, id string, user int) *hosttest.Cgroup {
	t.Helper()
	c := hosttest.NewContainer(t, id, user)
	start(t, tree, c, "while :; do sleep 60; done")
	return c
}

// whose finds the container with the given id, and checks that all ways of searching find
// the same cgroup. It returns the path of the container's cgroup, and the paths of the
// other cgroups whose names contain the id.
func whose(t *testing.T, tree *Tree, id string, among ...*hosttest.Cgroup) (path string, claims []string) {
	t.Helper()
	g, ok, err := tree.FindContainer(id)
	require.NoError(t, err)
	require.True(t, ok)
	s := tree.NewScanner()
	groups, err := s.Groups()
	require.NoError(t, err)
	n := slices.IndexFunc(groups, func(g Group) bool { return g.ContainerID == id })
	require.GreaterOrEqual(t, n, 0)
	require.Equal(t, g.Cgroup, groups[n].Cgroup, "the scan")
	for _, c := range s.Claims() {
		if c.ContainerID == id {
			require.Equal(t, g.Cgroup, c.Container)
			claims = append(claims, c.Cgroup)
		}
	}
	for _, c := range among {
		_, truer := tree.RealContainer(g, c.Path)
		require.False(t, truer, c.Path)
		if other, ok := tree.GroupAt(c.Path); ok && c.Path != g.Cgroup {
			truest, truer := tree.RealContainer(other, g.Cgroup)
			require.True(t, truer, c.Path)
			require.Equal(t, g.Cgroup, truest.Cgroup)
		}
	}
	return g.Cgroup, claims
}

// TestAContainerIsTheCgroupThatUsersCouldNotMake checks that the owner of a cgroup
// decides, because a user can give a cgroup any name.
func TestAContainerIsTheCgroupThatUsersCouldNotMake(t *testing.T) {
	tree := openHost(t)
	id := strings.Repeat("c1a", 22)[:64]
	first := claimant(t, tree, id, aUser)
	path, claims := whose(t, tree, id, first)
	require.Equal(t, first.Path, path, "a user's own container is one, too")
	require.Empty(t, claims)

	second := claimant(t, tree, id, aUser+1)
	path, claims = whose(t, tree, id, first, second)
	require.Equal(t, first.Path, path, "the older one")
	require.Equal(t, []string{second.Path}, claims)

	roots := claimant(t, tree, id, 0)
	path, claims = whose(t, tree, id, first, second, roots)
	require.Equal(t, roots.Path, path, "what only root could make")
	require.ElementsMatch(t, []string{first.Path, second.Path}, claims)

	later := claimant(t, tree, id, 0)
	path, _ = whose(t, tree, id, first, second, roots, later)
	require.Equal(t, roots.Path, path, "the older one of root's")

	other := claimant(t, tree, id[:12]+strings.Repeat("0", 52), aUser)
	g, ok, err := tree.FindContainer(id[:12])
	require.NoError(t, err, "a user's cgroup does not make a prefix ambiguous")
	require.True(t, ok)
	require.Equal(t, roots.Path, g.Cgroup)

	gone, ok := tree.GroupAt(roots.Path)
	require.True(t, ok)
	for _, c := range []*hosttest.Cgroup{roots, later, other} {
		c.Remove(t)
	}
	path, _ = whose(t, tree, id, first, second)
	require.Equal(t, first.Path, path, "the name of a container that is gone is free")
	truer, ok := tree.RealContainer(gone, second.Path)
	require.True(t, ok)
	require.Equal(t, second.Path, truer.Cgroup)
	for _, path := range []string{"", "/", "relative", "/../etc", roots.Path, first.Path + "/", first.Path + "/../" + id} {
		_, ok := tree.RealContainer(Group{ID: id, ContainerID: id, Cgroup: first.Path, by: V2Tree}, path)
		require.False(t, ok, path)
	}
}

// TestACgroupPerHierarchyIsOneContainer covers hosts with several hierarchies. A
// container engine may use a different path in each hierarchy.
func TestACgroupPerHierarchyIsOneContainer(t *testing.T) {
	tree := openHost(t)
	if tree.Mode() != Hybrid {
		t.Skip("one hierarchy here")
	}
	id := strings.Repeat("c1b", 22)[:64]
	unified, cpu := claimant(t, tree, id, 0), claimant(t, tree, id, 0)
	cmd := unified.Command("/bin/sh", "-c", "echo $$ > "+tree.Mount(CPU)+cpu.Path+"/cgroup.procs; while :; do sleep 60; done")
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	var g Group
	require.Eventually(t, func() bool {
		p, err := tree.PathsOf(cmd.Process.Pid)
		g = tree.GroupOf(p)
		return err == nil && p[V2Tree] == unified.Path && p[CPU] == cpu.Path
	}, time.Minute, time.Millisecond)
	require.True(t, g.Has(unified.Path))
	require.True(t, g.Has(cpu.Path))
	// These are the paths of another process of the container. Only the CPU hierarchy
	// shows that the process belongs to the container.
	elsewhere := Paths{V2Tree: "/system.slice/engine.service", CPU: cpu.Path}
	require.True(t, g.Same(tree.GroupOf(elsewhere)))
	require.True(t, tree.GroupOf(elsewhere).Same(g))
	require.False(t, g.Same(tree.GroupOf(Paths{V2Tree: "/user/docker-" + id + ".scope", CPU: "/user"})))
}
