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
		status string
		want   []string
	}{
		"all":             {"CapEff:\t000001ffffffffff\n", nil},
		"no ptrace":       {"Name:\tx\nCapEff:\t0000000000000004\n", []string{"CAP_SYS_PTRACE"}},
		"override serves": {"CapEff:\t0000000000080002\n", nil},
		"no files":        {"CapEff:\t0000000000080000\n", []string{"CAP_DAC_READ_SEARCH"}},
		"none":            {"CapEff:\t0000000000000000\n", []string{"CAP_SYS_PTRACE", "CAP_DAC_READ_SEARCH"}},
		"malformed":       {"CapEff:\tzz\n", nil},
	} {
		t.Run(name, func(t *testing.T) {
			got := hidden([]byte(test.status))
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
