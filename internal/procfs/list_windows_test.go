// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package procfs

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/windows"
)

// TestMain runs the tests, or the other process that the tests start. The other process
// waits until its standard input ends.
func TestMain(m *testing.M) {
	if os.Getenv("HOTPROFILE_TEST_WAIT") == "" {
		os.Exit(m.Run())
	}
	_, _ = os.Stdin.Read(make([]byte, 1))
}

func TestTheListOfWindowsHasWhatAProcessKnowsOfItself(t *testing.T) {
	p, err := At("").Process(os.Getpid())
	require.NoError(t, err)
	var created, exited, kernel, user windows.Filetime
	self := windows.CurrentProcess()
	require.NoError(t, windows.GetProcessTimes(self, &created, &exited, &kernel, &user))
	started := TimeOf(BootTime(), p.Start)
	require.WithinDuration(t, time.Unix(0, created.Nanoseconds()), started, 2*Tick)
	path, err := At("").Executable(p.PID)
	require.NoError(t, err)
	own, err := os.Executable()
	require.NoError(t, err)
	require.Equal(t, own, path)
	stat, err := At("").Stat(p.PID)
	require.NoError(t, err)
	require.Equal(t, filepath.Base(own), string(stat.Comm))
	require.Positive(t, stat.Threads)
	all, err := List()
	require.NoError(t, err)
	n := slices.IndexFunc(all, func(l Listed) bool { return l.PID == p.PID })
	require.Greater(t, all[n].Resident, uint64(1<<20))
	cpus, err := CPUs(p.PID)
	require.NoError(t, err)
	require.Equal(t, OnlineCPUs(), cpus)
}

func TestAProcessOfWindowsThatHasEndedIsGone(t *testing.T) {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "HOTPROFILE_TEST_WAIT=1")
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	pid := cmd.Process.Pid
	_, err = At("").Stat(pid)
	require.NoError(t, err)
	require.NoError(t, in.Close())
	require.NoError(t, cmd.Wait())
	_, err = At("").Stat(pid)
	require.ErrorIs(t, err, fs.ErrNotExist)
	_, err = CPUs(pid)
	require.True(t, IsGone(err), "%v", err)
}
