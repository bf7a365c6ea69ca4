// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package collect

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/hotprofile/hotprofile/internal/cgroup"
	"github.com/hotprofile/hotprofile/test/hosttest"
)

// TestSandboxesAreNoUnits covers a pod that has a sandbox, which runs pause, and a
// container. The sandbox and the container both have a cgroup like a container.
func TestSandboxesAreNoUnits(t *testing.T) {
	sleep, err := os.ReadFile("/bin/sleep")
	require.NoError(t, err)
	dir := t.TempDir()
	program := func(name string) string {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, sleep, 0o755))
		return path
	}
	tree, err := cgroup.Open("/")
	require.NoError(t, err)
	start := func(id, name string) (cgroup.Group, *hosttest.Cgroup, *exec.Cmd) {
		in := hosttest.NewContainer(t, id, 0)
		cmd := in.Command(program(name), "600")
		require.NoError(t, cmd.Start())
		var g cgroup.Group
		require.Eventually(t, func() bool {
			var ok bool
			g, ok, err = tree.FindContainer(id)
			comm, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", cmd.Process.Pid))
			return ok && err == nil && string(comm) == name+"\n"
		}, 30*time.Second, time.Millisecond)
		return g, in, cmd
	}
	const hex = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcde"
	pod, podCgroup, _ := start(hex+"1", "pause")
	app, _, _ := start(hex+"2", "app")
	starting, _, _ := start(hex+"3", "runc:[2:INIT]")

	s := sandboxes{tree: tree}
	for range youngScans - 1 {
		s.begin()
		require.True(t, s.has(pod))
		require.False(t, s.has(app))
		require.True(t, s.has(starting))
	}
	s.begin()
	require.False(t, s.has(starting), "not for longer than a minute, whatever it is called")
	require.True(t, s.has(pod))

	second := podCgroup.Command("/bin/sh", "-c", "echo; exec sleep 600")
	out, err := second.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, second.Start())
	_, err = io.ReadFull(out, make([]byte, 1))
	require.NoError(t, err)
	s.begin()
	require.NotContains(t, s.last, hex+"2", "it was not found in the last scan")
	require.False(t, s.has(pod), "a second process makes it a unit")
}
