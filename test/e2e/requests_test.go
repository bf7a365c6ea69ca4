// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package e2e

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// instrumented is a service that somebody else's instrumentation watches. It serves
// requests and makes them itself. "slow" on its standard input makes requests slow by
// CPU time, and "fail" makes them fail.
type instrumented struct {
	// command prepares the service once and returns its command line. It skips the
	// test where a runtime is missing.
	command func(t *testing.T) []string
	// spans and metrics are arguments with which it sends only one of them.
	spans, metrics []string
	// function is part of the name of a function that its profile has while it works.
	function string
}

// instrumentedServices are the services of TestSlowAndFailingRequests, by name.
var instrumentedServices = map[string]instrumented{
	"Go, otelhttp": {command: buildOtelHTTP, spans: []string{"-metrics=false"}, metrics: []string{"-spans=false"}, function: "main.work"},
}

// buildOtelHTTP builds a program of a module of its own, with OpenTelemetry's SDK.
func buildOtelHTTP(t *testing.T) []string {
	binary := filepath.Join(t.TempDir(), "otelhttp")
	build := exec.Command("go", "build", "-o", binary, ".")
	build.Dir = "../peers/otelhttp"
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Skipf("its modules cannot be had: %v\n%s", err, out)
	}
	return []string{binary}
}

// running is a service that runs in a cgroup of its own.
type running struct {
	unit string
	in   io.Writer
}

func (s instrumented) start(t *testing.T, name string, otlp int, arguments ...string) running {
	t.Helper()
	cg := newCgroup(t, name)
	cg.SetQuota(t, 0.3)
	cg.Favour(t)
	line := append(s.command(t), arguments...)
	cmd := cg.Command(line[0], line[1:]...)
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	for key, value := range map[string]string{
		"OTEL_EXPORTER_OTLP_ENDPOINT": fmt.Sprintf("http://127.0.0.1:%d", otlp), "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc",
		"OTEL_METRIC_EXPORT_INTERVAL": "1000", "OTEL_BSP_SCHEDULE_DELAY": "500",
	} {
		t.Setenv(key, value)
	}
	startLoad(t, cmd, "e2e-"+name)
	return running{cg.Path, in}
}

func (r running) turn(t *testing.T, how string) time.Time {
	t.Helper()
	_, err := io.WriteString(r.in, how+"\n")
	require.NoError(t, err)
	return time.Now()
}

// TestSlowAndFailingRequests: the gate of a service opens when its requests turn slow, which
// spans or metrics tell, or fail. Its profile leaves, with the seconds from before. The
// gate of its fast twin stays shut.
func TestSlowAndFailingRequests(t *testing.T) {
	for name, s := range instrumentedServices {
		t.Run(name, func(t *testing.T) {
			w, otlp := startWire(t), freePort(t)
			c := startCollector(t, "collector", fmt.Sprintf(`
receivers:
  cpu_profiler: {frequency: 199, max_overhead: 0, export_interval: 1s}
  otlp: {protocols: {grpc: {endpoint: "127.0.0.1:%d"}}}
processors:
  cpu_trigger:
    evaluation_interval: 500ms
    min_age: 0
    policies:
      - name: slow
        match: {cgroup: %q}
        any_of: [{monitor: http_response_time, percentile: 50, threshold: 60, average_over: 5s, min_requests: 5, uri: {list: [/work]}}]
        duration: 5s
      - name: failing
        match: {cgroup: %q}
        any_of: [{monitor: http_error_rate, threshold: 50, average_over: 5s}]
        duration: 5s
exporters:
  %s
  debug: {sampling_initial: 1, sampling_thereafter: 100000}
service:
  telemetry:
    logs: {encoding: json, level: info, sampling: {enabled: false}}
    metrics: {level: none}
  pipelines:
    profiles: {receivers: [cpu_profiler], processors: [cpu_trigger], exporters: [otlp_grpc/wire]}
    traces: {receivers: [otlp], processors: [cpu_trigger], exporters: [debug]}
    metrics: {receivers: [otlp], processors: [cpu_trigger], exporters: [debug]}
`, otlp, ofThisTest(t), ofThisTest(t), w.exporter()))
			c.wait(startTimeout, "Everything is ready. Begin running and processing data.", nil)

			twin := s.start(t, "twin", otlp)
			for _, run := range []struct {
				name, how, policy, monitor string
				arguments                  []string
				traced                     bool
			}{
				{"slow-by-spans", "slow", "slow", "http_response_time", s.spans, true},
				{"slow-by-metrics", "slow", "slow", "http_response_time", s.metrics, false},
				{"failing", "fail", "failing", "http_error_rate", nil, true},
			} {
				service := s.start(t, run.name, otlp, run.arguments...)
				time.Sleep(7 * time.Second) // the past that is to leave too
				for _, l := range c.lines("gate opened") {
					require.NotEqual(t, service.unit, l.str("unit"), "before anything happened: %v", l)
				}
				turned := service.turn(t, run.how)
				opened := c.wait(startTimeout, "gate opened", of(service.unit))
				t.Logf("%s: the gate opened after %.1f s at %v, threshold %v", run.name, time.Since(turned).Seconds(), opened["value"], opened["threshold"])
				require.Equal(t, run.policy, opened.str("policy"))
				require.Equal(t, run.monitor, opened.str("monitor"))
				require.Equal(t, "e2e-"+run.name, opened.str("service"))
				if run.traced {
					require.Len(t, opened.str("trace_id"), 32)
				}
				c.wait(startTimeout, "gate closed", of(service.unit))
				phases, worked := map[string]int{}, 0
				require.Eventually(t, func() bool { // what exporters hold arrives soon
					phases, worked = map[string]int{}, 0
					for _, p := range flatten(w.received()) {
						if p.str("hotprofile.unit") == service.unit {
							require.Equal(t, run.monitor, p.str("hotprofile.trigger.monitor"))
							phases[p.str("hotprofile.trigger.phase")] += p.events()
							worked += shares([]profile{p}, s.function)[s.function]
						}
					}
					return phases["before"] > 0 && phases["after"] > 0 && worked > 0
				}, startTimeout, 200*time.Millisecond, "%v, %d samples in %s", phases, worked, s.function)
				t.Logf("%s: samples by phase: %v, %d of them in %s", run.name, phases, worked, s.function)
			}
			for _, l := range c.lines("gate opened") {
				require.NotEqual(t, twin.unit, l.str("unit"), "the gate of the twin: %v", l)
			}
			require.Empty(t, c.lines("requests match no unit"))
		})
	}
}
