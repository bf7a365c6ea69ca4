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
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/hotprofile/hotprofile/test/hosttest"
)

// instrumented is a service that is instrumented by another project. The service serves
// requests and also sends requests to itself. It prints "ready" at its start. After the
// line "slow" on standard input, requests use CPU time and are slow. After the line
// "fail", requests fail. The service echoes each line once the line has taken effect.
type instrumented struct {
	// prepare returns the command line and the environment variables of
	// the service. It skips the test if a runtime is missing.
	prepare func(t *testing.T) (line, env []string)
	// cores is the CPU quota of one instance. The quota is low, so
	// that an instance can use all of it even on a busy machine.
	cores float64
	// function is a part of the name of a function that
	// appears in profiles of the working service.
	function string
	// keeps is a policy for a metric that the service sends by
	// default. A slow service keeps memory, so the metric rises.
	// keeps is empty if the service has no such metric.
	keeps policy
}

var goService = instrumented{prepare: buildOtelHTTP, cores: 0.3, function: "main.work"}

// otherServices are instrumented from outside, so their code does not contain
// the instrumentation. Samples of Python and Java have functions of the
// interpreter, because the collector runs without a hot_units extension.
var otherServices = map[string]instrumented{
	"Python, Flask": {prepare: installPython, cores: 0.6, function: "_PyEval_EvalFrameDefault"},
	"Node.js, Express": {
		prepare: installNode, cores: 0.6, function: "work",
		keeps: policy{"keeps", "monitor: metric, name: v8js.memory.heap.used, attributes: {v8js.heap.space.name: large_object_space}, threshold: 3.2e+7"},
	},
	"Java, JDK's HTTP server": {
		prepare: installJava, cores: 1.5, function: "jmm_GetThreadCpuTime",
		keeps: policy{"keeps", "monitor: metric, name: jvm.memory.used, attributes: {jvm.memory.pool.name: G1 Old Gen}, threshold: 1e+8"},
	},
}

// buildOtelHTTP builds a Go program with OpenTelemetry's
// SDK. The program is in a separate module.
func buildOtelHTTP(t *testing.T) (line, env []string) {
	binary := hosttest.Compiled(t, "otelhttp", "otelhttp", func(out string) {
		build := exec.Command("go", "build", "-o", out, ".")
		build.Dir = "../peers/otelhttp"
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if text, err := build.CombinedOutput(); err != nil {
			hosttest.SkipUnprivileged(t, "its modules cannot be had: %v\n%s", err, text)
		}
	})
	return []string{binary}, nil
}

// installing is locked while a program is installed, because concurrent tests need the same
// programs.
var installing sync.Mutex

// install runs a command that installs a program into a cache
// directory. It does nothing if the directory exists.
func install(t *testing.T, name string, line func(dir string) []string) (dir string) {
	t.Helper()
	cache, err := os.UserCacheDir()
	require.NoError(t, err)
	dir = filepath.Join(cache, "hotprofile-e2e", name)
	installing.Lock()
	defer installing.Unlock()
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
		[]string{"PYTHONPATH=" + dir, "OTEL_EXPERIMENTAL_RESOURCE_DETECTORS=process,otel"} // by default there is no process.pid
}

func installNode(t *testing.T) (line, env []string) {
	packages, err := os.ReadFile("../peers/node/package.json")
	require.NoError(t, err)
	dir := install(t, fmt.Sprintf("node-%08x", crc32.ChecksumIEEE(packages)), func(dir string) []string {
		require.NoError(t, os.WriteFile(filepath.Join(dir, "package.json"), packages, 0o644))
		return []string{"npm", "install", "--silent", "--no-audit", "--no-fund", "--prefix", dir}
	})
	return []string{"node", "--perf-basic-prof", "--require", filepath.Join(dir, "node_modules/@opentelemetry/auto-instrumentations-node/build/src/register.js"), absolute(t, "../peers/node/service.js")},
		// Outside of a container, the container detector of Node.js mistakes
		// every cgroup with a hexadecimal name for a container.
		[]string{"NODE_PATH=" + filepath.Join(dir, "node_modules"), "OTEL_NODE_RESOURCE_DETECTORS=env,host,os,process"}
}

