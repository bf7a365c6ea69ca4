// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package boundedread

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// TestAPipeIsNotWaitedFor checks that File returns even if the pipe has no writer.
func TestAPipeIsNotWaitedFor(t *testing.T) {
	path := filepath.Join(t.TempDir(), "pipe")
	require.NoError(t, unix.Mkfifo(path, 0o600))
	_, _, err := File(path, 10)
	require.ErrorIs(t, err, ErrNotRegular)
}
