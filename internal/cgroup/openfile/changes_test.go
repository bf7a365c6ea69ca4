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

func TestWritesAreCounted(t *testing.T) {
	c := NewChanges(2)
	defer c.Close()
	path := write(t, "cpu.max", "max 100000\n")
	w := c.Watch(path)
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
	require.Nil(t, c.Watch(path), "one file has one watch")

	other := c.Watch(write(t, "other", ""))
	require.NotNil(t, other)
	require.Nil(t, c.Watch(write(t, "third", "")), "there is a bound")
	other.Close()
	require.Len(t, c.watches, 1)
	require.NotNil(t, c.Watch(write(t, "third", "")))
}

func TestRemovedFileIsAChange(t *testing.T) {
	c := NewChanges(2)
	defer c.Close()
	path := write(t, "cpu.max", "max 100000\n")
	w := c.Watch(path)
	require.NoError(t, os.Remove(path))
	c.Take()
	require.NotZero(t, w.Changes())
	require.Empty(t, c.watches)
	w.Close()
	require.Nil(t, c.Watch(path))
	require.Nil(t, c.Watch(filepath.Join(path, "none")))
}

func TestWithoutWatches(t *testing.T) {
	c := NewChanges(0)
	defer c.Close()
	require.Nil(t, c.Watch(write(t, "cpu.max", "")))
	c.Take()
}

func FuzzChangesOfEvents(f *testing.F) {
	f.Add([]byte{1, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0})
	f.Add([]byte{255, 255, 255, 255, 0, 64, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0})
	f.Add([]byte{1, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 255, 255, 255, 255, 1})
	f.Fuzz(func(_ *testing.T, b []byte) {
		c := &Changes{fd: -1, watches: map[int32]*Watch{1: {id: 1}}}
		c.count(b)
	})
}
