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
	defer usual.Close()
	require.True(t, polled(t, usual), "then this test would find it")
	opened, err := openFile(procs)
	require.NoError(t, err)
	defer opened.Close()
	require.False(t, polled(t, opened))
	_, err = openFile(procs + ".none")
	require.ErrorIs(t, err, os.ErrNotExist)
}

// polled reports whether this process polls a file.
func polled(t *testing.T, f *os.File) bool {
	t.Helper()
	raw, err := f.SyscallConn()
	require.NoError(t, err)
	var fd uintptr
	require.NoError(t, raw.Control(func(of uintptr) { fd = of }))
	infos, err := filepath.Glob("/proc/self/fdinfo/*")
	require.NoError(t, err)
	for _, info := range infos {
		text, _ := os.ReadFile(info) // the file may be closed by now
		for line := range strings.Lines(string(text)) {
			var in uintptr
			if n, _ := fmt.Sscanf(line, "tfd: %d", &in); n == 1 && in == fd {
				return true
			}
		}
	}
	return false
}
