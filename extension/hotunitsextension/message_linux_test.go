// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package hotunitsextension

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// TestATemplateThatIsAPipeIsNotWaitedFor checks that a template in a named pipe is
// rejected at once, even though the pipe has no writer.
func TestATemplateThatIsAPipeIsNotWaitedFor(t *testing.T) {
	path := filepath.Join(t.TempDir(), "template")
	require.NoError(t, unix.Mkfifo(path, 0o600))
	_, err := newRenderer(path, true)
	require.ErrorContains(t, err, "not a regular file")
}
