// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package e2e

import (
	"bytes"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	pprofile "github.com/google/pprof/profile"
	"github.com/stretchr/testify/require"

	"github.com/hotprofile/hotprofile/test/conformancetest"
	"github.com/hotprofile/hotprofile/test/hosttest"
)

// TestPprofEndpointOfAHotCgroupIsPulledAndItsTwinIsNot runs two Go services
// with net/http/pprof. The hot service listens on the loopback interface. Its
// cool twin listens on a Unix socket in another cgroup. Only the endpoints are
// configured, and the kernel identifies both processes.
func TestPprofEndpointOfAHotCgroupIsPulledAndItsTwinIsNot(t *testing.T) {
	t.Parallel()
	hot, cool := newCgroup(t, "hot"), newCgroup(t, "cool")
	for _, g := range []*hosttest.Cgroup{hot, cool} {
		g.SetQuota(t, cores)
		g.RaiseWeight(t)
	}
	service := buildPprofService(t)
	socket := filepath.Join(filepath.Dir(service), "s")

	w, metrics, listen := startWire(t), freePort(t), freePort(t)
	dir := filepath.Join(t.TempDir(), "profiles")
	startLoad(t, cool.Command(service, "-network", "unix", "-listen", socket, "-duty", "0.02"), coolService)
	c := pipeline{
		extensions: []string{"hot_units:"},
		receiver: fmt.Sprintf(`
    export_interval: 1s
    pprof_endpoints:
      - {endpoint: "http://localhost:%d/debug/pprof", profiles: [profile, allocs, goroutine], interval: 3s, duration: 2s}
      - {socket: %q, profiles: [heap], interval: 4s, duration: 3s}`, listen, socket),
		trigger:   onceAbove(t, threshold, 11*time.Second),
		exporters: []string{w.exporter(), fmt.Sprintf(`pprof: {directory: %q, idle_timeout: 10m}`, dir)},
	}.start(t, metrics)
	require.Len(t, c.lines("pulling a pprof endpoint"), 2)
	require.Empty(t, c.lines("sampling started"), "endpoints alone sample no threads")
	require.Zero(t, scrape(t, metrics, "otelcol_cpu_profiler_pprof_pulls"), "nothing of this is hot")
	startLoad(t, hot.Command(service, "-listen", fmt.Sprintf("127.0.0.1:%d", listen)), hotService)

	ours := func(l logLine) bool { return l.str("unit") == hot.Path || l.str("unit") == cool.Path }
	opened := c.wait(startTimeout, "gate opened", ours)
	require.Equal(t, hot.Path, opened.str("unit"))
	c.wait(90*time.Second, "gate closed", ours)
	checkAccounts(t, metrics)
	pulls := scrape(t, metrics, "otelcol_cpu_profiler_pprof_pulls", `outcome="ok"`)
	t.Logf("%v pulls", pulls)
	require.GreaterOrEqual(t, pulls, 3.0)
	require.Zero(t, scrape(t, metrics, "otelcol_cpu_profiler_samples", `sampler="pprof_heap"`), "the twin alone is asked for heap")
	c.stop()

	types, functions := map[string]int{}, []string{}
	goroutines := map[int64]int64{} // by the time of the pull
	batches := w.received()
	for i, b := range batches {
		for _, v := range conformancetest.Check(b, conformancetest.Options{Triggered: true, References: true}) {
			t.Errorf("request %d on the wire: %v", i, v)
		}
	}
	var cpu []profile
	for _, f := range flatten(batches) {
		if f.service() != hotService && f.service() != coolService {
			continue // another service on this host may be hot
		}
		require.Equal(t, hotService, f.service())
		require.Equal(t, hot.Path, f.str("hotprofile.unit"))
		require.Equal(t, "cpu", f.resource["hotprofile.trigger.policy"])
		require.Equal(t, "pprofservice", f.resource["process.executable.name"])
		types[f.sampleType] += f.events()
		if f.sampleType == "samples" {
			cpu = append(cpu, f)
			require.Equal(t, "true", f.attributes["hotprofile.spread"])
		}
		for _, s := range f.samples {
			functions = append(functions, s.functions...)
			if f.sampleType == "goroutines" {
				require.Len(t, s.times, 1) // exports are more frequent than pulls
				goroutines[int64(s.times[0])] += s.value
			}
		}
	}
	t.Logf("%v", types)
	checkSnapshotFiles(t, dir, goroutines)
	for _, want := range []string{"samples", "alloc_objects", "alloc_space", "goroutines"} {
		require.Positive(t, types[want], want)
	}
	require.True(t, slices.ContainsFunc(functions, func(f string) bool { return strings.HasSuffix(f, "main.allocate") }))
	n := map[string]int{}
	for _, p := range cpu {
		for _, s := range p.samples {
			for _, f := range []string{"main.burnThreeParts", "main.burnOnePart"} {
				if slices.Contains(s.functions, f) {
					n[f] += s.events
				}
			}
		}
	}
	all := float64(n["main.burnThreeParts"] + n["main.burnOnePart"])
	share := 100 * float64(n["main.burnThreeParts"]) / all
	t.Logf("%v: %.1f%% in burnThreeParts", n, share)
	require.Greater(t, all, 100., "too few to judge shares")
	require.InDelta(t, 75, share, max(10, 100*5*math.Sqrt(0.75*0.25/all))) // within the accuracy of this number of samples
}

// checkSnapshotFiles checks that each pull of goroutines has its own file.
func checkSnapshotFiles(t *testing.T, dir string, want map[int64]int64) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*_goroutines*.pb.gz"))
	require.NoError(t, err)
	got := map[int64]int64{}
	for _, file := range files {
		content, err := os.ReadFile(file)
		require.NoError(t, err)
		p, err := pprofile.Parse(bytes.NewReader(content))
		require.NoError(t, err, file)
		for _, s := range p.Sample {
			got[p.TimeNanos] += s.Value[0]
		}
	}
	t.Logf("goroutines by pull: %v", got)
	require.Len(t, files, len(want))
	require.Equal(t, want, got)
	require.Greater(t, len(want), 1, "one pull proves nothing")
}

// buildPprofService builds the service in a directory
// with a path that is short enough for sockets.
func buildPprofService(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "hp")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	require.NoError(t, os.Chmod(dir, 0o755))
	service := filepath.Join(dir, "pprofservice")
	build := exec.Command("go", "build", "-o", service, "./testdata/pprofservice")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	text, err := build.CombinedOutput()
	require.NoError(t, err, "%s", text)
	return service
}
