// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package tcppeer

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestMain runs the tests, or the other process that the tests start. The other process
// accepts connections until its standard input ends.
func TestMain(m *testing.M) {
	if os.Getenv("HOTPROFILE_TEST_ACCEPT") == "" {
		os.Exit(m.Run())
	}
	l, err := net.Listen("tcp", os.Getenv("HOTPROFILE_TEST_ACCEPT"))
	if err != nil {
		panic(err)
	}
	fmt.Println(l.Addr())
	go func() {
		for {
			if _, err := l.Accept(); err != nil {
				return
			}
		}
	}()
	_, _ = io.Copy(io.Discard, os.Stdin)
}

// server starts another process that accepts connections at an address.
func server(t *testing.T, at string) (pid int, address string, stop func()) {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), "HOTPROFILE_TEST_ACCEPT="+at)
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	stopped := false
	stop = func() {
		if !stopped {
			stopped = true
			_ = in.Close()
			require.NoError(t, cmd.Wait())
		}
	}
	t.Cleanup(stop)
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	return cmd.Process.Pid, strings.TrimSpace(line), stop
}

func find(t *testing.T, f *Finder, address string) ([]int, error) {
	t.Helper()
	c, err := net.Dial("tcp", address)
	require.NoError(t, err)
	defer c.Close()
	return f.Find(t.Context(), c)
}

func TestTheOtherEndIsTheServer(t *testing.T) {
	for _, at := range []string{"127.0.0.1:0", "[::1]:0", ":0"} {
		t.Run(at, func(t *testing.T) {
			pid, address, _ := server(t, at)
			_, port, err := net.SplitHostPort(address)
			require.NoError(t, err)
			if at == ":0" {
				address = "127.0.0.1:" + port // the server's socket is an IPv6 socket
			}
			f := New("")
			for range 2 { // the second search begins with the process of the first search
				got, err := find(t, f, address)
				require.NoError(t, err)
				require.Equal(t, []int{pid}, got)
			}
		})
	}
}

// TestARestartedServerIsFound covers a server that was restarted at the same
// address and has another pid.
func TestARestartedServerIsFound(t *testing.T) {
	first, address, stop := server(t, "127.0.0.1:0")
	f := New("")
	got, err := find(t, f, address)
	require.NoError(t, err)
	require.Equal(t, []int{first}, got)
	stop()
	second, _, _ := server(t, address)
	got, err = find(t, f, address)
	require.NoError(t, err)
	require.Equal(t, []int{second}, got)
}

// TestAConnectionThatIsNotAcceptedHasNoProcess covers a connection that waits in the
// backlog of a server.
func TestAConnectionThatIsNotAcceptedHasNoProcess(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	f := New("")
	accept := time.AfterFunc(time.Minute, func() { _, _ = l.Accept() })
	defer accept.Stop()
	_, err = find(t, f, l.Addr().String())
	require.ErrorContains(t, err, "did not accept")
}
