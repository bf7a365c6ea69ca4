// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package agreement_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/hotprofile/hotprofile/internal/cgroup"
	"github.com/hotprofile/hotprofile/internal/hosttest"
	"github.com/hotprofile/hotprofile/internal/monitor"
	"github.com/hotprofile/hotprofile/test/agreement"
)

const (
	window      = 4 * time.Second
	busyThreads = 2
	topLater    = 200 * time.Millisecond
	settled     = 300 * time.Millisecond // of CPU time, before the first reading
)

// cases are quotas, in cores and 0 for none, and how much of its time each of the
// load's two threads is busy: one in user code, one in the kernel.
var cases = []struct{ quota, duty float64 }{
	{0.5, 1},
	{1, 0.8},
	{1.5, 1},
	{0, 0.9},
}

func each(t *testing.T, measure func(t *testing.T, quota float64, load []string)) {
	for _, c := range cases {
		name := fmt.Sprintf("%v cores", c.quota)
		if c.quota == 0 {
			name = "no quota"
		}
		t.Run(name, func(t *testing.T) {
			measure(t, c.quota, []string{"-threads", "1", "-kernel-threads", "1", "-duty", fmt.Sprint(c.duty)})
		})
	}
}

func TestCgroup(t *testing.T) {
	h := openHost(t)
	load := filepath.Join(t.TempDir(), "load")
	build(t, load)
	each(t, func(t *testing.T, quota float64, args []string) {
		c := hosttest.NewCgroup(t, "hotprofile-agreement")
		if quota > 0 {
			c.SetQuota(t, quota)
		}
		cmd := c.Command(load, args...)
		require.NoError(t, cmd.Start())
		t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
		var u cgroup.Unit
		require.Eventually(t, func() bool {
			var ok bool
			u, ok = h.tree.UnitAt(c.Path)
			pids, err := h.tree.Processes(u)
			return ok && err == nil && pids[cmd.Process.Pid]
		}, 10*time.Second, time.Millisecond, "the load is to be in its cgroup")
		h.agree(t, u, cmd.Process.Pid, quota)
	})
}

func TestContainer(t *testing.T) {
	if out, err := exec.Command("docker", "info").CombinedOutput(); err != nil {
		hosttest.SkipUnprivileged(t, "no Docker engine answers: %v: %s", err, out)
	}
	h := openHost(t)
	engine, err := agreement.NewDocker(os.Getenv("DOCKER_HOST"))
	require.NoError(t, err)
	defer engine.Close()
	image := importLoad(t)
	each(t, func(t *testing.T, quota float64, args []string) {
		run := []string{"run", "-d", "--network", "none"}
		if quota > 0 {
			run = append(run, "--cpus", fmt.Sprint(quota))
		}
		id := docker(t, append(append(run, image), args...)...)
		t.Cleanup(func() { _ = exec.Command("docker", "rm", "-f", id).Run() })
		pid, err := strconv.Atoi(docker(t, "inspect", "-f", "{{.State.Pid}}", id))
		require.NoError(t, err)
		u, ok, err := h.tree.FindContainer(id)
		require.NoError(t, err)
		require.True(t, ok)
		unified := h.tree.Mount(cgroup.CPUAcct) == ""
		h.agree(t, u, pid, quota, engine.Stats(id, unified, false), engine.Stats(id, unified, true))
	})
}

// host is this machine and the means to read it.
type host struct {
	tree   *cgroup.Tree
	source *monitor.Source
	tick   time.Duration
}

func openHost(t *testing.T) *host {
	t.Helper()
	tree, err := cgroup.Open("/")
	require.NoError(t, err)
	h := &host{tree: tree}
	h.source, err = monitor.NewSource(tree, monitor.Options{MaxOpenFiles: 64})
	require.NoError(t, err)
	t.Cleanup(h.source.Close)
	h.tick, err = agreement.SchedulerTick()
	require.NoError(t, err)
	t.Logf("%s, scheduler tick %v", tree.Mode(), h.tick)
	return h
}

// limitOf is what a process may use: its quota, or the CPUs that the scheduler
// lets it have.
func limitOf(t *testing.T, pid int, quota float64) float64 {
	t.Helper()
	var cpus unix.CPUSet
	require.NoError(t, unix.SchedGetaffinity(pid, &cpus))
	if quota <= 0 {
		return float64(cpus.Count())
	}
	return min(quota, float64(cpus.Count()))
}

// Our figures, by their places.
var figures = []string{monitor.CPUUsage, monitor.CPUUtilization}

const (
	usage = iota
	utilization
)

