// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package processes

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/hotprofile/hotprofile/internal/cgroup"
	"github.com/hotprofile/hotprofile/internal/procfs"
	"github.com/hotprofile/hotprofile/test/hosttest"
)

func TestIdentifyReturnsStartAndGroup(t *testing.T) {
	tree, err := cgroup.Open("/")
	require.NoError(t, err)
	i := NewIdentifier("/", tree)
	at := hosttest.NewCgroup(t, "hotprofile-identify")
	cmd := at.Command("sleep", "60")
	time.Sleep(50 * time.Millisecond) // gives the new process a later start time than this process
	before := time.Now()
	require.NoError(t, cmd.Start())
	var first Identity
	require.Eventually(t, func() bool { // the process joins the cgroup before it executes the program
		first, err = i.Identify(cmd.Process.Pid)
		return err == nil && first.Cgroup == at.Path
	}, 30*time.Second, time.Millisecond)
	require.Equal(t, cmd.Process.Pid, first.PID)
	require.Equal(t, at.Path, first.Cgroup)
	require.Empty(t, first.ContainerID)
	require.WithinDuration(t, before, first.Started, 2*time.Second)
	again, err := i.Identify(cmd.Process.Pid)
	require.NoError(t, err)
	require.Equal(t, first, again)

	own, err := i.Identify(os.Getpid())
	require.NoError(t, err)
	require.NotEqual(t, own.Start, first.Start)

	require.NoError(t, cmd.Process.Kill())
	_ = cmd.Wait()
	_, err = i.Identify(cmd.Process.Pid)
	require.ErrorIs(t, err, ErrEnded)
}

func TestIdentifyReturnsTheContainer(t *testing.T) {
	root := t.TempDir()
	const id = "4f1c0c6b8a2e4f1c0c6b8a2e4f1c0c6b8a2e4f1c0c6b8a2e4f1c0c6b8a2e4f1c"
	write := func(name, content string) {
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(root, name)), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(root, name), []byte(content), 0o644))
	}
	write("proc/77/stat", "77 (dot net) S 1 77 77 0 -1 4194304 0 0 0 0 1 2 0 0 20 0 9 0 250 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0\n")
	i := NewIdentifier(root, nil)
	i.boot = time.Unix(1780000000, 0).UTC()
	got, err := i.Identify(77)
	require.NoError(t, err)
	require.Equal(t, Identity{Process: procfs.Process{PID: 77, Start: 250}, Started: time.Unix(1780000002, 500e6).UTC()}, got, "without cgroups to be read")

	tree, err := cgroup.Open("/")
	require.NoError(t, err)
	i = NewIdentifier(root, tree)
	got, err = i.Identify(77)
	require.NoError(t, err)
	require.Empty(t, got.Cgroup, "without a cgroup file")
	for _, line := range []string{"0::", "1:cpu,cpuacct:"} {
		write("proc/77/cgroup", line+"/docker/"+id+"\n")
		if paths, err := tree.ParsePaths([]byte(line + "/x\n")); err != nil || paths == (cgroup.Paths{}) {
			continue // this host has no such hierarchy
		}
		got, err = i.Identify(77)
		require.NoError(t, err)
		require.Equal(t, id, got.ContainerID)
		require.Equal(t, "/docker/"+id, got.Cgroup)
	}

	write("proc/78/stat", "nonsense")
	_, err = i.Identify(78)
	require.Error(t, err)
	require.NotErrorIs(t, err, ErrEnded)
	_, err = i.Identify(79)
	require.ErrorIs(t, err, ErrEnded)
}

// TestIdentifyDoesNotMixTwoProcesses replaces a process with another process that has the
// same pid. The cgroup file is a pipe, so that the test can replace the process before
// the file is read.
func TestIdentifyDoesNotMixTwoProcesses(t *testing.T) {
	tree, err := cgroup.Open("/")
	require.NoError(t, err)
	root := t.TempDir()
	dir := filepath.Join(root, "proc/77")
	require.NoError(t, os.MkdirAll(dir, 0o755))
	startAt := func(start int) {
		line := fmt.Sprintf("77 (app) S 1 77 77 0 -1 4194304 0 0 0 0 1 2 0 0 20 0 9 0 %d%s\n", start, strings.Repeat(" 0", 30))
		require.NoError(t, os.WriteFile(filepath.Join(dir, "stat"), []byte(line), 0o600))
	}
	startAt(250)
	pipe := filepath.Join(dir, "cgroup")
	require.NoError(t, unix.Mkfifo(pipe, 0o600))
	identified := make(chan error)
	var got Identity
	go func() {
		var err error
		got, err = NewIdentifier(root, tree).Identify(77)
		identified <- err
	}()
	w, err := os.OpenFile(pipe, os.O_WRONLY, 0) // blocks until the pipe is being read
	require.NoError(t, err)
	startAt(300)
	_, err = w.WriteString("0::/old\n1:cpu,cpuacct:/old\n")
	require.NoError(t, err)
	require.NoError(t, w.Close())
	require.ErrorIs(t, <-identified, ErrEnded, "%+v", got)
}
