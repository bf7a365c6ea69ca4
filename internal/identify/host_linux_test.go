// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package identify

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/hotprofile/hotprofile/internal/cgroup"
	"github.com/hotprofile/hotprofile/test/hosttest"
)

func begin(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
}

// TestPIDReused covers two processes of the same executable that have the same pid, one
// after the other. The host must not confuse the two processes.
func TestPIDReused(t *testing.T) {
	tree, err := cgroup.Open("/")
	require.NoError(t, err)
	h := NewHost("/", tree, noneWatched, time.Now)
	first := exec.Command("/bin/sleep", "600")
	began := time.Now()
	begin(t, first)
	pid := first.Process.Pid
	before, ok := h.Process(pid)
	require.True(t, ok)
	taken := time.Now()
	require.WithinRange(t, before.Started, began.Add(-time.Second), taken.Add(time.Second))
	claims := map[string]Claim{
		"with creation time": {PID: pid, Created: before.Started, ExecutablePath: before.Executable, ExecutableName: "sleep"},
		"without":            {PID: pid, ExecutablePath: before.Executable, ExecutableName: "sleep"},
	}
	for name, c := range claims {
		got, why := Match(h, ScopeProcess, c, taken)
		require.Empty(t, why, name)
		require.Equal(t, before.Name, got.Name, name)
	}
	require.NoError(t, first.Process.Kill())
	_ = first.Wait()
	for name, c := range claims {
		_, why := Match(h, ScopeProcess, c, taken)
		require.Equal(t, NoProcess, why, name)
	}

	time.Sleep(1200 * time.Millisecond) // longer than the allowed difference of creation times
	forkWithPID(t, pid, "/bin/sleep", "60")
	after, ok := h.Process(pid)
	require.True(t, ok)
	require.NotEqual(t, before.Name, after.Name)
	for name, c := range claims {
		_, why := Match(h, ScopeProcess, c, taken)
		require.NotEmpty(t, why, "%s: taken for the process that has its pid now", name)
	}
	got, why := Match(h, ScopeProcess, Claim{PID: pid, Created: after.Started}, time.Now())
	require.Empty(t, why)
	require.Equal(t, after.Name, got.Name)
}

// TestReplacedExecutableIsMatched covers a running program whose file was replaced. Some
// senders report the target of the link /proc/PID/exe as the path of the executable.
func TestReplacedExecutableIsMatched(t *testing.T) {
	tree, err := cgroup.Open("/")
	require.NoError(t, err)
	content, err := os.ReadFile("/bin/sleep")
	require.NoError(t, err)
	file := filepath.Join(t.TempDir(), "a service of one's own")
	require.NoError(t, os.WriteFile(file, content, 0o755))
	cmd := exec.Command(file, "600")
	begin(t, cmd)
	require.NoError(t, os.Remove(file))
	link, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", cmd.Process.Pid))
	require.NoError(t, err)
	require.Contains(t, link, " (deleted)")
	h := NewHost("/", tree, noneWatched, time.Now)
	for name, c := range map[string]Claim{
		"path":          {PID: cmd.Process.Pid, ExecutablePath: link},
		"name":          {PID: cmd.Process.Pid, ExecutableName: filepath.Base(link)},
		"path, cleaned": {PID: cmd.Process.Pid, ExecutablePath: file},
	} {
		_, why := Match(h, ScopeProcess, c, time.Now())
		require.Empty(t, why, name)
	}
	_, why := Match(h, ScopeProcess, Claim{PID: cmd.Process.Pid, ExecutablePath: "/bin/other (deleted)", ExecutableName: "other (deleted)"}, time.Now())
	require.Equal(t, OtherProcess, why)
}

