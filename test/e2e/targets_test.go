// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package e2e

import (
	"bufio"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/hotprofile/hotprofile/internal/perfevent"
	"github.com/hotprofile/hotprofile/test/hosttest"
)

// holding counts the resources that the collector holds.
type holding struct {
	// descriptors counts the open descriptors that do not refer to files.
	// The collector keeps one descriptor of each sampled program for
	// symbols. kept counts further descriptors of the same program.
	descriptors, kept int

	rings    int
	resident int64 // in bytes
	cpu      time.Duration
}

func holdingOf(t *testing.T, c *collector) holding {
	t.Helper()
	proc := fmt.Sprintf("/proc/%d/", c.cmd.Process.Pid)
	fds, err := os.ReadDir(proc + "fd")
	require.NoError(t, err)
	var h holding
	files := map[string]bool{}
	for _, fd := range fds {
		link, err := os.Readlink(proc + "fd/" + fd.Name())
		switch {
		case err != nil: // closed in the meantime
		case strings.HasPrefix(link, "/") && !strings.HasPrefix(link, "/dev/") && !strings.HasPrefix(link, "/proc/"):
			if strings.Contains(link, "/churn") && files[link] {
				h.kept++
			}
			files[link] = true
		default:
			h.descriptors++
		}
	}
	maps, err := os.ReadFile(proc + "maps")
	require.NoError(t, err)
	h.rings = strings.Count(string(maps), "[perf_event]")
	statm, err := os.ReadFile(proc + "statm")
	require.NoError(t, err)
	pages, err := strconv.ParseInt(strings.Fields(string(statm))[1], 10, 64)
	require.NoError(t, err)
	h.resident = pages * int64(os.Getpagesize())
	stat, err := os.ReadFile(proc + "stat")
	require.NoError(t, err)
	f := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')'):]))
	user, err := strconv.ParseInt(f[12], 10, 64)
	require.NoError(t, err)
	system, err := strconv.ParseInt(f[13], 10, 64)
	require.NoError(t, err)
	h.cpu = time.Duration(user+system) * (time.Second / 100)
	return h
}

