// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package e2e

import (
	"bufio"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/hotprofile/hotprofile/internal/hosttest"
)

// instrumented is a service that somebody else's instrumentation watches. It serves
// requests and makes them itself. It prints "ready"; then "slow" on its standard input
// makes requests slow by CPU time, and "fail" makes them fail.
type instrumented struct {
	// prepare returns its command line and what it needs in its environment. It skips
	// the test where a runtime is missing.
	prepare func(t *testing.T) (line, env []string)
	// cores is the quota of one: little, so that it gets all of it on a busy machine too.
	cores float64
	// function is part of the name of a function that its profile has while it works.
	function string
}

var goService = instrumented{prepare: buildOtelHTTP, cores: 0.3, function: "main.work"}

// otherServices are instrumented from outside: their code knows nothing of it. Neither
// CPython 3.11 nor OpenJDK names its functions by default: theirs are those of the runtime.
var otherServices = map[string]instrumented{
	"Python, Flask":           {prepare: installPython, cores: 0.6, function: "_PyEval_EvalFrameDefault"},
	"Node.js, Express":        {prepare: installNode, cores: 0.6, function: "work"},
	"Java, JDK's HTTP server": {prepare: installJava, cores: 1.5, function: "jmm_GetThreadCpuTime"},
}

// buildOtelHTTP builds a program of a module of its own, with OpenTelemetry's SDK.
func buildOtelHTTP(t *testing.T) (line, env []string) {
	binary := filepath.Join(t.TempDir(), "otelhttp")
	build := exec.Command("go", "build", "-o", binary, ".")
	build.Dir = "../peers/otelhttp"
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		hosttest.SkipUnprivileged(t, "its modules cannot be had: %v\n%s", err, out)
	}
	return []string{binary}, nil
}

// install runs a command that puts something into a directory of a cache, unless it is
// there.
func install(t *testing.T, name string, line func(dir string) []string) (dir string) {
	t.Helper()
	cache, err := os.UserCacheDir()
	require.NoError(t, err)
	dir = filepath.Join(cache, "hotprofile-e2e", name)
	if _, err := os.Stat(dir); err == nil {
		return dir
	}
	began := dir + ".part"
	require.NoError(t, os.RemoveAll(began))
	require.NoError(t, os.MkdirAll(began, 0o755))
	command := line(began)
	if out, err := exec.Command(command[0], command[1:]...).CombinedOutput(); err != nil {
		hosttest.SkipUnprivileged(t, "%v: %v\n%s", command, err, out)
	}
	require.NoError(t, os.Rename(began, dir))
	return dir
}

func installPython(t *testing.T) (line, env []string) {
	requirements, err := os.ReadFile("../peers/python/requirements.txt")
	require.NoError(t, err)
	dir := install(t, fmt.Sprintf("python-%08x", crc32.ChecksumIEEE(requirements)), func(dir string) []string {
		return []string{"python3", "-m", "pip", "install", "--quiet", "--target", dir, "-r", "../peers/python/requirements.txt"}
	})
	return []string{"python3", filepath.Join(dir, "bin/opentelemetry-instrument"), "python3", absolute(t, "../peers/python/service.py")},
		[]string{"PYTHONPATH=" + dir, "OTEL_EXPERIMENTAL_RESOURCE_DETECTORS=process,otel"} // it has no process.pid by default
}

func installNode(t *testing.T) (line, env []string) {
	packages, err := os.ReadFile("../peers/node/package.json")
	require.NoError(t, err)
	dir := install(t, fmt.Sprintf("node-%08x", crc32.ChecksumIEEE(packages)), func(dir string) []string {
		require.NoError(t, os.WriteFile(filepath.Join(dir, "package.json"), packages, 0o644))
		return []string{"npm", "install", "--silent", "--no-audit", "--no-fund", "--prefix", dir}
	})
	return []string{"node", "--perf-basic-prof", "--require", filepath.Join(dir, "node_modules/@opentelemetry/auto-instrumentations-node/build/src/register.js"), absolute(t, "../peers/node/service.js")},
		// Outside of a container its detector of containers takes any cgroup with a
		// hexadecimal name for one.
		[]string{"NODE_PATH=" + filepath.Join(dir, "node_modules"), "OTEL_NODE_RESOURCE_DETECTORS=env,host,os,process"}
}

// The Java agent, and its checksum.
const (
	javaAgent    = "https://repo1.maven.org/maven2/io/opentelemetry/javaagent/opentelemetry-javaagent/2.33.1/opentelemetry-javaagent-2.33.1.jar"
	javaAgentSum = "e43a270df53c6f423e0ab157be9c27ccc01d5dc3232e162fe54777573db2f149"
)

func installJava(t *testing.T) (line, env []string) {
	dir := install(t, "java-"+javaAgentSum[:8], func(dir string) []string {
		agent := filepath.Join(dir, "agent.jar")
		return []string{"sh", "-c", `curl -fsS --retry 5 --retry-all-errors -o "$0" "$1" && echo "$2  $0" | sha256sum -c`, agent, javaAgent, javaAgentSum}
	})
	classes := t.TempDir()
	if out, err := exec.Command("javac", "-d", classes, "../peers/java/Service.java").CombinedOutput(); err != nil {
		hosttest.SkipUnprivileged(t, "compile the service: %v\n%s", err, out)
	}
	return []string{"java", "-javaagent:" + filepath.Join(dir, "agent.jar"), "-XX:TieredStopAtLevel=1", "-cp", classes, "Service"}, nil
}

func absolute(t *testing.T, path string) string {
	t.Helper()
	path, err := filepath.Abs(path)
	require.NoError(t, err)
	return path
}

