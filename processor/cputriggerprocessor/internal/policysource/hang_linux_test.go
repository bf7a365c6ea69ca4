// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package policysource

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/hotprofile/hotprofile/test/hosttest"
)

// TestFileThatHangs opens a file while another open file holds a lease on it. The kernel
// blocks the call until the lease is released, as for a file system whose server is gone.
func TestFileThatHangs(t *testing.T) {
	f, path := file(t)
	require.NoError(t, os.WriteFile(path, []byte("one"), 0o600))
	requireRead(t, f, "one")
	holder, err := os.OpenFile(path, os.O_RDWR, 0)
	require.NoError(t, err)
	defer holder.Close()
	if _, err := unix.FcntlInt(holder.Fd(), unix.F_SETLEASE, unix.F_WRLCK); err != nil {
		hosttest.SkipUnprivileged(t, "cannot take a lease: %v", err)
	}
	for range 3 {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		_, _, err = f.Read(ctx)
		cancel()
		require.ErrorIs(t, err, errTimeout)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, _, err = f.Read(ctx)
	require.ErrorIs(t, err, context.Canceled)

	_, err = unix.FcntlInt(holder.Fd(), unix.F_SETLEASE, unix.F_UNLCK)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(path, []byte("two"), 0o600))
	requireRead(t, f, "two")
}