// javaAgent is the URL of OpenTelemetry's Java agent.
// javaAgentSum is the SHA-256 checksum of the agent.
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
	return []string{"java", "-javaagent:" + filepath.Join(dir, "agent.jar"), "-XX:TieredStopAtLevel=1", "-XX:+UseG1GC", "-cp", classes, "Service"}, nil
}

func absolute(t *testing.T, path string) string {
	t.Helper()
	path, err := filepath.Abs(path)
	require.NoError(t, err)
	return path
}

// prepared prepares the service once, so that all instances of the service are the same.
func (s instrumented) prepared(t *testing.T) instrumented {
	t.Helper()
	line, env := s.prepare(t)
	s.prepare = func(*testing.T) ([]string, []string) { return line, env }
	return s
}

// running is a service that runs in its own cgroup.
type running struct {
	instrumented
	unit, service string
	in            io.Writer
	out           *bufio.Reader
}

// start starts the service and waits until the service is ready for requests.
func (s instrumented) start(t *testing.T, name string, otlp int, env ...string) running {
	t.Helper()
	cg := newCgroup(t, name)
	cg.SetQuota(t, s.cores)
	cg.RaiseWeight(t)
	line, needed := s.prepare(t)
	cmd := cg.Command(line[0], line[1:]...)
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	r := running{s, cg.Path, "e2e-" + name, in, bufio.NewReader(out)}
	startLoad(t, cmd, r.service, append(append([]string{
		fmt.Sprintf("OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:%d", otlp), "OTEL_EXPORTER_OTLP_PROTOCOL=grpc", "OTEL_LOGS_EXPORTER=none",
		"OTEL_METRIC_EXPORT_INTERVAL=1000", "OTEL_BSP_SCHEDULE_DELAY=500",
	}, needed...), env...)...)
	r.prints(t, "ready")
	return r
}

func (r running) prints(t *testing.T, want string) {
	t.Helper()
	line, err := r.out.ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, want+"\n", line)
}

// turn changes the service. Requests are served in the
// new way if they begin after the returned time.
func (r running) turn(t *testing.T, how ...string) time.Time {
	t.Helper()
	for _, line := range how {
		_, err := io.WriteString(r.in, line+"\n")
		require.NoError(t, err)
		r.prints(t, line)
	}
	return time.Now()
}

// policy is a policy with one condition, which is averaged over window.
type policy struct{ name, condition string }

const (
	// past is the time that a service runs before its requests
	// turn slow. Samples of this time must be exported, too.
	past = 7 * time.Second
	// leastPast is the minimum number of seconds before an opening for which samples must be
	// exported. It applies only to the first opening, because profiles that began before the
	// first opening closed are exported with the first opening. A profile covers many seconds
	// on a busy machine, so there may be no earlier samples left for a later opening.
	leastPast = 3

	window     = 5 * time.Second
	collection = time.Second
	evaluation = time.Second / 2

	// inTime is the maximum number of evaluations until a gate opens. The count
	// starts when the collector has all telemetry from before the turn. The
	// maximum covers the window and three collections: one before the window,
	// one at its end, and one that is late on a busy machine.
	inTime = int((window + 3*collection) / evaluation)
)

