// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package identify

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/hotprofile/hotprofile/internal/cgroup"
)

func write(t *testing.T, file, content string) {
	t.Helper()
	require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o755))
	require.NoError(t, os.WriteFile(file, []byte(content), 0o600))
}

const (
	containerA = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
	containerB = "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"
	service    = "/system.slice/checkout.service"
)

var epoch = time.Date(2026, 8, 1, 12, 0, 0, 0, time.UTC)

func noneWatched(string) (cgroup.Group, bool) { return cgroup.Group{}, false }

func TestHostKnowsItsNames(t *testing.T) {
	root := t.TempDir()
	write(t, filepath.Join(root, "etc/hostname"), "node-7.example.org\n")
	write(t, filepath.Join(root, "etc/machine-id"), "0123456789abcdef0123456789abcdef\n")
	write(t, filepath.Join(root, "var/lib/cloud/data/instance-id"), "i-0abc\n")
	h := NewHost(root, nil, noneWatched, time.Now)
	own, err := os.Hostname()
	require.NoError(t, err)
	for name, want := range map[string]bool{
		own: true, "node-7.example.org": true, "NODE-7.example.org": true, "node-7": true,
		"node-7.example.com": false, "node-8": false, "node": false, "example.org": false, "": false,
	} {
		require.Equal(t, want, h.IsName(name), name)
	}
	for id, want := range map[string]bool{
		"0123456789ABCDEF0123456789abcdef": true, "i-0abc": true, "i-0abd": false, "": false,
	} {
		require.Equal(t, want, h.IsID(id), id)
	}
}

// TestContainersThatAreNotHereAreNotLookedForAllTheTime checks that searches
// for missing containers are limited. Other programs choose the ids, and each
// search walks the whole tree.
func TestContainersThatAreNotHereAreNotLookedForAllTheTime(t *testing.T) {
	now := epoch
	h := NewHost("/", nil, noneWatched, func() time.Time { return now })
	h.missing[containerA] = now.Add(missingFor)
	require.False(t, h.mayWalk(containerA, now))
	require.True(t, h.mayWalk(containerA, now.Add(missingFor)))
	allowed := 0
	for i := range 3 * maxMissing {
		if h.mayWalk(containerB[:12]+strings.Repeat("c", i%50), now) {
			allowed++
		}
	}
	require.LessOrEqual(t, allowed, walksPerSecond)
	require.True(t, h.mayWalk(containerB, now.Add(10*time.Second)))
}

// TestContainerIDNamesNoOtherUnit covers a sender that sends the path of a cgroup as the
// id of a container. The path must not match without the name of the host.
func TestContainerIDNamesNoOtherUnit(t *testing.T) {
	h := NewHost("/", nil, func(name string) (cgroup.Group, bool) {
		return cgroup.Group{ID: service, Cgroup: service}, name == service
	}, func() time.Time { return epoch })
	h.missing[service] = epoch.Add(missingFor) // no tree to walk
	_, ok := h.Container(service)
	require.False(t, ok)
	_, ok = h.Cgroup(service)
	require.True(t, ok)
}

// TestLinksOfPods reads links with the names that a kubelet uses.
func TestLinksOfPods(t *testing.T) {
	const uid, other = "0b1c2d3e-0000-4000-8000-00000000aaaa", "0b1c2d3e-0000-4000-8000-00000000bbbb"
	root := t.TempDir()
	link := func(pod, uid, name, id string) {
		file := filepath.Join(root, "var/log/containers", pod+"_shop_"+name+"-"+id+".log")
		require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o755))
		require.NoError(t, os.Symlink("/var/log/pods/shop_"+pod+"_"+uid+"/"+name+"/0.log", file))
	}
	link("cart-1", uid, "cart-service", containerA)
	link("cart-1", uid, "init", strings.Repeat("d", 64))
	link("cart-1", uid, "sidecar", containerB)
	link("other", other, "cart-service", strings.Repeat("c", 64))
	h := NewHost(root, nil, noneWatched, time.Now)
	var names []string
	for _, c := range h.podContainers(uid) {
		names = append(names, c.name+" "+c.id[:1])
	}
	require.ElementsMatch(t, []string{"cart-service a", "init d", "sidecar b"}, names)
	require.Empty(t, h.podContainers("0b1c2d3e"))
	for _, uid := range []string{"", "*", "../../../../../../../../../../../etc", strings.Repeat("a", 100)} {
		_, why := h.PodContainer(uid, "")
		require.Equal(t, NoPod, why)
	}
}
