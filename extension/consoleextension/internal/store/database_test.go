// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestOneStoreUsesADirectory(t *testing.T) {
	dir := t.TempDir()
	s, err := Open(Options{Directory: dir})
	require.NoError(t, err)
	_, err = Open(Options{Directory: dir})
	require.ErrorContains(t, err, dir)
	require.ErrorContains(t, err, "set directory to another")
	require.True(t, s.PutOpening(Opening{ID: "o", Unit: unitNamed("a")}))
	require.NoError(t, s.Commit(t.Context()))
	files, err := os.ReadDir(dir)
	require.NoError(t, err)
	for _, f := range files {
		info, err := f.Info()
		require.NoError(t, err)
		require.Zero(t, info.Mode().Perm()&0o077, "others may use %s", f.Name())
	}
	require.NoError(t, s.Close())
	s, err = Open(Options{Directory: dir})
	require.NoError(t, err)
	require.NoError(t, s.Close())
}