var (
	slow    = policy{"slow", `monitor: http_response_time, percentile: 50, threshold: 60, min_requests: 5, uri: {list: [/work, "/work/*"]}`}
	failing = policy{"failing", "monitor: http_error_rate, threshold: 50, min_requests: 5"}

	// Only the Go service uses these policies. A mean needs more requests
	// than a median, because the first requests of a process are slow.
	average      = policy{"average", "monitor: http_avg_response_time, threshold: 60, min_requests: 8"}
	often        = policy{"often", "monitor: http_request_rate, threshold: 20"}
	slowRPC      = policy{"slow-rpc", "monitor: rpc_response_time, percentile: 50, threshold: 60, min_requests: 5, uri: {list: [grpc.health.v1.Health/Check]}"}
	averageRPC   = policy{"average-rpc", "monitor: rpc_avg_response_time, threshold: 60, min_requests: 8"}
	failingRPC   = policy{"failing-rpc", "monitor: rpc_error_rate, threshold: 50, min_requests: 5"}
	oftenRPC     = policy{"often-rpc", "monitor: rpc_request_rate, threshold: 20"}
	goroutines   = policy{"goroutines", "monitor: metric, name: go.goroutine.count, threshold: 100"}
	metricMean   = policy{"metric-mean", "monitor: metric, name: http.server.request.duration, statistic: mean, threshold: 0.06"}
	metricMedian = policy{"metric-median", "monitor: metric, name: rpc.server.call.duration, statistic: percentile, percentile: 50, threshold: 0.06"}
	metricRate   = policy{"metric-rate", "monitor: metric, name: http.server.request.duration, statistic: rate, threshold: 20"}
)

// gating starts a collector whose gates are opened by the given policies.
func gating(t *testing.T, w *wire, otlp int, policies ...policy) *collector {
	t.Helper()
	var list strings.Builder
	for _, p := range policies {
		fmt.Fprintf(&list, "\n      - {name: %s, match: {cgroup: %q}, any_of: [{%s, average_over: %v}], duration: 5s}", p.name, ofThisTest(t), p.condition, window)
	}
	c := startCollector(t, "collector", fmt.Sprintf(`
receivers:
  cpu_profiler: {frequency: 199, max_overhead: 0, export_interval: 1s}
  otlp: {protocols: {grpc: {endpoint: "127.0.0.1:%d"}}}
processors:
  cpu_trigger:
    collection_interval: %v
    evaluation_interval: %v
    min_age: 6s # longer than the window: the first requests of a process are slow
    policies: %s
exporters:
  %s
  debug: {verbosity: normal, sampling_initial: 1000000}
service:
  telemetry:
    logs: {encoding: json, level: debug, sampling: {enabled: false}}
    metrics: {level: none}
  pipelines:
    profiles: {receivers: [cpu_profiler], processors: [cpu_trigger], exporters: [otlp_grpc/wire]}
    traces: {receivers: [otlp], processors: [cpu_trigger], exporters: [debug]}
    metrics: {receivers: [otlp], processors: [cpu_trigger], exporters: [debug]}
`, otlp, collection, evaluation, list.String(), w.exporter()))
	c.wait(startTimeout, "Everything is ready. Begin running and processing data.", nil)
	return c
}

// judges reports whether a line is about a policy of the service.
func (r running) judges(p policy) func(logLine) bool {
	return func(l logLine) bool { return l.str("unit") == r.unit && l.str("policy") == p.name }
}

// opens checks that a change of the service makes each policy open the gate. The gate
// must open at the first evaluation that finds the window over the threshold. At most
// inTime evaluations may pass before this evaluation.
func (r running) opens(t *testing.T, c *collector, turned time.Time, policies ...policy) (openings []logLine) {
	t.Helper()
	for _, p := range policies {
		openings = append(openings, r.opensBy(t, c, p, turned))
	}
	return openings
}

