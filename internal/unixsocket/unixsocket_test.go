// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package unixsocket

import (
	"context"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// socketPath returns a path in a new directory. The path is short enough for a socket.
func socketPath(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "hp")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	return filepath.Join(dir, "s")
}

func TestListenSetsTheModeAndCloseRemovesTheFile(t *testing.T) {
	for _, mode := range []fs.FileMode{0o600, 0o660, 0o666} {
		path := socketPath(t)
		l, err := Listen(t.Context(), path, mode)
		require.NoError(t, err)
		info, err := os.Stat(path)
		require.NoError(t, err)
		require.Equal(t, mode, info.Mode().Perm())
		require.NoError(t, l.Close())
		require.NoFileExists(t, path)
	}
}

// TestOnlyTheOwnerCanConnectFromTheStart checks that the file of the socket has the given
// mode from the start, with any umask.
func TestOnlyTheOwnerCanConnectFromTheStart(t *testing.T) {
	old := syscall.Umask(0)
	defer syscall.Umask(old)
	path := socketPath(t)
	l, err := (&net.ListenConfig{Control: ownerOnly}).Listen(t.Context(), "unix", path)
	require.NoError(t, err)
	defer l.Close()
	info, err := os.Stat(path)
	require.NoError(t, err)
	require.EqualValues(t, 0o600, info.Mode().Perm())
}

func TestListenReplacesAStaleSocket(t *testing.T) {
	path := socketPath(t)
	l, err := Listen(t.Context(), path, 0o600)
	require.NoError(t, err)
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	require.NoError(t, l.Close())
	require.FileExists(t, path)
	again, err := Listen(t.Context(), path, 0o600)
	require.NoError(t, err)
	require.NoError(t, again.Close())
}

func TestListenFailsForASocketInUse(t *testing.T) {
	path := socketPath(t)
	l, err := Listen(t.Context(), path, 0o600)
	require.NoError(t, err)
	defer l.Close()
	_, err = Listen(t.Context(), path, 0o600)
	require.ErrorContains(t, err, "in use by another process")
	c, err := net.Dial("unix", path)
	require.NoError(t, err, "it still is")
	require.NoError(t, c.Close())
}

func TestListenFailsForAFileThatIsNoSocket(t *testing.T) {
	path := socketPath(t)
	require.NoError(t, os.WriteFile(path, []byte("mine"), 0o600))
	_, err := Listen(t.Context(), path, 0o600)
	require.ErrorContains(t, err, "is not a socket")
	content, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, "mine", string(content))

	link := socketPath(t)
	require.NoError(t, os.Symlink(path, link))
	_, err = Listen(t.Context(), link, 0o600)
	require.ErrorContains(t, err, "is not a socket")
}

func TestListenFailsWithoutTheFolder(t *testing.T) {
	_, err := Listen(t.Context(), socketPath(t)+"/not/there", 0o600)
	require.ErrorIs(t, err, fs.ErrNotExist)
}

func TestListenFailsForAnEndedContext(t *testing.T) {
	path := socketPath(t)
	l, err := Listen(t.Context(), path, 0o600)
	require.NoError(t, err)
	defer l.Close()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.Error(t, removeStale(ctx, path))
	require.FileExists(t, path)
}
