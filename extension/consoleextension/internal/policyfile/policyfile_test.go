// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package policyfile

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/hotprofile/hotprofile/extension/hotunitsextension"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// reader returns a reader that rejects documents with the word "bad".
func reader() []hotunitsextension.PolicyFile {
	return []hotunitsextension.PolicyFile{{Check: func(document []byte) error {
		if bytes.Contains(document, []byte("bad")) {
			return errors.New("line 1: policies[0]: bad")
		}
		return nil
	}}}
}

func newFile(t *testing.T, text string) (*File, string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "policies.yaml")
	require.NoError(t, os.WriteFile(path, []byte(text), 0o640))
	require.NoError(t, os.Chmod(path, 0o640))
	return New(path, true, reader), path
}

func requireText(t *testing.T, path, want string) {
	t.Helper()
	got, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, want, string(got))
}

func names(t *testing.T, dir string) (found []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	for _, e := range entries {
		found = append(found, e.Name())
	}
	return found
}

func TestSaveReplacesTheFileAndKeepsTheOldOne(t *testing.T) {
	f, path := newFile(t, "one")
	doc, err := f.Read(t.Context())
	require.NoError(t, err)
	require.Equal(t, "one", string(doc.Text))
	require.Equal(t, "7692c3ad3540", doc.Version, "printf one | sha256sum")
	require.NoError(t, f.Editable())
	before, err := os.Stat(path)
	require.NoError(t, err)

	require.NoError(t, f.Save(t.Context(), doc.Version, []byte("two")))
	requireText(t, path, "two")
	requireText(t, path+".previous", "one")
	for _, name := range []string{path, path + ".previous"} {
		info, err := os.Stat(name)
		require.NoError(t, err)
		require.Equal(t, before.Mode(), info.Mode(), name)
	}

	require.ErrorIs(t, f.Save(t.Context(), doc.Version, []byte("three")), ErrChanged, "of the first version")
	requireText(t, path, "two")
	doc, err = f.Read(t.Context())
	require.NoError(t, err)
	require.NoError(t, f.Save(t.Context(), doc.Version, []byte("two")), "the same")
	requireText(t, path+".previous", "one")
	require.NoError(t, f.Save(t.Context(), doc.Version, []byte("three")))
	requireText(t, path, "three")
	requireText(t, path+".previous", "two")
	require.Equal(t, []string{"policies.yaml", "policies.yaml.previous"}, names(t, filepath.Dir(path)))
}

func TestWhatIsRefusedChangesNothing(t *testing.T) {
	f, path := newFile(t, "one")
	doc, err := f.Read(t.Context())
	require.NoError(t, err)
	var invalid *InvalidError
	require.ErrorAs(t, f.Save(t.Context(), doc.Version, []byte("bad")), &invalid)
	require.ErrorContains(t, invalid, "line 1: ")

	require.ErrorIs(t, New(path, false, reader).Save(t.Context(), doc.Version, []byte("two")), ErrNotEditable)
	require.ErrorIs(t, New(path, true, func() []hotunitsextension.PolicyFile { return nil }).Save(t.Context(), doc.Version, []byte("two")), ErrNoReader)
	requireText(t, path, "one")
	require.Equal(t, []string{"policies.yaml"}, names(t, filepath.Dir(path)))
}

func TestALinkStaysALink(t *testing.T) {
	f, path := newFile(t, "one")
	link := filepath.Join(t.TempDir(), "link.yaml")
	if err := os.Symlink(path, link); err != nil {
		t.Skip(err)
	}
	doc, err := f.Read(t.Context())
	require.NoError(t, err)
	require.NoError(t, New(link, true, reader).Save(t.Context(), doc.Version, []byte("two")))
	info, err := os.Lstat(link)
	require.NoError(t, err)
	require.NotZero(t, info.Mode()&os.ModeSymlink)
	requireText(t, path, "two")
}

func TestWhatIsNoPolicyFileIsNotRead(t *testing.T) {
	f, path := newFile(t, strings.Repeat("a", hotunitsextension.MaxPolicyFile+1))
	_, err := f.Read(t.Context())
	require.ErrorContains(t, err, "more than 262144 bytes")
	_, err = New(filepath.Dir(path), true, reader).Read(t.Context())
	require.ErrorContains(t, err, "not a regular file")
	_, err = New(path+".none", true, reader).Read(t.Context())
	require.ErrorIs(t, err, os.ErrNotExist)
}

func TestADiskThatHangsIsNotWaitedFor(t *testing.T) {
	f, _ := newFile(t, "one")
	hangs, ended := make(chan struct{}), make(chan struct{})
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		defer close(ended)
		_ = f.do(context.Background(), func() error { cancel(); <-hangs; return nil })
	}()
	<-ctx.Done()
	_, err := f.Read(ctx)
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorContains(t, err, "does not answer")
	close(hangs)
	<-ended
	_, err = f.Read(t.Context())
	require.NoError(t, err)
}