// forkWithPID starts a program with the given pid. It sets the last pid of the kernel to
// pid - 1, and tries again if another program has started in between.
func forkWithPID(t *testing.T, pid int, name string, args ...string) {
	t.Helper()
	for range 200 {
		if err := os.WriteFile("/proc/sys/kernel/ns_last_pid", []byte(strconv.Itoa(pid-1)), 0); err != nil {
			hosttest.SkipUnprivileged(t, "cannot choose a pid: %v", err)
		}
		cmd := exec.Command(name, args...)
		require.NoError(t, cmd.Start())
		if cmd.Process.Pid == pid {
			t.Cleanup(func() {
				_ = cmd.Process.Kill()
				_ = cmd.Wait()
			})
			return
		}
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
	t.Skip("other programs started too often to get the pid")
}

// TestContainerFoundByItsProfile creates a cgroup with the name of a
// container after the last scan.
func TestContainerFoundByItsProfile(t *testing.T) {
	tree, err := cgroup.Open("/")
	require.NoError(t, err)
	watched := map[string]cgroup.Group{}
	now := time.Now()
	h := NewHost("/", tree, func(name string) (cgroup.Group, bool) { g, ok := watched[name]; return g, ok }, func() time.Time { return now })
	_, ok := h.Container(containerB)
	require.False(t, ok)
	container := hosttest.NewContainer(t, containerB, 0)
	begin(t, container.Command("/bin/sh", "-c", "while :; do :; done"))

	_, ok = h.Container(containerB)
	require.False(t, ok, "it was looked for just now")
	now = now.Add(missingFor)
	u, ok := h.Container(containerB)
	require.True(t, ok)
	require.Equal(t, containerB, u.ContainerID)
	short, ok := h.Container(containerB[:12])
	require.True(t, ok)
	require.Equal(t, containerB, short.ContainerID)
	require.Equal(t, containerB, h.full(containerB[:12]))
	byPath, ok := h.Cgroup(container.Path)
	require.True(t, ok)
	require.Equal(t, containerB, byPath.ID)

	watched[u.ID] = u
	h.Tree = nil
	_, ok = h.Container(containerB[:12])
	require.True(t, ok, "what is watched is not looked for")

	parent := filepath.Dir(container.Path)
	for _, path := range []string{"/../etc", "relative", parent + "/", parent + "/../" + filepath.Base(parent), "/", "/gone"} {
		h.Tree = tree
		_, ok = h.Cgroup(path)
		require.False(t, ok, path)
	}
	u, ok = h.Cgroup(parent)
	require.True(t, ok)
	require.Equal(t, parent, u.ID)
}

// TestContainerOfAPodIsFound creates the cgroups of a container engine and the links of a
// kubelet. One container was restarted, and another container is added later.
func TestContainerOfAPodIsFound(t *testing.T) {
	const uid = "0b1c2d3e-0000-4000-8000-00000000aaaa"
	tree, err := cgroup.Open("/")
	if err != nil {
		hosttest.SkipUnprivileged(t, "no cgroups here: %v", err)
	}
	h := NewHost("/", tree, noneWatched, time.Now)
	h.podLogs = t.TempDir()
	link := func(name, id string) {
		require.NoError(t, os.Symlink("/var/log/pods/shop_cart-1_"+uid+"/"+name+"/0.log", filepath.Join(h.podLogs, "cart-1_shop_"+name+"-"+id+".log")))
	}
	running, other, ended := strings.Repeat("e1", 32), strings.Repeat("e2", 32), strings.Repeat("e3", 32)
	hosttest.NewContainer(t, running, 0)
	link("cart", running)
	link("cart", ended)
	begin := func() { // resets the bound on walks and the set of missing pods
		h.mu.Lock()
		defer h.mu.Unlock()
		clear(h.missing)
		h.walks = 0
	}
	id, why := h.PodContainer(uid, "cart")
	require.Empty(t, why)
	require.Equal(t, running, id)
	id, why = h.PodContainer(uid, "")
	require.Empty(t, why, "only one runs")
	require.Equal(t, running, id)
	_, why = h.PodContainer(uid, "proxy")
	require.Equal(t, NoContainerOfPod, why)

	hosttest.NewContainer(t, other, 0)
	link("proxy", other)
	begin()
	_, why = h.PodContainer(uid, "")
	require.Equal(t, SeveralContainers, why)
	begin()
	found, why := Match(h, ScopeCgroup, Claim{PodUID: uid, ContainerName: "proxy", HostName: "cart-1"}, time.Now())
	require.Empty(t, why)
	require.Equal(t, other, found.Group.ContainerID)
}

// TestPIDReusedWhileItIsRead covers a pid that is reused after its start time was read. A
// FIFO replaces the cgroup file, so that the reader blocks between the two steps.
func TestPIDReusedWhileItIsRead(t *testing.T) {
	root := t.TempDir()
	write(t, filepath.Join(root, "proc/1/mountinfo"), "33 25 0:28 / /sys/fs/cgroup rw shared:9 - cgroup2 cgroup2 rw\n")
	write(t, filepath.Join(root, "sys/fs/cgroup/cgroup.controllers"), "cpu\n")
	write(t, filepath.Join(root, "sys/fs/cgroup/cgroup.procs"), "")
	started := func(ticks string) string {
		return "700 (app) S 1 700 700 0 -1 4194304 1 0 0 0 11 12 0 0 20 0 1 0 " + ticks + " 1 2\n"
	}
	stat, paths := filepath.Join(root, "proc/700/stat"), filepath.Join(root, "proc/700/cgroup")
	write(t, stat, started("5000"))
	require.NoError(t, unix.Mkfifo(paths, 0o600))
	tree, err := cgroup.Open(root)
	require.NoError(t, err)
	h := NewHost(root, tree, noneWatched, time.Now)
	for name, c := range map[string]struct {
		start string
		ok    bool
	}{
		"the same process": {"5000", true},
		"another process":  {"9000", false},
	} {
		t.Run(name, func(t *testing.T) {
			write(t, stat, started("5000"))
			ok := make(chan bool, 1)
			go func() {
				_, found := h.Process(700)
				ok <- found
			}()
			fifo, err := os.OpenFile(paths, os.O_WRONLY, 0) // waits for the reader
			require.NoError(t, err)
			write(t, stat, started(c.start))
			_, err = fifo.WriteString("0::" + service + "\n")
			require.NoError(t, err)
			require.NoError(t, fifo.Close())
			require.Equal(t, c.ok, <-ok)
		})
	}
}
