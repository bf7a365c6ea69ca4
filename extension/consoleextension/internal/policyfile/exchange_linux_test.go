// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package policyfile

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// TestTheVersionOfAnotherWriterIsNotLost covers another writer that renames its own
// version to the path during a save. Because the editor has not seen the other version,
// this version must be in the file afterwards, no matter which writer was first.
func TestTheVersionOfAnotherWriterIsNotLost(t *testing.T) {
	f, path := newFile(t, "start")
	outcomes := map[bool]int{}
	for n := range 300 {
		doc, err := f.Read(t.Context())
		require.NoError(t, err)
		theirs := fmt.Sprintf("theirs %d", n)
		other := filepath.Join(filepath.Dir(path), "other")
		require.NoError(t, os.WriteFile(other, []byte(theirs), 0o600))
		done := make(chan error, 1)
		go func() {
			time.Sleep(rand.N(time.Millisecond))
			done <- os.Rename(other, path)
		}()
		err = f.Save(t.Context(), doc.Version, fmt.Appendf(nil, "mine %d", n))
		require.NoError(t, <-done)
		if err != nil {
			require.ErrorIs(t, err, ErrChanged)
		}
		outcomes[err == nil]++
		now, readErr := os.ReadFile(path)
		require.NoError(t, readErr)
		require.Equal(t, theirs, string(now), "saved: %v", err)
		left, err := filepath.Glob(filepath.Join(filepath.Dir(path), ".hotprofile-*"))
		require.NoError(t, err)
		require.Empty(t, left)
	}
	t.Logf("saved before the other: %d, refused after it: %d", outcomes[true], outcomes[false])
}

func TestExtendedAttributesStay(t *testing.T) {
	f, path := newFile(t, "one")
	if err := unix.Setxattr(path, "user.label", []byte("kept"), 0); err != nil {
		t.Skipf("no extended attributes here: %v", err)
	}
	doc, err := f.Read(t.Context())
	require.NoError(t, err)
	require.NoError(t, f.Save(t.Context(), doc.Version, []byte("two")))
	value := make([]byte, 16)
	n, err := unix.Getxattr(path, "user.label", value)
	require.NoError(t, err)
	require.Equal(t, "kept", string(value[:n]))
}

func TestALinkIsEditableWhereItsTargetIs(t *testing.T) {
	_, path := newFile(t, "one")
	link := filepath.Join(t.TempDir(), "link.yaml")
	require.NoError(t, os.Symlink("/proc/self/status", link))
	require.ErrorContains(t, New(link, true, reader).Editable(), "/proc/", "its directory can be written, the target's cannot")
	require.NoError(t, os.Remove(link))
	require.NoError(t, os.Symlink(path, link))
	require.NoError(t, New(link, true, reader).Editable())
}
