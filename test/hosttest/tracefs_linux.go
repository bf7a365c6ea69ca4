// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package hosttest

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// Tracefs returns a folder that contains the kernel's tracefs at sys/kernel/tracing, like
// the root of a host. The mount does not belong to any mount namespace, so no mount is
// left behind, no matter how the test ends.
func Tracefs(t testing.TB) (root string) {
	t.Helper()
	mount, err := tracefs()
	if err != nil {
		SkipUnprivileged(t, "tracefs: %v", err)
	}
	t.Cleanup(func() { _ = unix.Close(mount) })
	root = t.TempDir()
	folder := filepath.Join(root, "sys", "kernel")
	require.NoError(t, os.MkdirAll(folder, 0o755))
	require.NoError(t, os.Symlink(fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), mount), filepath.Join(folder, "tracing")))
	return root
}

func tracefs() (mount int, err error) {
	context, err := unix.Fsopen("tracefs", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return -1, err
	}
	defer unix.Close(context)
	if err := unix.FsconfigCreate(context); err != nil {
		return -1, err
	}
	return unix.Fsmount(context, unix.FSMOUNT_CLOEXEC, 0)
}
