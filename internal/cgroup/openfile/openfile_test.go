// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package openfile

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func write(t *testing.T, name, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	require.NoError(t, os.WriteFile(path, []byte(content), 0o644))
	return path
}

func TestFullSetOpensEachTime(t *testing.T) {
	s := NewSet(1)
	a, b := s.File(write(t, "a", "first")), s.File(write(t, "b", "second"))
	buf := make([]byte, 64)
	for range 3 {
		for f, want := range map[*File]string{&a: "first", &b: "second"} {
			n, replaced, err := f.Read(buf)
			require.NoError(t, err)
			require.False(t, replaced)
			require.Equal(t, want, string(buf[:n]))
			require.Equal(t, 1, s.Kept())
		}
	}
	a.Close()
	b.Close()
	b.Close()
	require.Zero(t, s.Kept())
	_, _, err := b.Read(buf)
	require.NoError(t, err, "a closed file is opened again")
	require.True(t, b.Kept(), "there is room now")
	b.Close()
}

func TestReplacedFileIsReported(t *testing.T) {
	s := NewSet(0)
	path := write(t, "a", "old")
	f := s.File(path)
	buf := make([]byte, 64)
	_, replaced, err := f.Read(buf)
	require.NoError(t, err)
	require.False(t, replaced, "the first reading replaces nothing")
	require.NoError(t, os.Rename(path, path+".old"))
	_, _, err = f.Read(buf)
	require.ErrorIs(t, err, os.ErrNotExist)
	require.NoError(t, os.WriteFile(path, []byte("new"), 0o644))
	n, replaced, err := f.Read(buf)
	require.NoError(t, err)
	require.True(t, replaced)
	require.Equal(t, "new", string(buf[:n]))
}

func TestTooLargeIsAnError(t *testing.T) {
	s := NewSet(1)
	f := s.File(write(t, "a", strings.Repeat("x", 64)))
	defer f.Close()
	_, _, err := f.Read(make([]byte, 64))
	require.ErrorIs(t, err, ErrTooLarge)
	require.ErrorContains(t, err, f.Path())
}

func TestSpecialFilesDoNotBlock(t *testing.T) {
	s := NewSet(1)
	f := s.File(t.TempDir())
	defer f.Close()
	_, _, err := f.Read(make([]byte, 64))
	require.Error(t, err, "a directory cannot be read")
}