// opensBy checks one policy. It counts evaluations instead of
// seconds, because a busy machine may be slow.
func (r running) opensBy(t *testing.T, c *collector, p policy, turned time.Time) logLine {
	t.Helper()
	opened := c.wait(startTimeout, "gate opened", r.judges(p))
	require.Truef(t, opened.at().After(turned), "%s: before anything happened: %v", p.name, opened)
	require.Contains(t, p.condition, "monitor: "+opened.str("monitor")+",")
	lines := c.all()
	lines = lines[:slices.IndexFunc(lines, func(l logLine) bool { return l.msg() == "gate opened" && r.judges(p)(l) })]
	known, evaluations, over := r.knownSince(lines, turned), 0, 0
	for i, l := range lines {
		if l.msg() != "window updated" || !r.judges(p)(l) || l["filled"] != true || !l.at().After(turned) {
			continue
		}
		if l["value"].(float64) > l["threshold"].(float64) {
			over++
		}
		// A reading may arrive between an evaluation and the evaluation's log
		// line. Then the next evaluation opens the gate.
		require.LessOrEqualf(t, over, 1, "%s: an evaluation opened no gate: %v", p.name, l)
		if i > known {
			evaluations++
		}
	}
	t.Logf("%s: %s opened the gate after %.1f s, %d evaluations, at %v, threshold %v",
		r.service, p.name, opened.at().Sub(turned).Seconds(), evaluations+1, opened["value"], opened["threshold"])
	require.LessOrEqualf(t, evaluations, inTime, "%s: the gate opened late", p.name)
	return opened
}

// knownSince returns the index of the log line at which all data of a service from before
// the turn has arrived. This line reports the second batch of a signal since the turn. The
// first batch does not prove this, because some data was still in flight when the sender
// sent the first batch.
func (r running) knownSince(lines []logLine, turned time.Time) (last int) {
	sends, since := map[string]bool{}, map[string]int{}
	for i, l := range lines {
		signal, resource, _ := strings.Cut(l.msg(), " ")
		if !strings.HasPrefix(signal, "Resource") || !strings.Contains(resource, " service.name="+r.service) {
			continue
		}
		sends[signal] = true
		if l.at().After(turned) {
			if since[signal]++; since[signal] == 2 {
				last = i
			}
		}
	}
	for signal := range sends {
		if since[signal] < 2 { // the gate opened before the second batch
			return len(lines)
		}
	}
	return last
}

// leaves checks that profiles of a service are exported for the given openings. The samples
// before the openings must cover at least the given number of different seconds.
func (r running) leaves(t *testing.T, c *collector, w *wire, least int, openings ...logLine) {
	t.Helper()
	ids := map[string]bool{} // a profile names only one of the openings that are open
	for _, opened := range openings {
		ids[opened.str("trigger_id")] = true
		c.wait(startTimeout, "gate closed", func(l logLine) bool { return l.str("trigger_id") == opened.str("trigger_id") })
	}
	phases, worked, after, before := map[string]int{}, 0, 0, map[int]bool{}
	arrived := func() bool { // exporters may still hold profiles
		phases, worked, after, before = map[string]int{}, 0, 0, map[int]bool{}
		for _, p := range flatten(w.received()) {
			if p.str("hotprofile.unit") != r.unit || !ids[p.str("hotprofile.trigger.id")] {
				continue
			}
			fired, err := time.Parse(time.RFC3339Nano, p.str("hotprofile.trigger.time"))
			require.NoError(t, err)
			phases[p.str("hotprofile.trigger.phase")] += p.events()
			for _, sample := range p.samples {
				for _, at := range sample.times {
					if ago := fired.Sub(time.Unix(0, int64(at))); ago > 0 {
						before[int(ago.Seconds())] = true
					} else {
						after++
					}
				}
				if slices.ContainsFunc(sample.functions, func(f string) bool { return strings.Contains(f, r.function) }) {
					worked += sample.events
				}
			}
		}
		return len(before) >= least && after > 0 && worked > 0
	}
	assert.Eventually(t, arrived, startTimeout, 200*time.Millisecond)
	t.Logf("%s: samples by phase: %v, of %d seconds before the gate opened; %d of them in %s", r.service, phases, len(before), worked, r.function)
}

