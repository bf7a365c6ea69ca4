// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestOneStoreUsesADirectory(t *testing.T) {
	dir := t.TempDir()
	s, err := Open(Options{Directory: dir})
	require.NoError(t, err)
	_, err = Open(Options{Directory: dir})
	require.ErrorContains(t, err, dir)
	require.ErrorContains(t, err, "set directory to another")
	require.NoError(t, s.Close())
	s, err = Open(Options{Directory: dir})
	require.NoError(t, err)
	require.NoError(t, s.Close())
}
