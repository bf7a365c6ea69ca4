// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/hotprofile/hotprofile/internal/procfs"
	"github.com/hotprofile/hotprofile/test/hosttest"
)

// TestOpenedFilesAreNotPolled checks that the runtime does not poll the files of a scan.
// A scan opens thousands of files, and each polled file would wake the runtime.
func TestOpenedFilesAreNotPolled(t *testing.T) {
	c := hosttest.NewCgroup(t, "hotprofile-poll")
	tree := openHost(t)
	var procs string
	for h, tr := range tree.trees {
		if tr == nil {
			continue
		}
		if path := filepath.Join(tree.dir(Hierarchy(h), c.Path), "cgroup.procs"); isFile(path) {
			procs = path
		}
	}
	require.NotEmpty(t, procs)
	usual, err := os.Open(procs)
	require.NoError(t, err)
	require.True(t, polled(t, procs), "then this test would find it")
	usual.Close()
	opened, err := procfs.Open(procs)
	require.NoError(t, err)
	defer opened.Close()
	require.False(t, polled(t, procs))
	_, err = procfs.Open(procs + ".none")
	require.ErrorIs(t, err, os.ErrNotExist)
}

// polled reports whether this process polls the file at a path.
func polled(t *testing.T, path string) bool {
	t.Helper()
	infos, err := filepath.Glob("/proc/self/fdinfo/*")
	require.NoError(t, err)
	for _, info := range infos {
		text, _ := os.ReadFile(info) // the file may be closed by now
		for line := range strings.Lines(string(text)) {
			var fd int
			if n, _ := fmt.Sscanf(line, "tfd: %d", &fd); n == 1 {
				if at, _ := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd)); at == path {
					return true
				}
			}
		}
	}
	return false
}
