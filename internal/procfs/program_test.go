// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package procfs

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestRootIsADirectoryInAMountNamespace(t *testing.T) {
	at := t.TempDir()
	root := func(namespace, dir string) uint64 {
		require.NoError(t, os.RemoveAll(filepath.Join(at, "proc")))
		require.NoError(t, os.MkdirAll(filepath.Join(at, "proc/7/ns"), 0o755))
		require.NoError(t, os.Symlink(dir, filepath.Join(at, "proc/7/root")))
		require.NoError(t, os.Symlink(namespace, filepath.Join(at, "proc/7/ns/mnt")))
		root, err := At(at).Root(7)
		require.NoError(t, err)
		require.NotZero(t, root)
		return root
	}
	one := root("mnt:[1]", "/")
	require.Equal(t, one, root("mnt:[1]", "/"))
	require.NotEqual(t, one, root("mnt:[2]", "/"))
	require.NotEqual(t, one, root("mnt:[1]", "/srv"))
	_, err := At(at).Root(8)
	require.ErrorIs(t, err, os.ErrNotExist)
}
