// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package procfs

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestReadsAreBounded(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	for _, size := range []int{0, 1, 511, 512, 513, 4095, 4096, 4097, 10_000} {
		content := strings.Repeat("x", size)
		require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
		for _, limit := range []int{1, 512, 4096, 1 << 20} {
			b, err := ReadFile(path, limit)
			require.Equal(t, content[:min(size, limit)], string(b))
			if size > limit {
				require.ErrorIs(t, err, ErrTooLarge)
			} else {
				require.NoError(t, err)
			}
			require.LessOrEqual(t, cap(b), 2*limit+1024)
		}
	}
	_, err := ReadFile(path+"x", 1)
	require.True(t, IsGone(err))
}

func TestAppendFileUsesTheBuffer(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(path, []byte("content"), 0o600))
	buf := append(make([]byte, 0, 64), "before"...)
	got, err := AppendFile(buf, path, 32)
	require.NoError(t, err)
	require.Equal(t, "content", string(got))
	require.Same(t, &buf[0], &got[0])
	got, err = AppendFile(got, path+"x", 32)
	require.Error(t, err)
	require.Equal(t, 64, cap(got), "the memory is kept where the file cannot be read")
}
