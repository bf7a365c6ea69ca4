// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// TestEachLoadOpensTheGateOfItsOwnMonitor runs three loads and one policy for each monitor.
// Each load must open the gates of its own policies.
func TestEachLoadOpensTheGateOfItsOwnMonitor(test *testing.T) {
	const busy = 8 * time.Second // the minimum time
	c := pipeline{
		receiver: "{export_interval: 1s}",
		trigger: fmt.Sprintf(`
    policies:
      - {name: utilization, duration: 2s, match: {cgroup: %[1]q}, any_of: [{monitor: cpu_utilization, threshold: 80, average_over: 3s}]}
      - {name: throttling, duration: 2s, match: {cgroup: %[1]q}, any_of: [{monitor: cpu_throttling, threshold: 50, average_over: 3s}]}
      - {name: pressure, duration: 2s, match: {cgroup: %[1]q}, any_of: [{monitor: cpu_pressure, threshold: 50, average_over: 3s}]}
      - {name: bottleneck, duration: 2s, match: {cgroup: %[1]q}, any_of: [{monitor: cpu_bottleneck, threshold: 70, average_over: 3s}]}`, ofThisTest(test)),
		exporters: []string{startWire(test).exporter()},
	}.start(test, freePort(test))
	for _, l := range c.lines("monitor unavailable") {
		test.Logf("%v", l)
	}
	for _, load := range []struct {
		name      string
		cores     float64 // the quota; 0 means no quota
		alone     bool    // uses all CPUs
		args      []string
		opens     []string
		staysShut []string
	}{
		{
			name: "one thread under a wide limit", args: []string{"-threads", "1"},
			opens: []string{"bottleneck"}, staysShut: []string{"utilization", "throttling"},
		},
		{
			name: "one thread under a narrow limit", cores: 0.2, args: []string{"-threads", "1"},
			opens: []string{"throttling", "utilization"}, staysShut: []string{"bottleneck"},
		},
		{
			name: "more threads than CPUs", alone: true, args: []string{"-threads", "8"},
			opens: []string{"pressure"}, staysShut: []string{"throttling"},
		},
	} {
		test.Run(load.name, func(t *testing.T) {
			if !load.alone {
				t.Parallel()
			}
			cg := newCgroup(test, "monitors")
			if load.cores > 0 {
				cg.SetQuota(t, load.cores)
			}
			cg.RaiseWeight(t)
			began := time.Now()
			startLoad(t, cg.Command(loadBinary, load.args...), hotService)
			opened := func() (policies []string) {
				for _, l := range c.lines("gate opened") {
					if l.str("unit") == cg.Path {
						policies = append(policies, l.str("policy"))
					}
				}
				return policies
			}
			got := []string{}
			for time.Since(began) < busy || time.Since(began) < startTimeout && slices.ContainsFunc(load.opens, func(p string) bool { return !slices.Contains(got, p) }) {
				time.Sleep(100 * time.Millisecond)
				got = opened()
			}
			t.Logf("opened: %v", got)
			require.Subset(t, got, load.opens)
			for _, p := range load.staysShut {
				require.NotContains(t, got, p)
			}
		})
	}
}

// TestAProgramThatWaitsForItsDiskOpensTheGate runs a program
// that bypasses the kernel's cache when it reads a file.
func TestAProgramThatWaitsForItsDiskOpensTheGate(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, make([]byte, 16<<20), 0o600))
	read := []string{"if=" + file, "of=/dev/null", "bs=4k", "iflag=direct"}
	if out, err := exec.Command("dd", read...).CombinedOutput(); err != nil {
		t.Skipf("the file system of temporary files cannot be read past its cache: %v\n%s", err, out)
	}
	var fs unix.Statfs_t
	require.NoError(t, unix.Statfs(file, &fs))
	if fs.Type == unix.TMPFS_MAGIC || fs.Type == unix.RAMFS_MAGIC {
		t.Skip("temporary files are in memory: nothing waits for a disk")
	}
	cg := newCgroup(t, "disk")
	cg.RaiseWeight(t)
	c := pipeline{
		receiver: "{export_interval: 1s}",
		trigger: fmt.Sprintf(`
    policies:
      - {name: disk, duration: 2s, match: {cgroup: %q}, any_of: [{monitor: io_pressure, threshold: 1, average_over: 2s}]}`, cg.Path),
		exporters: []string{startWire(t).exporter()},
	}.start(t, freePort(t))
	startLoad(t, cg.Command("/bin/sh", append([]string{"-c", `while dd "$@" 2>/dev/null; do :; done`, "sh"}, read...)...), hotService)
	ours := func(l logLine) bool { return l.str("unit") == cg.Path && l.str("monitor") == "io_pressure" }
	var opened, unavailable []logLine
	require.Eventually(t, func() bool {
		opened = slices.DeleteFunc(c.lines("gate opened"), func(l logLine) bool { return !ours(l) })
		unavailable = slices.DeleteFunc(c.lines("monitor unavailable"), func(l logLine) bool { return !ours(l) })
		return len(opened)+len(unavailable) > 0
	}, startTimeout, 100*time.Millisecond)
	if len(unavailable) > 0 {
		t.Skipf("the kernel has no io_pressure of cgroups: %v", unavailable)
	}
	t.Log(opened)
}

// TestAProgramAtItsMemoryLimitOpensTheGate runs a program that reads files larger than
// its memory limit. Then the program allocates more memory than its limit allows.
func TestAProgramAtItsMemoryLimitOpensTheGate(t *testing.T) {
	t.Parallel()
	const limit = 16 << 20
	cg := newCgroup(t, "memory")
	cg.LimitMemory(t, limit)
	cg.RaiseWeight(t)
	c := pipeline{
		receiver: "{export_interval: 1s}",
		trigger: fmt.Sprintf(`
    policies:
      - {name: pressure, duration: 2s, match: {cgroup: %[1]q}, any_of: [{monitor: memory_pressure, threshold: 1, average_over: 2s}]}
      - {name: limit, duration: 2s, match: {cgroup: %[1]q}, any_of: [{monitor: memory_events, events: [max], threshold: 1, average_over: 2s}]}
      - {name: killed, duration: 2s, match: {cgroup: %[1]q}, any_of: [{monitor: memory_events, threshold: 0, average_over: 2s}]}`, cg.Path),
		exporters: []string{startWire(t).exporter()},
	}.start(t, freePort(t))
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "file"), make([]byte, 3*limit), 0o600))
	startLoad(t, cg.Command("/bin/sh", "-c", "cd "+dir+" && cat file >copy; until [ -e enough ]; do cat copy >/dev/null; done; "+
		"while :; do head -c 64M /dev/zero | tail >kept; sleep 0.5; done"), hotService)
	opened := func(policy string) logLine {
		return c.wait(startTimeout, "gate opened", func(l logLine) bool { return l.str("unit") == cg.Path && l.str("policy") == policy })
	}
	t.Log(opened("limit"))
	if pressure := c.lines("monitor unavailable"); !slices.ContainsFunc(pressure, func(l logLine) bool {
		return l.str("unit") == cg.Path && l.str("monitor") == "memory_pressure"
	}) {
		t.Log(opened("pressure"))
	}
	require.NoError(t, os.WriteFile(filepath.Join(dir, "enough"), nil, 0o600))
	l := opened("killed")
	require.Equal(t, "memory_events", l.str("monitor"))
	t.Log(l)
}
