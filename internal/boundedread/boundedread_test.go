// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package boundedread

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/require"
)

func TestAll(t *testing.T) {
	for n, want := range []string{"", "a", "ab", "abc"} {
		got, err := All(strings.NewReader(want), 3)
		require.NoError(t, err)
		require.Equal(t, want, string(got), n)
	}
	got, err := All(strings.NewReader("abcd"), 3)
	require.ErrorIs(t, err, ErrTooLarge)
	require.EqualError(t, err, "it is too large: more than 3 bytes")
	require.Empty(t, got)
	_, err = All(iotest.ErrReader(os.ErrClosed), 3)
	require.ErrorIs(t, err, os.ErrClosed)
}

func TestFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	_, _, err := File(path, 3)
	require.ErrorIs(t, err, os.ErrNotExist)
	require.NoError(t, os.WriteFile(path, []byte("abc"), 0o640))
	link := path + ".link"
	require.NoError(t, os.Symlink("file", link))
	got, info, err := File(link, 3)
	require.NoError(t, err)
	require.Equal(t, "abc", string(got))
	require.EqualValues(t, 3, info.Size())
	_, _, err = File(path, 2)
	require.ErrorIs(t, err, ErrTooLarge)
	require.ErrorContains(t, err, path)
	_, _, err = File(filepath.Dir(path), 3)
	require.ErrorIs(t, err, ErrNotRegular)
	require.ErrorContains(t, err, filepath.Dir(path))
}
