// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package cputriggerprocessor

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/hotprofile/hotprofile/internal/cgroup"
)

func nopLogger() *zap.Logger { return zap.NewNop() }

func write(t *testing.T, file, content string) {
	t.Helper()
	require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o755))
	require.NoError(t, os.WriteFile(file, []byte(content), 0o600))
}

func TestHostKnowsItsNames(t *testing.T) {
	root := t.TempDir()
	write(t, filepath.Join(root, "etc/hostname"), "node-7.example.org\n")
	write(t, filepath.Join(root, "etc/machine-id"), "0123456789abcdef0123456789abcdef\n")
	write(t, filepath.Join(root, "var/lib/cloud/data/instance-id"), "i-0abc\n")
	h := newRealHost(root, nil, newTestUnits(t), time.Now)
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

// TestContainersThatAreNotHereAreNotLookedForAllTheTime: an id comes from
// outside, and looking for one walks the whole tree.
func TestContainersThatAreNotHereAreNotLookedForAllTheTime(t *testing.T) {
	now := epoch
	h := newRealHost("/", nil, newTestUnits(t), func() time.Time { return now })
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

// TestContainerIDNamesNoOtherUnit: a sender that gives a cgroup's path for a
// container's id must not be taken at its word without a host's name.
func TestContainerIDNamesNoOtherUnit(t *testing.T) {
	h := newRealHost("/", nil, newTestUnits(t), func() time.Time { return epoch })
	h.units.Add(target{name: service, unit: cgroup.Group{ID: service, Cgroup: service}}, epoch)
	h.missing[service] = epoch.Add(missingFor) // there is no tree to walk
	_, ok := h.Container(service)
	require.False(t, ok)
	_, ok = h.Cgroup(service)
	require.True(t, ok)
}

func TestStartedAtIsNotBeforeTheBoot(t *testing.T) {
	for _, ticks := range []uint64{0, 1, 1 << 40, 1<<64 - 1} {
		require.False(t, startedAt(epoch, ticks).Before(epoch))
	}
}

func TestUserTimes(t *testing.T) {
	file := filepath.Join(t.TempDir(), "cpu.stat")
	u := &userTimes{readNow: func() (uint64, uint64, bool) { return readTimes(file, "user_usec", "system_usec") }}
	var none *userTimes
	none.read(epoch)
	require.Negative(t, none.share())
	u.read(epoch)
	require.Negative(t, u.share(), "there is no file")

	at := func(seconds int, content string) {
		write(t, file, content)
		u.read(epoch.Add(time.Duration(seconds) * time.Second))
	}
	at(0, "usage_usec 9\nuser_usec 1000\nsystem_usec 5000\n")
	require.Negative(t, u.share(), "one reading is no span")
	at(1, "usage_usec 9\nuser_usec 1300\nsystem_usec 5100\n")
	require.InDelta(t, 0.75, u.share(), 1e-9, "what was before it became warm does not count")
	at(30, "user_usec 2000\nsystem_usec 5100\n")
	at(60, "user_usec 2000\nsystem_usec 6100\n")
	at(61, "user_usec 2000\nsystem_usec 6100\n")
	require.InDelta(t, 0, u.share(), 1e-9, "nor what is long ago")
	at(62, "user_usec 10\nsystem_usec 10\n")
	require.Negative(t, u.share(), "it began anew")
	at(63, "nonsense\n")
	require.Negative(t, u.share())
}
