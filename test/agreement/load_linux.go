// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package agreement

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

// BusyThreads is the number of busy threads of a load. One thread is busy in
// user code, and one in the kernel.
const BusyThreads = 2

// Load is a program that is the only process of its unit.
type Load struct {
	Unit  cgroup.Group
	PID   int
	Limit float64 // number of CPUs that the load may use
	// Slow lists the tools that exist only for this kind of unit. These tools take a long
	// time for a reading.
	Slow []Tool
}

// Start runs a load until the end of the test. quota is in cores, and 0 means no quota.
// duty is the share of the time that each thread is busy.
type Start func(t *testing.T, quota, duty float64) Load

// InCgroup returns a Start that runs each load in its own cgroup.
func InCgroup(t *testing.T, tree *cgroup.Tree) Start {
	t.Helper()
	program := build(t)
	return func(t *testing.T, quota, duty float64) Load {
		t.Helper()
		c := hosttest.NewCgroup(t, "hotprofile-agreement")
		if quota > 0 {
			c.SetQuota(t, quota)
		}
		cmd := c.Command(program, arguments(duty)...)
		require.NoError(t, cmd.Start())
		t.Cleanup(func() {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		})
		l := Load{PID: cmd.Process.Pid}
		require.Eventually(t, func() bool {
			var ok bool
			l.Unit, ok = tree.GroupAt(c.Path)
			pids, err := tree.Processes(l.Unit)
			return ok && err == nil && pids[l.PID]
		}, 30*time.Second, time.Millisecond, "the load is to be in its cgroup")
		l.Limit = limitOf(t, l.PID, quota)
		return l
	}
}

// InContainer returns a Start that runs each load in a container of the Docker engine. It
// skips the test if no engine answers.
func InContainer(t *testing.T, tree *cgroup.Tree) Start {
	t.Helper()
	if out, err := exec.Command("docker", "info").CombinedOutput(); err != nil {
		hosttest.SkipUnprivileged(t, "no Docker engine answers: %v: %s", err, out)
	}
	engine, err := NewDocker(os.Getenv("DOCKER_HOST"))
	require.NoError(t, err)
	t.Cleanup(engine.Close)
	const image = "hotprofile-agreement-load"
	program := build(t)
	tar := filepath.Join(t.TempDir(), "image.tar")
	out, err := exec.Command("tar", "-C", filepath.Dir(program), "-cf", tar, filepath.Base(program)).CombinedOutput()
	require.NoError(t, err, "%s", out)
	docker(t, "import", "--change", `ENTRYPOINT ["/load"]`, tar, image)
	t.Cleanup(func() { _ = exec.Command("docker", "rmi", "-f", image).Run() })
	unified := tree.Mount(cgroup.CPUAcct) == ""
	return func(t *testing.T, quota, duty float64) Load {
		t.Helper()
		run := []string{"run", "-d", "--network", "none"}
		if quota > 0 {
			run = append(run, "--cpus", fmt.Sprint(quota))
		}
		id := docker(t, append(append(run, image), arguments(duty)...)...)
		t.Cleanup(func() { _ = exec.Command("docker", "rm", "-f", id).Run() })
		pid, err := strconv.Atoi(docker(t, "inspect", "-f", "{{.State.Pid}}", id))
		require.NoError(t, err)
		u, ok, err := tree.FindContainer(id)
		require.NoError(t, err)
		require.True(t, ok, "the container is to be found")
		return Load{u, pid, limitOf(t, pid, quota), []Tool{engine.Stats(id, unified, false), engine.Stats(id, unified, true)}}
	}
}

// Tools returns all tools that can read the load. window is the time between the two
// readings that [Measure] takes with each tool.
func (l Load) Tools(t *testing.T, tree *cgroup.Tree, window time.Duration) []Tool {
	t.Helper()
	hosttest.Tool(t, "top")
	cadvisor, err := CAdvisor(tree, l.Unit)
	require.NoError(t, err)
	const later = 200 * time.Millisecond // enough time for the other tools' readings
	// Slow tools are read first, so that they do not lengthen
	// the window of the other tools.
	return append(l.Slow, Top(l.PID, window+later), ProcStat(l.PID), Gopsutil(l.PID), Containerd(l.Unit), cadvisor)
}

func arguments(duty float64) []string {
	return []string{"-threads", "1", "-kernel-threads", "1", "-duty", fmt.Sprint(duty)}
}

// limitOf returns the number of CPUs that a process may use. It is the quota or the size
// of the process's CPU affinity mask, whichever is smaller.
func limitOf(t *testing.T, pid int, quota float64) float64 {
	t.Helper()
	var cpus unix.CPUSet
	require.NoError(t, unix.SchedGetaffinity(pid, &cpus))
	if quota <= 0 {
		return float64(cpus.Count())
	}
	return min(quota, float64(cpus.Count()))
}

func build(t *testing.T) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), "load")
	cmd := exec.Command("go", "build", "-o", program, "github.com/hotprofile/hotprofile/test/load")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	return program
}

func docker(t *testing.T, args ...string) string {
	t.Helper()
	cmd := exec.Command("docker", args...)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	require.NoError(t, err, "docker %v: %s", args, &stderr)
	return strings.TrimSpace(string(out))
}