// staysShut checks that the gate of a service never opened. At the end, all
// policies must still have readings, and no reading may be over its threshold.
func (r running) staysShut(t *testing.T, c *collector, policies ...policy) {
	t.Helper()
	end := time.Now()
	for _, p := range policies {
		last := c.wait(startTimeout, "window updated", func(l logLine) bool { return r.judges(p)(l) && l["filled"] == true && l.at().After(end) })
		t.Logf("%s: %s is at %v, threshold %v", r.service, p.name, last["value"], last["threshold"])
		require.LessOrEqual(t, last["value"], last["threshold"], "%v", last)
	}
	for _, l := range c.all() {
		require.Falsef(t, l.msg() == "gate opened" && l.str("unit") == r.unit, "%v", l)
	}
	require.Empty(t, c.lines("requests match no unit"))
}

// TestSlowAndFailingRequests checks that the gate of a service opens if requests become
// slow, fail, or become frequent. Other metrics must also open the gate. Slow requests
// must be detected from spans alone and from metrics alone. The gate of a fast twin
// must stay closed.
func TestSlowAndFailingRequests(t *testing.T) {
	t.Parallel()
	all := []policy{slow, average, slowRPC, averageRPC, failing, failingRPC, often, oftenRPC, goroutines, metricMean, metricMedian, metricRate}
	w, otlp, s := startWire(t), freePort(t), goService.prepared(t)
	c := gating(t, w, otlp, all...)
	twin := s.start(t, "twin", otlp)
	bySpans, byMetrics := s.start(t, "by-spans", otlp, "OTEL_METRICS_EXPORTER=none"), s.start(t, "by-metrics", otlp, "OTEL_TRACES_EXPORTER=none")
	byBoth := s.start(t, "by-both", otlp)
	time.Sleep(past)
	type turn struct {
		running
		how    []string
		opens  []policy
		traced bool
	}
	for n, round := range [][]turn{{
		{bySpans, []string{"slow"}, []policy{slow, average, slowRPC, averageRPC}, true},
		{byMetrics, []string{"slow"}, []policy{slow, average, slowRPC, averageRPC, metricMean, metricMedian}, false},
		{byBoth, []string{"fail"}, []policy{failing, failingRPC}, true},
	}, {
		{byBoth, []string{"often", "park"}, []policy{often, oftenRPC, metricRate, goroutines}, false},
	}} {
		turned := make([]time.Time, len(round))
		for i, of := range round {
			turned[i] = of.turn(t, of.how...)
		}
		for i, of := range round {
			openings := of.running.opens(t, c, turned[i], of.opens...)
			for _, opened := range openings {
				require.Truef(t, !of.traced || len(opened.str("trace_id")) == 32, "%v", opened)
			}
			of.leaves(t, c, w, []int{leastPast, 0}[n], openings...)
		}
	}
	twin.staysShut(t, c, all...)
}

// TestInstrumentationOfOtherLanguages runs services in other languages. The services
// send the default telemetry of their language's automatic instrumentation.
func TestInstrumentationOfOtherLanguages(t *testing.T) {
	t.Parallel()
	for name, s := range otherServices {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			turnsSlow := []policy{slow}
			if s.keeps != (policy{}) {
				turnsSlow = append(turnsSlow, s.keeps)
			}
			all := append([]policy{failing}, turnsSlow...)
			w, otlp, s := startWire(t), freePort(t), s.prepared(t)
			c := gating(t, w, otlp, all...)
			twin, service := s.start(t, "twin", otlp), s.start(t, "service", otlp)
			time.Sleep(past)
			service.leaves(t, c, w, leastPast, service.opens(t, c, service.turn(t, "slow"), turnsSlow...)...)
			service.leaves(t, c, w, 0, service.opens(t, c, service.turn(t, "fail"), failing)...)
			twin.staysShut(t, c, all...)
		})
	}
}

