// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package hotunitsextension

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// TestATemplateThatIsAPipeIsNotWaitedFor returns although nobody writes to the pipe.
func TestATemplateThatIsAPipeIsNotWaitedFor(t *testing.T) {
	path := filepath.Join(t.TempDir(), "template")
	require.NoError(t, unix.Mkfifo(path, 0o600))
	_, err := newRenderer(path, true)
	require.ErrorContains(t, err, "not a regular file")
}
