// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package httplisten

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/hotprofile/hotprofile/internal/cgroup"
	"github.com/hotprofile/hotprofile/internal/procfs"
	"github.com/hotprofile/hotprofile/test/hosttest"
)

// TestContainersOfOneUserLeaveRoomForOthers stalls requests of several processes in two
// containers of user 0. The server must still serve a third container of this user.
func TestContainersOfOneUserLeaveRoomForOthers(t *testing.T) {
	release := make(chan struct{})
	handler, entered := stalling(release)
	cfg := overUnix(t, newConfig(func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).Flush() // shows the client that it is served
		handler(w, r)
	}))
	cfg.MaxConnections = 16
	tree, err := cgroup.Open("/")
	require.NoError(t, err)
	cfg.Cgroups = tree
	s := start(t, cfg)
	t.Cleanup(func() { close(release) })
	var containers [3]*hosttest.Cgroup
	for i := range containers {
		containers[i] = hosttest.NewContainer(t, strings.Repeat(fmt.Sprint(i+1), 64), 0)
	}
	self, err := os.Executable()
	require.NoError(t, err)
	stall := func(in *hosttest.Cgroup) {
		cmd := in.Command(self, "-test.run", "^TestClientProcess$")
		cmd.Env = append(os.Environ(), clientEnv+"="+s.Addr().String(), fmt.Sprintf("%s=%d", stallEnv, cfg.MaxConnections))
		end, err := cmd.StdinPipe()
		require.NoError(t, err)
		require.NoError(t, cmd.Start())
		t.Cleanup(func() {
			_ = end.Close()
			_ = cmd.Wait()
		})
	}
	refused := uint64(0)
	// The first client gets half of the connections, and its second process gets no
	// more. The second client gets half of the remaining connections, and its second
	// process gets no more.
	for i, want := range []int{8, 0, 4, 0} {
		stall(containers[i/2])
		refused += uint64(cfg.MaxConnections - want)
		for range want {
			select {
			case <-entered:
			case <-time.After(patience):
				t.Fatal("too few requests are served")
			}
		}
		require.Eventually(t, func() bool { return s.Stats().Refused >= refused }, patience, time.Millisecond)
		require.Empty(t, entered)
	}
	cmd := containers[2].Command(self, "-test.run", "^TestClientProcess$")
	cmd.Env = append(os.Environ(), clientEnv+"="+s.Addr().String())
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Equal(t, Stats{Refused: refused}, s.Stats())
}

func TestClientOnHost(t *testing.T) {
	tree, err := cgroup.Open("/")
	require.NoError(t, err)
	id := strings.Repeat("ab", 32)
	container, service := hosttest.NewContainer(t, id, 0), hosttest.NewCgroup(t, "hotprofile-listen")
	in := func(c *hosttest.Cgroup) int {
		cmd := c.Command("sleep", "3600")
		require.NoError(t, cmd.Start())
		t.Cleanup(func() {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		})
		require.Eventually(t, func() bool {
			paths, err := tree.PathsOf(cmd.Process.Pid)
			return err == nil && tree.GroupOf(paths).Cgroup == c.Path
		}, patience, time.Millisecond, "it joins the cgroup")
		return cmd.Process.Pid
	}
	pid, other := in(container), in(service)
	require.Equal(t, client{name: "cgroup " + container.Path}, clientOnHost(pid, 0, tree))
	require.Equal(t, clientOnHost(pid, 0, tree), clientOnHost(in(container), 0, tree))
	require.Equal(t, client{user: "user 7", name: "cgroup " + container.Path}, clientOnHost(pid, 7, tree))
	require.Equal(t, client{user: "user 0", name: "cgroup " + service.Path}, clientOnHost(other, 0, tree))
	require.Equal(t, client{user: "user 7", name: fmt.Sprintf("process %d of user 7", pid)}, clientOnHost(pid, 7, nil))
	require.Equal(t, client{user: "user 7", name: "process 0 of user 7"}, clientOnHost(0, 7, tree), "of another pid namespace")
	require.Equal(t, client{user: "user 7", name: "ended processes of user 7"}, clientOnHost(procfs.MaxPID+1, 7, tree))
}

// TestAnIdleConnectionGivesWayBesideBusyOnesOfALargerClient checks that an idle
// connection is closed first. A larger client whose requests have just arrived keeps
// its connections.
func TestAnIdleConnectionGivesWayBesideBusyOnesOfALargerClient(t *testing.T) {
	listener, err := net.Listen("tcp", "localhost:0")
	require.NoError(t, err)
	defer listener.Close()
	sender, err := net.Dial("tcp", listener.Addr().String())
	require.NoError(t, err)
	defer sender.Close()
	receiver, err := listener.Accept()
	require.NoError(t, err)
	defer receiver.Close()
	_, err = sender.Write([]byte("GET"))
	require.NoError(t, err)
	raw, err := receiver.(*net.TCPConn).SyscallConn()
	require.NoError(t, err)
	require.Eventually(t, func() bool { return hasUnread(raw) }, time.Minute, time.Millisecond)

	l := newConnections(4, nil, func(client, bool) {})
	for _, c := range []*conn{{client: client{name: "busy"}, raw: raw}, {client: client{name: "busy"}, raw: raw}, {client: client{name: "idle"}}, {client: client{name: "later"}}} {
		c.of = l
		admitted, _ := l.admit(c)
		require.True(t, admitted)
	}
	_, victim := l.admit(&conn{of: l, client: client{name: "new"}})
	require.NotNil(t, victim)
	require.Equal(t, "idle", victim.client.name)
}