// agree has every tool and our monitors read the unit, whose only process has a
// pid, and holds what they say against each other.
func (h *host) agree(t *testing.T, u cgroup.Unit, pid int, quota float64, slow ...agreement.Tool) {
	t.Helper()
	limit := limitOf(t, pid, quota)
	w, err := h.source.WatchUnit(u, figures)
	require.NoError(t, err)
	defer w.Close()
	read := func() ([]agreement.Point, error) {
		now, out := time.Now(), make([]monitor.Result, len(figures))
		w.Read(now, out)
		points := make([]agreement.Point, len(figures))
		for i, r := range out {
			if r.Err != nil || r.Restarted {
				return nil, fmt.Errorf("%s: restarted %v: %w", figures[i], r.Restarted, r.Err)
			}
			points[i] = agreement.Point{At: r.Reading.Time, Num: r.Reading.Num, Den: r.Reading.Den}
		}
		return points, nil
	}
	require.Eventually(t, func() bool {
		p, err := read()
		require.NoError(t, err)
		return p[usage].Num > settled.Seconds()
	}, 20*time.Second, 20*time.Millisecond, "the load is to be busy")

	cadvisor, err := agreement.CAdvisor(h.tree, u)
	require.NoError(t, err)
	if _, err := exec.LookPath("top"); err != nil {
		hosttest.SkipUnprivileged(t, "%v", err)
	}
	// The slow ones first, so that they do not lengthen the window of the others.
	tools := append(slow, agreement.Top(pid, window+topLater),
		agreement.ProcStat(pid), agreement.Gopsutil(pid), agreement.Containerd(u), cadvisor)

	all, err := agreement.Measure(read, tools, window)
	require.NoError(t, err)
	require.Equal(t, limit, w.Capacity().Cores, "the limit that was set; found: %+v", w.Capacity())
	bound := agreement.Bound{Tick: h.tick, CPUs: busyThreads, Limit: limit}
	h.report(t, all, bound)
	for _, m := range all {
		t.Run(strings.Trim(m.Tool, "/"), func(t *testing.T) {
			for figure, err := range disagreements(m, bound) {
				t.Errorf("%s: %v", figure, err)
			}
		})
	}
	checkThatItCanFail(t, all, bound)
}

// disagreements are what is too far apart, by our figure. Of our cpu_utilization a
// tool knows nothing: its cores by the limit that was set stand for it.
func disagreements(m *agreement.Measurement, b agreement.Bound) map[string]error {
	out := map[string]error{}
	within := b.Total(m.Theirs)
	low, high := m.Range(usage)
	if apart := agreement.Apart(m.Theirs.Total, low, high); apart > within {
		out[monitor.CPUUsage] = fmt.Errorf("theirs is %.4f cores, ours %.4f to %.4f: %.4f apart, more than %.4f", m.Theirs.Total, low, high, apart, within)
	}
	low, high = m.Range(utilization)
	low, high, theirs, points := 100*low, 100*high, 100*m.Theirs.Total/b.Limit, 100*within/b.Limit
	if apart := agreement.Apart(theirs, low, high); apart > points {
		out[monitor.CPUUtilization] = fmt.Errorf("theirs is %.2f %%, ours %.2f to %.2f: %.2f points apart, more than %.2f", theirs, low, high, apart, points)
	}
	return out
}

func (h *host) report(t *testing.T, all []*agreement.Measurement, b agreement.Bound) {
	t.Helper()
	var s strings.Builder
	tab := tabwriter.NewWriter(&s, 0, 0, 2, ' ', 0)
	fmt.Fprintf(tab, "\n%v cores\twindow\ttheirs, cores\tours\trange\ttheirs, %% of limit\tours\tapart, points\tbound\ttheir user\tsystem\t\n", b.Limit)
	for _, m := range all {
		f := m.Theirs
		low, high := m.Range(usage)
		lowU, highU := m.Range(utilization)
		percent := 100 * f.Total / b.Limit
		split := "-\t-"
		if agreement.Shows(f.User) {
			split = fmt.Sprintf("%.4f\t%.4f", f.User, f.System)
		}
		fmt.Fprintf(tab, "%s\t%.3fs\t%.4f\t%.4f\t%.4f..%.4f\t%.2f\t%.2f\t%.2f\t%.2f\t%s\t\n", m.Tool, f.Elapsed.Seconds(),
			f.Total, m.Ours(usage), low, high, percent, 100*m.Ours(utilization),
			agreement.Apart(percent, 100*lowU, 100*highU), 100*b.Total(f)/b.Limit, split)
	}
	_ = tab.Flush()
	t.Log(s.String())
}

// checkThatItCanFail holds the same readings against what is not so: they must not
// agree with it.
func checkThatItCanFail(t *testing.T, all []*agreement.Measurement, b agreement.Bound) {
	t.Helper()
	t.Run("a wrong capacity is seen", func(t *testing.T) {
		for _, m := range all {
			wrong := b
			wrong.Limit *= 1.25
			require.Contains(t, disagreements(m, wrong), monitor.CPUUtilization, m.Tool)
		}
	})
	t.Run("ticks that are lost are seen", func(t *testing.T) {
		for _, m := range all {
			low, _ := m.Range(usage)
			lost := *m
			// One tick per CPU less than what may be missing.
			ticks := float64(b.CPUs) * b.Tick.Seconds() / m.Theirs.Elapsed.Seconds()
			lost.Theirs.Total = low - b.Total(m.Theirs) - ticks
			require.Contains(t, disagreements(&lost, b), monitor.CPUUsage, m.Tool)
			lost.Theirs.Total = low - b.Total(m.Theirs) + ticks
			require.NotContains(t, disagreements(&lost, b), monitor.CPUUsage, m.Tool)
		}
	})
}

func build(t *testing.T, to string) {
	t.Helper()
	cmd := exec.Command("go", "build", "-o", to, "../load")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
}

// importLoad makes an image of nothing but the load.
func importLoad(t *testing.T) string {
	t.Helper()
	const image = "hotprofile-agreement-load"
	dir := t.TempDir()
	build(t, filepath.Join(dir, "load"))
	tar := filepath.Join(dir, "image.tar")
	out, err := exec.Command("tar", "-C", dir, "-cf", tar, "load").CombinedOutput()
	require.NoError(t, err, "%s", out)
	docker(t, "import", "--change", `ENTRYPOINT ["/load"]`, tar, image)
	t.Cleanup(func() { _ = exec.Command("docker", "rmi", "-f", image).Run() })
	return image
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