// TestProcessesThatComeAndGoBesideASteadyOne samples a host on which three cgroups are
// busy. One cgroup is steadily hot. In another cgroup, 1,000 processes per second start
// and end. In the third cgroup, a fork bomb is killed. Sampling of the steady cgroup must
// go on. Samples of the short-lived processes must have the name of the process's
// program. Afterwards the collector must hold no more resources than before.
func TestProcessesThatComeAndGoBesideASteadyOne(t *testing.T) {
	r := perfevent.Probe()
	if r.HostWide != nil {
		hosttest.SkipUnprivileged(t, "%v", r.HostWide)
	}
	program := hosttest.CompileChurn(t)
	steady, churning := newCgroup(t, "steady"), newCgroup(t, "churn")
	for _, g := range []*hosttest.Cgroup{steady, churning} {
		g.SetQuota(t, cores)
		g.RaiseWeight(t)
	}
	churning.SetQuota(t, 1)
	w, metrics := startWire(t), freePort(t)
	const frequency = 197
	c := startCollector(t, "collector", fmt.Sprintf(`
receivers:
  cpu_profiler: {frequency: %d, max_overhead: 0, export_interval: 1s, discovery_interval: 1s}
exporters:
  otlp_grpc: {endpoint: "127.0.0.1:%d", tls: {insecure: true}}
service:
  telemetry:
    logs: {encoding: json, sampling: {enabled: false}}
    metrics: {readers: [{pull: {exporter: {prometheus: {host: 127.0.0.1, port: %d}}}}]}
  pipelines:
    profiles: {receivers: [cpu_profiler], exporters: [otlp_grpc]}
`, frequency, w.port, metrics))
	c.wait(startTimeout, "sampling started", nil)
	startLoad(t, steady.Command(loadBinary), "e2e-steady")
	come := func(count int) time.Duration {
		cmd := churning.Command(program.Parent, "churn", program.Child, "1000", strconv.Itoa(count), "0.0003")
		out, err := cmd.StdoutPipe()
		require.NoError(t, err)
		startLoad(t, cmd, "e2e-churn")
		line, err := bufio.NewReader(out).ReadString('\n')
		require.NoError(t, err)
		require.NoError(t, cmd.Process.Kill())
		_ = cmd.Wait()
		var n int
		var seconds float64
		_, err = fmt.Sscan(line, &n, &seconds)
		require.NoError(t, err)
		require.Equal(t, count, n)
		return time.Duration(seconds * float64(time.Second))
	}
	type source struct{ service, program string }
	read, sources := 0, map[source]int{}
	events := func(service, program string) (n int) {
		all := w.received()
		for _, p := range flatten(all[read:]) {
			name, _ := p.resource["process.executable.path"].(string)
			sources[source{p.service(), name}] += p.events()
		}
		read = len(all)
		for from, events := range sources {
			if from.service == service && (program == "" || from.program == program) {
				n += events
			}
		}
		return n
	}
	until := func(what string, ok func() bool) {
		t.Helper()
		for end := time.Now().Add(startTimeout); !ok(); time.Sleep(200 * time.Millisecond) {
			require.True(t, time.Now().Before(end), what)
		}
	}
	come(500) // causes all allocations that happen only once
	until("no sample of the steady one", func() bool { return events("e2e-steady", "") > frequency/4 })
	lost := func() float64 { return scrape(t, metrics, "otelcol_cpu_profiler_samples_lost") }
	unreadable := func() float64 {
		return scrape(t, metrics, "otelcol_cpu_profiler_samples", `outcome="unreadable"`)
	}
	lostBefore := lost() // opens a connection that stays open
	before := holdingOf(t, c)

	const count = 3000
	began := holdingOf(t, c)
	took := come(count)
	t.Logf("%d processes at %.0f/s: %v of the collector's CPU time each, all that it did included",
		count, count/took.Seconds(), (holdingOf(t, c).cpu-began.cpu)/count)
	until("short processes are not sampled under their names", func() bool { return events("e2e-churn", program.Child) > 0 })

	bomb := newCgroup(t, "bomb")
	const most = 2500
	bomb.SetPIDs(t, most)
	bomb.SetQuota(t, cores)
	bomb.RaiseWeight(t)
	first := bomb.Command(program.Parent, "bomb")
	startLoad(t, first, "e2e-bomb")
	until("the fork bomb did not grow", func() bool { return bomb.PIDs() >= most-10 })
	bomb.KillAtOnce(t)
	_ = first.Wait()
	bomb.Remove(t)

	had := events("e2e-steady", "")
	until("sampling does not go on", func() bool { return events("e2e-steady", "") > had+frequency/2 })
	var after holding
	// A few files may be open for reading at this moment.
	until("descriptors or memory are left", func() bool {
		after = holdingOf(t, c)
		return after.descriptors <= before.descriptors+2 && after.rings <= before.rings && after.kept == 0 &&
			after.resident < before.resident+64<<20
	})
	t.Logf("before: %d descriptors, %d rings, %d MiB; after: %d, %d, %d MiB; lost in the kernel %.0f, unreadable %.0f",
		before.descriptors, before.rings, before.resident>>20, after.descriptors, after.rings, after.resident>>20, lost()-lostBefore, unreadable())
	for _, msg := range []string{"reading perf events failed; sampling stops until the next search for targets"} {
		require.Empty(t, c.lines(msg))
	}
	c.stop()
}

// TestCPUThatIsOfflineForAMoment takes a CPU offline and online again several times.
// The collector must not report an error, and it must sample the CPU again.
func TestCPUThatIsOfflineForAMoment(t *testing.T) {
	cpu := hosttest.HotplugCPU(t)
	steady := newCgroup(t, "steady")
	steady.SetQuota(t, cores)
	steady.RaiseWeight(t)
	w := startWire(t)
	c := startCollector(t, "collector", fmt.Sprintf(`
receivers:
  cpu_profiler: {frequency: 397, max_overhead: 0, export_interval: 1s, discovery_interval: 1s}
exporters:
  otlp_grpc: {endpoint: "127.0.0.1:%d", tls: {insecure: true}}
service:
  telemetry: {logs: {encoding: json, sampling: {enabled: false}}, metrics: {level: none}}
  pipelines:
    profiles: {receivers: [cpu_profiler], exporters: [otlp_grpc]}
`, w.port))
	c.wait(startTimeout, "sampling started", nil)
	for n := range 3 {
		cpu.Offline(t)
		time.Sleep(time.Duration(n) * 700 * time.Millisecond) // discovery may or may not notice the missing CPU
		cpu.Online(t)
		service := fmt.Sprintf("e2e-steady-%d", n)
		cmd := steady.Command(hosttest.Tool(t, "taskset"), "-c", strconv.Itoa(cpu.Number), loadBinary)
		startLoad(t, cmd, service)
		for end := time.Now().Add(startTimeout); ; time.Sleep(200 * time.Millisecond) {
			seen := 0
			for _, p := range flatten(w.received()) {
				if p.service() == service {
					seen += p.events()
				}
			}
			if seen > 50 {
				break
			}
			require.True(t, time.Now().Before(end), "CPU %d is not sampled any more", cpu.Number)
		}
		require.NoError(t, cmd.Process.Kill())
	}
	c.mu.Lock()
	for _, l := range c.logs {
		require.NotEqual(t, "error", l.str("level"), "%v", l)
	}
	c.mu.Unlock()
	c.stop()
}