// TestSamplesKnowTheirRequests checks that samples have the route of their request. The
// samples are pulled from a hot Go service that uses otelhttp and pprof labels. One of 20
// requests calls a slow planted function, which must have most of the slow samples.
func TestSamplesKnowTheirRequests(t *testing.T) {
	t.Parallel()
	w, otlp, pprof, web, s := startWire(t), freePort(t), freePort(t), freePort(t), goService.prepared(t)
	s.cores = 2
	c := startCollector(t, "collector", fmt.Sprintf(`
extensions: {hot_units: {}, console: {endpoint: "127.0.0.1:%d", directory: %q}}
receivers:
  cpu_profiler:
    pprof_endpoints: [{endpoint: "http://localhost:%d/debug/pprof", interval: 5s, duration: 4s}]
  otlp: {protocols: {grpc: {endpoint: "127.0.0.1:%d"}}}
  hot_units: {}
processors:
  cpu_trigger:
    evaluation_interval: 500ms
    min_age: 0
    policies:
      - name: slow
        match: {cgroup: %q}
        any_of: [{monitor: http_response_time, percentile: 99, threshold: 70, min_requests: 5, average_over: 10s}]
        duration: 30s
        cooldown: 1h
exporters:
  %s
  debug: {}
  console: {}
service:
  extensions: [hot_units, console]
  telemetry:
    logs: {encoding: json, level: debug, sampling: {enabled: false}}
    metrics: {level: none}
  pipelines:
    profiles: {receivers: [cpu_profiler], processors: [cpu_trigger], exporters: [otlp_grpc/wire, console]}
    traces: {receivers: [otlp], processors: [cpu_trigger], exporters: [debug]}
    logs: {receivers: [hot_units], exporters: [console]}
`, web, t.TempDir(), pprof, otlp, ofThisTest(t), w.exporter()))
	c.wait(startTimeout, "Everything is ready. Begin running and processing data.", nil)
	r := s.start(t, "requests", otlp, "OTEL_METRICS_EXPORTER=none", fmt.Sprintf("PPROF_ADDRESS=localhost:%d", pprof))
	r.turn(t, "cart")
	closed := c.wait(startTimeout, "gate closed", nil)
	p := pages{t, fmt.Sprintf("http://127.0.0.1:%d/openings/%s", web, closed.str("trigger_id"))}
	p.wait("", `(?s)aria-label="By request".*slow.*aria-label="By route".*/cart/`)
	p.wait("?against=normal", `slow</bdi> requests.*; in normal requests`)
	p.wait("", `(?s)id="requests-title".*/cart/.*CPU <strong>`) // 20 s after the gate closed
	c.stop()
	in := func(s sample, f string) bool {
		return slices.ContainsFunc(s.functions, func(of string) bool { return strings.HasPrefix(of, f) })
	}
	known := map[string]int{}
	var cart, linked, slowOnes, slowPlanted, planted, plantedSlow, others int
	for _, p := range flatten(w.received()) {
		for _, s := range p.samples {
			route, _ := s.attributes["http.route"].(string)
			request, _ := s.attributes["hotprofile.request"].(string)
			switch {
			case !in(s, "main.cart"):
				if route == "/cart/{id}" && in(s, "main.") {
					others += s.events
				}
				continue
			case route == "/cart/{id}":
				linked += s.events
			case route != "":
				others += s.events
			}
			cart += s.events
			known[fmt.Sprintf("link %v, %s, %s", s.linked, p.str("hotprofile.trigger.phase"), request)] += s.events
			if request == "slow" {
				slowOnes += s.events
				if in(s, "main.planted") {
					slowPlanted += s.events
				}
			}
			if in(s, "main.planted") && request != "" {
				planted += s.events
				if request == "slow" {
					plantedSlow += s.events
				}
			}
		}
	}
	t.Logf("%v", known)
	t.Logf("%d samples of /cart, %d with its route, %d with another; %d of %d slow ones are in the planted function; %d of %d planted ones are slow",
		cart, linked, others, slowPlanted, slowOnes, plantedSlow, planted)
	require.Greater(t, cart, 300)
	require.Zero(t, others)
	require.GreaterOrEqual(t, linked*100, cart*50)
	require.GreaterOrEqual(t, slowPlanted*100, slowOnes*70) // on a busy machine other requests are slow, too
	require.GreaterOrEqual(t, plantedSlow*100, planted*99)
}
