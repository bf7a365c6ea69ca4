// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package unixsocket

import (
	"io"
	"net"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/hotprofile/hotprofile/test/hosttest"
)

func TestPeerIsTheClient(t *testing.T) {
	for name, path := range map[string]string{"a file": socketPath(t), "an abstract name": "@hotprofile-unixsocket-test"} {
		t.Run(name, func(t *testing.T) {
			l, err := Listen(t.Context(), path, 0o600)
			require.NoError(t, err)
			defer l.Close()
			c, err := net.Dial("unix", path)
			require.NoError(t, err)
			defer c.Close()
			accepted, err := l.Accept()
			require.NoError(t, err)
			defer accepted.Close()
			pid, uid, err := Peer(accepted)
			require.NoError(t, err)
			require.Equal(t, os.Getpid(), pid)
			require.Equal(t, os.Getuid(), uid)
		})
	}
}

func TestPeerFailsOverTCP(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	c, err := net.Dial("tcp", l.Addr().String())
	require.NoError(t, err)
	defer c.Close()
	_, _, err = Peer(c)
	require.ErrorContains(t, err, "no Unix socket")
}

// TestPeerOutsideOfThePIDNamespaceHasPIDZero checks that clients outside of a container's
// pid namespace have no pid.
func TestPeerOutsideOfThePIDNamespaceHasPIDZero(t *testing.T) {
	if path := os.Getenv("HOTPROFILE_TEST_LISTEN"); path != "" {
		l, err := Listen(t.Context(), path, 0o600)
		require.NoError(t, err)
		c, err := l.Accept()
		require.NoError(t, err)
		pid, _, err := Peer(c)
		require.NoError(t, err)
		require.Zero(t, pid)
		_, err = c.Write([]byte("zero"))
		require.NoError(t, err)
		require.NoError(t, c.Close())
		require.NoError(t, l.Close())
		return
	}
	path := socketPath(t)
	cmd := exec.Command("/proc/self/exe", "-test.run", "^"+t.Name()+"$")
	cmd.Env = append(os.Environ(), "HOTPROFILE_TEST_LISTEN="+path)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID}
	if err := cmd.Start(); err != nil {
		hosttest.SkipUnprivileged(t, "a pid namespace cannot be made: %v", err)
	}
	defer func() { require.NoError(t, cmd.Wait()) }()
	var c net.Conn
	require.Eventually(t, func() (ok bool) {
		var err error
		c, err = net.Dial("unix", path)
		return err == nil
	}, 30*time.Second, time.Millisecond)
	defer c.Close()
	got, err := io.ReadAll(c)
	require.NoError(t, err)
	require.Equal(t, "zero", string(got))
}
