// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package e2e

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/hotprofile/hotprofile/internal/perfevent"
	"github.com/hotprofile/hotprofile/internal/perfevent/tracefs"
	"github.com/hotprofile/hotprofile/test/conformancetest"
	"github.com/hotprofile/hotprofile/test/hosttest"
)

// TestCallsOnSocketsOfHotUnitsAreSampledWhileTheyAreHot runs a
// program in each of two cgroups. The programs send, receive and
// connect all the time. One of the cgroups turns hot.
func TestCallsOnSocketsOfHotUnitsAreSampledWhileTheyAreHot(t *testing.T) {
	t.Parallel()
	if err := perfevent.Probe().Kernel; err != nil {
		hosttest.SkipUnprivileged(t, "%v", err)
	}
	hosttest.Tool(t, "unshare")
	kernel, err := tracefs.Find(hosttest.Tracefs(t))
	require.NoError(t, err)
	if _, _, err := kernel.Tracepoint("sock:sock_send_length"); err != nil {
		t.Skipf("this kernel does not tell what is sent: %v", err)
	}
	const (
		idle, busy = 5 * time.Second, 12 * time.Second
		duration   = 6 * time.Second
	)
	hot, cool := newCgroup(t, "hot"), newCgroup(t, "cool")
	for _, g := range []*hosttest.Cgroup{hot, cool} {
		g.SetQuota(t, cores)
		g.RaiseWeight(t)
	}
	w, metrics := startWire(t), freePort(t)
	dir := filepath.Join(t.TempDir(), "profiles")
	c := pipeline{
		extensions: []string{"hot_units:"},
		receiver:   "{export_interval: 1s, network: {}}",
		evaluation: time.Second,
		trigger:    onceAbove(t, threshold, duration),
		exporters:  []string{w.exporter(), fmt.Sprintf(`pprof: {directory: %q, idle_timeout: 10m}`, dir)},
		env:        []string{withTracefs},
	}.start(t, metrics)
	started := c.wait(startTimeout, "network sampling started", nil)
	require.Equal(t, "hot, as there is a hot_units extension", started.str("when"))
	attached := func() float64 { return scrape(t, metrics, "otelcol_cpu_profiler_targets", `sampler="network"`) }
	require.Zero(t, attached(), "nothing is hot")

	startLoad(t, cool.Command(loadBinary, "-duty", "0.05", "-sending"), coolService)
	startLoad(t, hot.Command(loadBinary, "-idle", idle.String(), "-busy", busy.String(), "-sending"), hotService)
	turned := c.wait(startTimeout, "hot units changed", func(l logLine) bool { return strings.Contains(l.str("now_hot"), hot.Path) })
	followed := c.wait(startTimeout, "network targets", func(l logLine) bool {
		return l.str("targets") == "1" && at(t, l).After(at(t, turned))
	})
	t.Logf("attached %v after it was hot", at(t, followed).Sub(at(t, turned)))
	closed := c.wait(startTimeout, "gate closed", of(hot.Path))
	cooled := c.wait(startTimeout, "hot units changed", func(l logLine) bool {
		return strings.Contains(l.str("not_hot"), hot.Path) && !at(t, l).Before(at(t, closed))
	})
	c.wait(startTimeout, "network targets", func(l logLine) bool { return l.str("targets") == "0" && !at(t, l).Before(at(t, cooled)) })
	require.Eventually(t, func() bool { return attached() == 0 }, startTimeout, 50*time.Millisecond)
	checkAccounts(t, metrics)
	c.stop() // the exporters flush their queues first

	received := w.received()
	for i, p := range received {
		for _, v := range conformancetest.Check(p, conformancetest.Options{Triggered: true, References: true}) {
			t.Errorf("request %d on the wire: %v", i, v)
		}
	}
	values := map[string]map[string]float64{}
	for _, p := range flatten(received) {
		if p.sampleType == "samples" {
			continue
		}
		require.Equal(t, hot.Path, p.str("hotprofile.unit"))
		require.Equal(t, hotService, p.service())
		require.NotEmpty(t, p.str("hotprofile.trigger.id"))
		require.NotEmpty(t, p.str("hotprofile.scaled"))
		in := values[p.sampleType]
		if in == nil {
			in = map[string]float64{}
			values[p.sampleType] = in
		}
		for _, s := range p.samples {
			require.Positive(t, s.value)
			i := slices.IndexFunc(s.functions, func(f string) bool {
				return slices.Contains([]string{"main.sendThreeParts", "main.sendOnePart", "main.receive", "main.connectToNobody"}, f)
			})
			require.GreaterOrEqual(t, i, 0, "%s %v", p.sampleType, s.functions)
			in[s.functions[i]] += float64(s.value)
		}
	}
	t.Logf("%v", values)
	sent, got := values["net_sent"], values["net_received"]
	total := sent["main.sendThreeParts"] + sent["main.sendOnePart"]
	// All calls are sampled, but the first and the last round may be incomplete.
	require.Greater(t, total, 100_000.)
	require.InDelta(t, 0.75, sent["main.sendThreeParts"]/total, 0.01)
	require.InEpsilon(t, total, got["main.receive"], 0.02)
	require.Len(t, sent, 2)
	require.Len(t, got, 1)
	connects, failed := values["tcp_connects"]["main.connectToNobody"], values["tcp_connect_failures"]["main.connectToNobody"]
	require.Positive(t, connects)
	require.InDelta(t, connects, failed, 1)

	for name, function := range map[string]string{
		"net_sent": "main.sendThreeParts", "net_received": "main.receive",
		"tcp_connects": "main.connectToNobody", "tcp_connect_fail": "main.connectToNobody", // file names are truncated
	} {
		files, err := filepath.Glob(filepath.Join(dir, hotService+"_*_"+name+".pb.gz"))
		require.NoError(t, err)
		require.Len(t, files, 1, name)
		out, err := exec.Command("go", "tool", "pprof", "-top", "-cum", files[0]).CombinedOutput()
		require.NoError(t, err, "%s", out)
		require.Contains(t, string(out), function)
	}
}

// TestRightsToSampleCallsOnSockets checks the rights that docs/security.md names.
func TestRightsToSampleCallsOnSockets(t *testing.T) {
	t.Parallel()
	requireRoot(t)
	hosttest.Tool(t, "unshare")
	hosttest.Tool(t, "setpriv")
	const config = `
receivers: {cpu_profiler: {cpu: {enabled: false}, network: {when: always}}}
exporters: {debug: {}}
service:
  telemetry: {logs: {encoding: json}, metrics: {level: none}}
  pipelines: {profiles: {receivers: [cpu_profiler], exporters: [debug]}}
`
	for caps, missing := range map[string]string{
		"+perfmon,+dac_read_search": "", "+perfmon": "CAP_DAC_READ_SEARCH", "+dac_read_search": "CAP_PERFMON",
	} {
		t.Run(caps, func(t *testing.T) {
			user := fmt.Sprint(nobody)
			args := []string{"setpriv", "--reuid=" + user, "--regid=" + user, "--clear-groups", "--inh-caps=" + caps, "--ambient-caps=" + caps}
			c := watch(t, "collector", inTracefs(append(args, exposedCollector(t, config)...)...))
			if missing == "" {
				require.Equal(t, "[]", c.wait(startTimeout, "network sampling started", nil).str("not_sampled"))
				return
			}
			require.Contains(t, c.wait(startTimeout, "network sampling is not possible; other samplers continue", nil).str("error"), missing)
		})
	}
}