// running is a service that runs in a cgroup of its own.
type running struct {
	unit string
	in   io.Writer
}

// start starts the service and waits until it serves.
func (s instrumented) start(t *testing.T, name string, otlp int, env ...string) running {
	t.Helper()
	cg := newCgroup(t, name)
	cg.SetQuota(t, s.cores)
	cg.Favour(t)
	line, needed := s.prepare(t)
	cmd := cg.Command(line[0], line[1:]...)
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	startLoad(t, cmd, "e2e-"+name, append(append([]string{
		fmt.Sprintf("OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:%d", otlp), "OTEL_EXPORTER_OTLP_PROTOCOL=grpc", "OTEL_LOGS_EXPORTER=none",
		"OTEL_METRIC_EXPORT_INTERVAL=1000", "OTEL_BSP_SCHEDULE_DELAY=500",
	}, needed...), env...)...)
	ready, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "ready\n", ready)
	return running{cg.Path, in}
}

func (r running) turn(t *testing.T, how string) time.Time {
	t.Helper()
	_, err := io.WriteString(r.in, how+"\n")
	require.NoError(t, err)
	return time.Now()
}

// gating starts a collector that opens gates for slow and failing requests.
func gating(t *testing.T, w *wire, otlp int) *collector {
	t.Helper()
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
        any_of: [{monitor: http_response_time, percentile: 50, threshold: 60, average_over: 5s, min_requests: 5, uri: {list: [/work, "/work/*"]}}]
        duration: 5s
      - name: failing
        match: {cgroup: %q}
        any_of: [{monitor: http_error_rate, threshold: 50, average_over: 5s, min_requests: 5}]
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
	return c
}

// opens checks that the gate of a service opens by a policy because of how its requests
// turned, and that its profiles leave, with the seconds from before.
func (r running) opens(t *testing.T, c *collector, w *wire, s instrumented, how, policy, monitor string, traced bool) {
	t.Helper()
	by := func(l logLine) bool { return l.str("unit") == r.unit && l.str("policy") == policy }
	require.False(t, slices.ContainsFunc(c.lines("gate opened"), by), "before anything happened")
	turned := r.turn(t, how)
	opened := c.wait(startTimeout, "gate opened", by)
	t.Logf("%s: the gate opened after %.1f s at %v, threshold %v", how, time.Since(turned).Seconds(), opened["value"], opened["threshold"])
	require.Equal(t, monitor, opened.str("monitor"))
	if traced {
		require.Len(t, opened.str("trace_id"), 32)
	}
	c.wait(startTimeout, "gate closed", by)
	phases, worked := map[string]int{}, 0
	require.Eventually(t, func() bool { // what exporters hold arrives soon
		phases, worked = map[string]int{}, 0
		for _, p := range flatten(w.received()) {
			if p.str("hotprofile.unit") == r.unit && p.str("hotprofile.trigger.monitor") == monitor {
				phases[p.str("hotprofile.trigger.phase")] += p.events()
				for _, sample := range p.samples {
					if slices.ContainsFunc(sample.functions, func(f string) bool { return strings.Contains(f, s.function) }) {
						worked += sample.events
					}
				}
			}
		}
		return phases["before"] > 0 && phases["after"] > 0 && worked > 0
	}, startTimeout, 200*time.Millisecond, "%v, %d samples in %s", phases, worked, s.function)
	t.Logf("%s: samples by phase: %v, %d of them in %s", how, phases, worked, s.function)
}

// staysShut checks that no gate of a service ever opened, and that its requests were its.
func (r running) staysShut(t *testing.T, c *collector) {
	t.Helper()
	for _, l := range c.lines("gate opened") {
		require.NotEqual(t, r.unit, l.str("unit"), "%v", l)
	}
	require.Empty(t, c.lines("requests match no unit"))
}

// past is how long a service runs before its requests turn slow: it is to leave too.
const past = 7 * time.Second

// TestSlowAndFailingRequests: the gate of a service opens when its requests turn slow, which
// spans or metrics tell, or fail. The gate of its fast twin stays shut.
func TestSlowAndFailingRequests(t *testing.T) {
	t.Parallel()
	w, otlp := startWire(t), freePort(t)
	c, s := gating(t, w, otlp), goService
	twin := s.start(t, "twin", otlp)
	bySpans, byMetrics := s.start(t, "by-spans", otlp, "OTEL_METRICS_EXPORTER=none"), s.start(t, "by-metrics", otlp, "OTEL_TRACES_EXPORTER=none")
	failing := s.start(t, "failing", otlp)
	time.Sleep(past)
	bySpans.opens(t, c, w, s, "slow", "slow", "http_response_time", true)
	byMetrics.opens(t, c, w, s, "slow", "slow", "http_response_time", false)
	failing.opens(t, c, w, s, "fail", "failing", "http_error_rate", true)
	twin.staysShut(t, c)
}

// TestInstrumentationOfOtherLanguages is the same with services that send what their
// languages' automatic instrumentation sends by default.
func TestInstrumentationOfOtherLanguages(t *testing.T) {
	t.Parallel()
	for name, s := range otherServices {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, otlp := startWire(t), freePort(t)
			c := gating(t, w, otlp)
			twin, service := s.start(t, "twin", otlp), s.start(t, "service", otlp)
			time.Sleep(past)
			service.opens(t, c, w, s, "slow", "slow", "http_response_time", false)
			service.opens(t, c, w, s, "fail", "failing", "http_error_rate", false)
			twin.staysShut(t, c)
		})
	}
}
