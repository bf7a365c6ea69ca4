// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package cpuprofilerreceiver

import (
	"os"
	"path/filepath"
	"strings"
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

func TestHostIdentityIsTheOneBelowTheRoot(t *testing.T) {
	root := t.TempDir()
	own, err := os.Hostname()
	require.NoError(t, err)
	name, id := hostIdentity(root)
	require.Equal(t, own, name, "no file: the kernel's")
	require.Empty(t, id)

	write := func(file, text string) {
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(root, file)), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(root, file), []byte(text), 0o644))
	}
	write("etc/hostname", "node-7\n")
	write("var/lib/dbus/machine-id", "0123\n")
	name, id = hostIdentity(root)
	require.Equal(t, "node-7", name)
	require.Equal(t, "0123", id)

	write("etc/machine-id", strings.Repeat("a", 1<<20))
	_, id = hostIdentity(root)
	require.Equal(t, "0123", id, "too long for an id")
	write("etc/machine-id", "4567")
	_, id = hostIdentity(root)
	require.Equal(t, "4567", id)
}
