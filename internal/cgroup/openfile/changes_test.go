// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package openfile

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func watch(c *Changes, paths ...string) *Watch {
	var files []File
	for _, path := range paths {
		files = append(files, NewSet(0).File(path))
	}
	return c.Watch(files...)
}

func TestWritesAreCounted(t *testing.T) {
	c := NewChanges(2)
	defer c.Close()
	path := write(t, "cpu.max", "max 100000\n")
	w := watch(c, path)
	require.NotNil(t, w)
	c.Take()
	require.Zero(t, w.Changes())
	_, err := os.ReadFile(path)
	require.NoError(t, err)
	c.Take()
	require.Zero(t, w.Changes(), "reading is no write")
	for range 3 {
		before := w.Changes()
		require.NoError(t, os.WriteFile(path, []byte("50000 100000\n"), 0o644))
		c.Take()
		require.Greater(t, w.Changes(), before)
	}
	require.Nil(t, watch(c, path), "one file has one watch")

	other := watch(c, write(t, "other", ""))
	require.NotNil(t, other)
	require.Nil(t, watch(c, write(t, "third", "")), "there is a bound")
	other.Close()
	require.Len(t, c.watches, 1)
	require.NotNil(t, watch(c, write(t, "third", "")))
}

func TestLimitWithTwoFilesHasOneWatch(t *testing.T) {
	c := NewChanges(2)
	defer c.Close()
	quota, period := write(t, "cpu.cfs_quota_us", "-1\n"), write(t, "cpu.cfs_period_us", "100000\n")
	require.Nil(t, watch(c, quota, quota+".none"))
	require.Empty(t, c.watches, "no half of a limit is watched")
	w := watch(c, quota, period)
	require.NotNil(t, w)
	for _, path := range []string{quota, period} {
		before := w.Changes()
		require.NoError(t, os.WriteFile(path, []byte("50000\n"), 0o644))
		c.Take()
		require.Greater(t, w.Changes(), before)
	}
	w.Close()
	require.Empty(t, c.watches)
}

func TestRemovedFileIsAChange(t *testing.T) {
	c := NewChanges(2)
	defer c.Close()
	path := write(t, "cpu.max", "max 100000\n")
	w := watch(c, path)
	require.NoError(t, os.Remove(path))
	c.Take()
	require.NotZero(t, w.Changes())
	require.Empty(t, c.watches)
	w.Close()
	require.Nil(t, watch(c, path))
	require.Nil(t, watch(c, filepath.Join(path, "none")))
}

func TestWithoutWatches(t *testing.T) {
	c := NewChanges(0)
	defer c.Close()
	require.Nil(t, watch(c, write(t, "cpu.max", "")))
	c.Take()
}

func FuzzChangesOfEvents(f *testing.F) {
	f.Add([]byte{1, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0})
	f.Add([]byte{255, 255, 255, 255, 0, 64, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0})
	f.Add([]byte{1, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 255, 255, 255, 255, 1})
	f.Fuzz(func(_ *testing.T, b []byte) {
		c := &Changes{fd: -1, watches: map[int32]*Watch{1: {}}}
		c.count(b)
	})
}
