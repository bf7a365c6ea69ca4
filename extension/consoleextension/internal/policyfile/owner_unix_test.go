// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build unix

package policyfile

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/hotprofile/hotprofile/test/hosttest"
)

func TestTheOwnerStays(t *testing.T) {
	f, path := newFile(t, "one")
	if err := os.Chown(path, 12345, 23456); err != nil {
		hosttest.SkipUnprivileged(t, "cannot change owners: %v", err)
	}
	doc, err := f.Read(t.Context())
	require.NoError(t, err)
	require.NoError(t, f.Save(t.Context(), doc.Version, []byte("two")))
	for _, name := range []string{path, path + ".previous"} {
		info, err := os.Stat(name)
		require.NoError(t, err)
		owner := info.Sys().(*syscall.Stat_t)
		require.EqualValues(t, 12345, owner.Uid, name)
		require.EqualValues(t, 23456, owner.Gid, name)
	}
}

func TestADirectoryThatCannotBeWrittenIsKnown(t *testing.T) {
	if os.Getuid() == 0 {
		f := New("/proc/self/status", true, reader)
		require.ErrorContains(t, f.Editable(), "cannot be written", "not even by root")
		return
	}
	f, path := newFile(t, "one")
	require.NoError(t, os.Chmod(filepath.Dir(path), 0o500)) //nolint:gosec // a directory
	require.ErrorContains(t, f.Editable(), "cannot be written")
}
