// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !windows

package hosttest

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestToolThatDoesNotRunIsAsGoodAsMissing(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("PATH", dir)
	write := func(name, script string) string {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, []byte("#!/bin/sh\n"+script+"\n"), 0o755))
		return path
	}
	write("hotprofile-shim", "echo no toolchain is installed >&2; exit 1")
	runs := write("hotprofile-tool", `[ "$1" = --version ]`)
	write("go-of-a-release", `[ "$1" = version ]`)

	_, err := tool("hotprofile-shim", "hotprofile-missing")
	require.ErrorContains(t, err, "needs hotprofile-shim or hotprofile-missing: ")
	require.ErrorContains(t, err, "does not run: exit status 1: no toolchain is installed")
	require.ErrorContains(t, err, `"hotprofile-missing": executable file not found in $PATH`)

	path, err := tool("hotprofile-shim", "hotprofile-tool")
	require.NoError(t, err)
	require.Equal(t, runs, path)
	_, err = tool(filepath.Join(dir, "go-of-a-release"))
	require.NoError(t, err)
}
