// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package hostid

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func tree(t *testing.T, files map[string]string) string {
	root := t.TempDir()
	for name, content := range files {
		path := filepath.Join(root, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.WriteFile(path, []byte(content), 0o644))
	}
	return root
}

func TestNames(t *testing.T) {
	kernel, err := os.Hostname()
	require.NoError(t, err)

	require.Equal(t, []string{"node-7", kernel}, Names(tree(t, map[string]string{"etc/hostname": "node-7\n"})), "the host's file counts first below a root of its own")
	require.Equal(t, []string{kernel}, Names(tree(t, map[string]string{"etc/hostname": kernel})), "each once")
	require.Equal(t, []string{kernel}, Names(t.TempDir()))
	require.Equal(t, []string{kernel}, Names(tree(t, map[string]string{"etc/hostname": "two words"})))
	require.Equal(t, []string{kernel}, Names(tree(t, map[string]string{"etc/hostname": strings.Repeat("x", 1000)})))
	require.Equal(t, kernel, Names("/")[0])
}

func TestIDs(t *testing.T) {
	require.Empty(t, IDs(t.TempDir()))
	require.Equal(t, []string{"0123"}, IDs(tree(t, map[string]string{
		"etc/machine-id": strings.Repeat("a", 1<<20), "var/lib/dbus/machine-id": "0123",
	})), "too long for an id")
	require.Empty(t, Best(nil))
	require.Equal(t, []string{"0123", "i-4567"}, IDs(tree(t, map[string]string{
		"etc/machine-id": "0123\n", "var/lib/dbus/machine-id": "0123\n", "var/lib/cloud/data/instance-id": "i-4567",
	})))
}
