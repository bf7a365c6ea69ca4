// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package sampler

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestHiddenNamesTheMissingCapability(t *testing.T) {
	for name, test := range map[string]struct {
		caps uint64
		want []string
	}{
		"all":             {0x000001ffffffffff, nil},
		"no ptrace":       {0x0000000000000004, []string{"CAP_SYS_PTRACE"}},
		"override serves": {0x0000000000080002, nil},
		"no files":        {0x0000000000080000, []string{"CAP_DAC_READ_SEARCH"}},
		"none":            {0x0000000000000000, []string{"CAP_SYS_PTRACE", "CAP_DAC_READ_SEARCH"}},
	} {
		t.Run(name, func(t *testing.T) {
			got := hidden(test.caps)
			require.Len(t, got, len(test.want))
			for i, want := range test.want {
				require.Contains(t, got[i], want)
			}
		})
	}
}

func TestProcessRootIsOnlyOneThatNumbersProcessesAsPerfDoes(t *testing.T) {
	root := t.TempDir()
	usable, note := processRoot(root, 42)
	require.Equal(t, "/", usable, "no /proc there")
	require.Contains(t, note, root)
	require.Contains(t, note, "no /proc is mounted")
	require.NoError(t, os.Mkdir(filepath.Join(root, "proc"), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(root, "proc/stat"), nil, 0o644))
	self := filepath.Join(root, "proc/self")
	require.NoError(t, os.Symlink("42", self))
	usable, note = processRoot(root, 42)
	require.Equal(t, root, usable)
	require.Empty(t, note)
	usable, note = processRoot(root, 7)
	require.Equal(t, "/", usable, "in there this process is another one")
	require.Contains(t, note, "--pid=host")
}
