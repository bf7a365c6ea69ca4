// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	pprofile "github.com/google/pprof/profile"
	"github.com/stretchr/testify/require"

	"github.com/hotprofile/hotprofile/test/hosttest"
)

// TestTheEBPFProfilerIsGated gates samples that OpenTelemetry's eBPF profiler takes of a hot
// Python program. HOTPROFILE_EBPF_COLLECTOR must name a collector that was built by
// `make build-ebpf`. The variable is set by `make e2e`.
func TestTheEBPFProfilerIsGated(t *testing.T) {
	binary := os.Getenv("HOTPROFILE_EBPF_COLLECTOR")
	if binary == "" {
		t.Skip("HOTPROFILE_EBPF_COLLECTOR does not name the collector of `make build-ebpf`")
	}
	hosttest.Tracefs(t)
	python := hosttest.Tool(t, "/usr/bin/python3")
	hot, cool := hosttest.NewCgroup(t, "hotprofile-ebpf-hot"), hosttest.NewCgroup(t, "hotprofile-ebpf-cool")
	for _, c := range []*hosttest.Cgroup{hot, cool} {
		c.SetQuota(t, cores)
		c.RaiseWeight(t)
	}
	w, dir := startWire(t), filepath.Join(t.TempDir(), "profiles")
	c := startBinary(t, binary, "ebpf", fmt.Sprintf(`
receivers:
  profiling: {samples_per_second: 97, reporter_interval: 1s}
processors:
  cpu_trigger:
    evaluation_interval: 1s
    min_age: 0
    keep_process_attributes: [process.pid]
    policies:
      - name: cpu
        match: {cgroup: "/hotprofile-ebpf-*"}
        any_of: [{monitor: cpu_utilization, threshold: 80, average_over: 4s}]
        duration: 10s
        cooldown: 1h
exporters:
  otlp_grpc: {endpoint: "127.0.0.1:%d", tls: {insecure: true}}
  pprof: {directory: %q, idle_timeout: 10m}
service:
  telemetry: {logs: {encoding: json, sampling: {enabled: false}}, metrics: {level: none}}
  pipelines:
    profiles: {receivers: [profiling], processors: [cpu_trigger], exporters: [otlp_grpc, pprof]}
`, w.port, dir), withTracefs)
	// The profiler loads and verifies its BPF programs before the collector is ready.
	require.Eventually(t, func() bool {
		select {
		case <-c.ended:
			return true
		default:
			return len(c.lines("Everything is ready. Begin running and processing data.")) > 0
		}
	}, 3*time.Minute, 50*time.Millisecond)
	if strings.Contains(c.text(), "failed to set temporary rlimit") {
		t.Skip("the eBPF profiler needs CAP_SYS_RESOURCE")
	}
	startLoad(t, cool.Command(loadBinary, "-duty", "0.05"), coolService)
	startLoad(t, hot.Command(python, "testdata/hot.py"), hotService)
	opened := c.wait(2*time.Minute, "gate opened", nil)
	require.Equal(t, hot.Path, opened.str("unit"))
	c.wait(2*time.Minute, "gate closed", nil)
	c.stop()

	samples, inner := map[string]int{}, map[string]int{} // by phase
	for _, p := range flatten(w.received()) {
		require.Equal(t, hot.Path, p.str("hotprofile.unit"), "resource %v", p.resource)
		require.NotEmpty(t, p.resource["process.pid"])
		phase := p.str("hotprofile.trigger.phase")
		samples[phase] += p.events()
		for _, s := range p.samples {
			if slices.Contains(s.functions, "inner") {
				inner[phase] += s.events
			}
		}
	}
	t.Logf("samples of the hot program by phase: %v, with the function inner: %v", samples, inner)
	require.Greater(t, samples["before"]+samples["after"], 100, "of 14 s at %.1f cores and 97 Hz", cores)
	require.Positive(t, inner["before"], "the flight recorder has the Python function")
	require.Positive(t, inner["after"])

	files, err := filepath.Glob(filepath.Join(dir, "*.pb.gz"))
	require.NoError(t, err)
	require.Len(t, files, 1)
	content, err := os.Open(files[0])
	require.NoError(t, err)
	defer content.Close()
	file, err := pprofile.Parse(content)
	require.NoError(t, err)
	require.True(t, slices.ContainsFunc(file.Function, func(f *pprofile.Function) bool { return f.Name == "inner" }), "%v", file)
}
