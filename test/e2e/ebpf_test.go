// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pprofile"

	"github.com/hotprofile/hotprofile/internal/hosttest"
)

// TestTheEBPFProfilerIsGated gates what OpenTelemetry's eBPF profiler really
// sends. It runs on the collector of `make build-ebpf`, where that is named in
// HOTPROFILE_EBPF_COLLECTOR; HOTPROFILE_EBPF_RECORD names a file for one batch.
func TestTheEBPFProfilerIsGated(t *testing.T) {
	binary := os.Getenv("HOTPROFILE_EBPF_COLLECTOR")
	if binary == "" {
		t.Skip("HOTPROFILE_EBPF_COLLECTOR does not name the collector of `make build-ebpf`")
	}
	hot, cool := hosttest.NewCgroup(t, "hotprofile-ebpf-hot"), hosttest.NewCgroup(t, "hotprofile-ebpf-cool")
	for _, c := range []*hosttest.Cgroup{hot, cool} {
		c.SetQuota(t, cores)
		c.Favour(t)
	}
	w := startWire(t)
	file := filepath.Join(t.TempDir(), "ebpf.yaml")
	require.NoError(t, os.WriteFile(file, fmt.Appendf(nil, `
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
service:
  telemetry: {logs: {encoding: json, sampling: {enabled: false}}, metrics: {level: none}}
  pipelines:
    profiles: {receivers: [profiling], processors: [cpu_trigger], exporters: [otlp_grpc]}
`, w.port), 0o644))
	c := watch(t, "collector", exec.Command(binary, "--config", file, "--feature-gates=service.profilesSupport"))
	// It loads and verifies its programs first.
	c.wait(3*time.Minute, "Everything is ready. Begin running and processing data.", nil)
	startLoad(t, cool.Command(loadBinary, "-duty", "0.05"), coolService)
	startLoad(t, hot.Command(loadBinary), hotService)
	opened := c.wait(2*time.Minute, "gate opened", nil)
	require.Equal(t, hot.Path, opened.str("unit"))
	c.wait(2*time.Minute, "gate closed", nil)
	c.stop()

	samples := 0
	for _, p := range flatten(w.received()) {
		require.Equal(t, hot.Path, p.str("hotprofile.unit"), "resource %v", p.resource)
		require.NotEmpty(t, p.resource["process.pid"])
		samples += p.events()
	}
	t.Logf("%d samples of the hot program in %d requests", samples, len(w.received()))
	if samples < 100 {
		t.Errorf("%d samples of 10 s at %.1f cores and 97 Hz", samples, cores)
	}
	if record := os.Getenv("HOTPROFILE_EBPF_RECORD"); record != "" {
		content, err := (&pprofile.JSONMarshaler{}).MarshalProfiles(w.received()[len(w.received())/2])
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(record, content, 0o644))
	}
}
