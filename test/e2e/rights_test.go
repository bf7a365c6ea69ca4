// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package e2e

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/hotprofile/hotprofile/test/hosttest"
)

const nobody = 65534

// TestOrdinaryUserWithTheDocumentedCapabilities runs the collector as an ordinary user
// with the documented capabilities. A process of the root user is hot in its cgroup. The
// collector must export profiles of this process.
func TestOrdinaryUserWithTheDocumentedCapabilities(t *testing.T) {
	t.Parallel()
	requireRoot(t)
	hot := newCgroup(t, "hot")
	hot.SetQuota(t, cores)
	hot.RaiseWeight(t)
	w := startWire(t)
	c := startAs(t, gateTo(w, "/"), &syscall.SysProcAttr{
		Credential:  &syscall.Credential{Uid: nobody, Gid: nobody},
		AmbientCaps: []uintptr{unix.CAP_PERFMON, unix.CAP_SYS_PTRACE, unix.CAP_DAC_READ_SEARCH, unix.CAP_SYSLOG},
	})
	started := c.wait(startTimeout, "sampling started", nil)
	require.Equal(t, "[]", started.str("not_sampled"))
	require.Equal(t, "[]", started.str("not_shown"))
	requireTimerSlack(t, c.cmd.Process.Pid)
	startLoad(t, hot.Command(loadBinary), hotService)
	c.wait(startTimeout, "gate opened", func(l logLine) bool { return l.str("unit") == hot.Path })
	c.wait(startTimeout, "gate closed", func(l logLine) bool { return l.str("unit") == hot.Path })
	c.stop()
	n := shares(flatten(w.received()), "burnThreeParts", "burnOnePart")
	require.Greater(t, n["burnThreeParts"], n["burnOnePart"])
}

// requireTimerSlack checks that each thread of a collector, the Go runtime's monitor thread
// among them, has a longer timer slack than the kernel's default of 50 µs.
func requireTimerSlack(t *testing.T, pid int) {
	t.Helper()
	threads, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	require.NoError(t, err)
	for _, thread := range threads {
		slack, err := os.ReadFile("/proc/" + thread.Name() + "/timerslack_ns")
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
			continue // the thread has ended
		}
		require.NoError(t, err)
		require.Equal(t, "500000\n", string(slack), "thread %s of %d", thread.Name(), pid)
	}
}

// TestOrdinaryUserOnOwnProcesses opens the gate of a process of the collector's own user.
// The collector has no capability, and its log must name the data that is not sampled.
func TestOrdinaryUserOnOwnProcesses(t *testing.T) {
	t.Parallel()
	var user *syscall.SysProcAttr
	if os.Geteuid() == 0 {
		// The user has no other process, because the kernel limits the locked memory of perf
		// event rings for each user.
		user = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody - 1, Gid: nobody}}
	}
	if paranoid, err := os.ReadFile("/proc/sys/kernel/perf_event_paranoid"); err != nil || strings.TrimSpace(string(paranoid)) > "2" {
		hosttest.SkipUnprivileged(t, "kernel.perf_event_paranoid %s does not permit perf events to users (%v)", paranoid, err)
	}
	w := startWire(t)
	config := strings.ReplaceAll(gateTo(w, "/"), "evaluation_interval: 500ms", "evaluation_interval: 500ms\n    scope: process")
	config = strings.ReplaceAll(config, "{monitor: cpu_utilization, threshold: 80, average_over: 3s}", "{monitor: cpu_usage, threshold: 0.3, average_over: 3s}")
	c := startAs(t, config, user)
	started := c.wait(startTimeout, "sampling started", nil)
	require.Contains(t, started.str("not_sampled"), "CAP_PERFMON")
	load := exec.Command(loadBinary)
	load.SysProcAttr = user
	startLoad(t, load, hotService)
	if os.Geteuid() == 0 {
		favoured := newCgroup(t, "own")
		favoured.SetQuota(t, cores)
		favoured.RaiseWeight(t)
		favoured.Add(t, load.Process.Pid)
	}
	unit := fmt.Sprintf("%d:", load.Process.Pid)
	isHot := func(l logLine) bool { return strings.HasPrefix(l.str("unit"), unit) }
	c.wait(startTimeout, "gate opened", isHot)
	c.wait(startTimeout, "gate closed", isHot)
	c.stop()
	n := shares(flatten(w.received()), "burnThreeParts", "burnOnePart")
	require.Greater(t, n["burnThreeParts"], n["burnOnePart"])
}

func requireRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		hosttest.SkipUnprivileged(t, "only root may start a collector as another user")
	}
}

// copied ensures that the distribution is copied only once.
var copied sync.Once

// startAs starts a copy of the distribution with other credentials.
func startAs(t *testing.T, config string, as *syscall.SysProcAttr) *collector {
	t.Helper()
	args := exposedCollector(t, config)
	cmd := exec.Command(args[0], args[1:]...)
	cmd.SysProcAttr = as
	return watch(t, "collector", cmd)
}

// exposedCollector copies the distribution, so that all users
// may run it. It returns the command line of the copy.
func exposedCollector(t *testing.T, config string) []string {
	t.Helper()
	dir := filepath.Dir(loadBinary)
	binary := filepath.Join(dir, "collector")
	copied.Do(func() {
		out, err := exec.Command("cp", "--", collectorBinary, binary).CombinedOutput()
		require.NoError(t, err, "%s", out)
	})
	file := filepath.Join(dir, strings.ReplaceAll(t.Name(), "/", "-")+".yaml")
	require.NoError(t, os.WriteFile(file, []byte(config), 0o644))
	return []string{binary, "--config", file}
}
