// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package atomicfile

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestWriteReplacesAFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	for _, text := range []string{"a longer text", "short"} {
		require.NoError(t, Write(path, []byte(text), nil))
		got, err := os.ReadFile(path)
		require.NoError(t, err)
		require.Equal(t, text, string(got))
	}
	onlyNames(t, filepath.Dir(path), "file")
}

func TestAnErrorLeavesNoTemporaryFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	require.NoError(t, Write(path, []byte("old"), nil))
	wrong := errors.New("wrong")
	require.ErrorIs(t, Write(path, []byte("new"), func(*os.File) error { return wrong }), wrong)
	got, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, "old", string(got))

	directory := filepath.Join(filepath.Dir(path), "directory")
	require.NoError(t, os.MkdirAll(filepath.Join(directory, "used"), 0o700))
	require.Error(t, Write(directory, []byte("new"), nil))
	onlyNames(t, filepath.Dir(path), "directory", "file")

	require.ErrorIs(t, Write(filepath.Join(path+".missing", "file"), nil, nil), fs.ErrNotExist)
}

func TestFull(t *testing.T) {
	require.True(t, Full(fmt.Errorf("write: %w", syscall.ENOSPC)))
	require.True(t, Full(&fs.PathError{Err: syscall.EDQUOT}))
	require.False(t, Full(fs.ErrNotExist))
	require.False(t, Full(nil))
}

func onlyNames(t *testing.T, dir string, want ...string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	var got []string
	for _, e := range entries {
		got = append(got, e.Name())
	}
	require.Equal(t, want, got)
}
