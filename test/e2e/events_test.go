// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package e2e

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/plog"
	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/hotprofile/hotprofile/test/hosttest"
)

// hook is an HTTP server that keeps the bodies of webhook requests, by path.
type hook struct {
	*httptest.Server
	mu     sync.Mutex
	bodies map[string][]string
}

func startHook(t *testing.T) *hook {
	h := &hook{bodies: map[string][]string{}}
	h.Server = httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Errorf("a webhook's request: %v", err)
		}
		h.mu.Lock()
		defer h.mu.Unlock()
		h.bodies[r.URL.Path] = append(h.bodies[r.URL.Path], string(body))
	}))
	t.Cleanup(h.Close)
	return h
}

func (h *hook) at(path string) []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.bodies[path])
}

// jsonLines calls a function with each line of a file.
func jsonLines(t *testing.T, file string, each func([]byte) error) {
	t.Helper()
	content, err := os.ReadFile(file)
	require.NoError(t, err)
	for line := range bytes.Lines(content) {
		if line = bytes.TrimSpace(line); len(line) > 0 {
			require.NoError(t, each(line))
		}
	}
}

// TestEventsAndReadingsLeave runs a busy program in a container's cgroup. Events of
// the gate and of the written file must arrive at two webhooks, and at an OTLP peer
// as log records. Readings and their threshold must arrive at the peer.
func TestEventsAndReadingsLeave(t *testing.T) {
	t.Parallel()
	unit := fmt.Sprintf("%x", sha256.Sum256([]byte(t.Name()+strconv.Itoa(os.Getpid()))))
	hot := hosttest.NewCgroupCalled(t, "docker-"+unit+".scope")
	hot.SetQuota(t, cores)
	hot.RaiseWeight(t)
	hooks, dir := startHook(t), t.TempDir()
	port, logsFile, metricsFile := freePort(t), filepath.Join(dir, "logs.json"), filepath.Join(dir, "metrics.json")
	peer := startCollector(t, "peer", fmt.Sprintf(`
receivers:
  otlp: {protocols: {grpc: {endpoint: "127.0.0.1:%d"}}}
exporters:
  file/logs: {path: %q, format: json, flush_interval: 200ms}
  file/metrics: {path: %q, format: json, flush_interval: 200ms}
service:
  telemetry: {logs: {encoding: json}, metrics: {level: none}}
  pipelines:
    logs: {receivers: [otlp], exporters: [file/logs]}
    metrics: {receivers: [otlp], exporters: [file/metrics]}
`, port, logsFile, metricsFile))
	peer.wait(startTimeout, "Everything is ready. Begin running and processing data.", nil)

	metrics := freePort(t)
	c := startCollector(t, "collector", fmt.Sprintf(`
extensions:
  hot_units:
    webhooks:
      - {endpoint: "%[1]s/json", group_wait: 1s, events: [hotprofile.gate.opened, hotprofile.gate.closed, hotprofile.profile.written]}
      - {endpoint: "%[1]s/slack", group_wait: 1s, template: slack}
receivers:
  cpu_profiler: {export_interval: 1s}
  hot_units: {collection_interval: 1s}
processors:
  cpu_trigger:
    evaluation_interval: 500ms
    min_age: 0
    policies:
      - {name: cpu, match: {cgroup: %[2]q}, any_of: [{monitor: cpu_utilization, threshold: %[6]d, average_over: 3s}], duration: 5s, cooldown: 1h}
exporters:
  pprof: {directory: %[3]q, idle_timeout: 2s}
  otlp_grpc: {endpoint: "127.0.0.1:%[4]d", tls: {insecure: true}}
service:
  extensions: [hot_units]
  telemetry:
    logs: {encoding: json, level: debug, sampling: {enabled: false}}
    metrics: {readers: [{pull: {exporter: {prometheus: {host: 127.0.0.1, port: %[5]d}}}}]}
  pipelines:
    profiles: {receivers: [cpu_profiler], processors: [cpu_trigger], exporters: [pprof]}
    logs: {receivers: [hot_units], exporters: [otlp_grpc]}
    metrics: {receivers: [hot_units], exporters: [otlp_grpc]}
`, hooks.URL, hot.Path, filepath.Join(dir, "profiles"), port, metrics, threshold))
	c.wait(startTimeout, "Everything is ready. Begin running and processing data.", nil)
	startLoad(t, hot.Command(loadBinary), hotService)
	opened := c.wait(startTimeout, "gate opened", of(unit))
	closed := c.wait(startTimeout, "gate closed", of(unit))
	written := c.wait(startTimeout, "profile written", of(unit))
	id := opened.str("trigger_id")

	posted := func(path, text string) func() bool {
		return func() bool { return strings.Contains(strings.Join(hooks.at(path), "\n"), text) }
	}
	require.Eventually(t, posted("/json", "hotprofile.profile.written"), startTimeout, 100*time.Millisecond)
	require.Eventually(t, posted("/slack", "*profile written*"), startTimeout, 100*time.Millisecond)
	require.Positive(t, scrape(t, metrics, "otelcol_hot_units_webhook_events", `outcome="posted"`))
	c.stop()
	peer.stop()

	var names []string
	for _, body := range hooks.at("/json") {
		var m struct {
			Events []struct {
				Name                 string
				Resource, Attributes map[string]any
			}
		}
		require.NoError(t, json.Unmarshal([]byte(body), &m))
		for _, e := range m.Events {
			names = append(names, e.Name)
			require.Equal(t, unit, e.Attributes["hotprofile.unit"])
			require.Equal(t, id, e.Attributes["hotprofile.trigger.id"])
			require.Equal(t, hotService, e.Resource["service.name"])
		}
	}
	require.Equal(t, []string{"hotprofile.gate.opened", "hotprofile.gate.closed", "hotprofile.profile.written"}, names[:3])
	for _, body := range hooks.at("/slack") {
		require.True(t, json.Valid([]byte(body)), body)
	}
	require.Contains(t, hooks.at("/slack")[0], "*gate opened* gate of "+hotService+" opened by policy cpu: cpu_utilization")

	records := map[string]plog.LogRecord{}
	jsonLines(t, logsFile, func(line []byte) error {
		ld, err := (&plog.JSONUnmarshaler{}).UnmarshalLogs(line)
		for _, rl := range ld.ResourceLogs().All() {
			for _, r := range rl.ScopeLogs().At(0).LogRecords().All() {
				records[r.EventName()] = r
				container, _ := rl.Resource().Attributes().Get("container.id")
				require.Equal(t, unit, container.Str(), "%s: %v", r.EventName(), rl.Resource().Attributes().AsRaw())
				host, _ := rl.Resource().Attributes().Get("host.name")
				require.NotEmpty(t, host.Str(), r.EventName())
				service, _ := rl.Resource().Attributes().Get("service.name")
				require.Equal(t, hotService, service.Str(), r.EventName())
			}
		}
		return err
	})
	of := func(event string) map[string]any {
		require.Contains(t, records, event)
		return records[event].Attributes().AsRaw()
	}
	require.Equal(t, id, of("hotprofile.gate.opened")["hotprofile.trigger.id"])
	require.InDelta(t, opened["value"], of("hotprofile.gate.opened")["hotprofile.trigger.value"], 1e-9)
	require.Equal(t, "3s average", of("hotprofile.gate.opened")["hotprofile.trigger.window"])
	require.EqualValues(t, closed["samples"], of("hotprofile.gate.closed")["hotprofile.gate.samples"])
	require.Equal(t, "duration", of("hotprofile.gate.closed")["hotprofile.gate.why"])
	require.Equal(t, written.str("file"), of("hotprofile.profile.written")["file.path"])
	require.Contains(t, fmt.Sprint(of("hotprofile.profile.written")["hotprofile.profile.functions"]), "burn")

	nearest, most, profiling := 0.0, 0.0, false
	jsonLines(t, metricsFile, func(line []byte) error {
		md, err := (&pmetric.JSONUnmarshaler{}).UnmarshalMetrics(line)
		for _, rm := range md.ResourceMetrics().All() {
			reading, limit := 0.0, 0.0
			for _, m := range rm.ScopeMetrics().At(0).Metrics().All() {
				for _, p := range m.Gauge().DataPoints().All() {
					of := p.Attributes().AsRaw()
					require.Equal(t, unit, of["hotprofile.unit"], "the policy applies to no other unit")
					switch m.Name() {
					case "hotprofile.unit.reading":
						reading = p.DoubleValue()
					case "hotprofile.unit.threshold":
						limit = p.DoubleValue()
						require.InDelta(t, threshold, limit, 1e-9)
						require.Equal(t, map[string]any{
							"hotprofile.unit": unit, "hotprofile.trigger.policy": "cpu",
							"hotprofile.trigger.monitor": "cpu_utilization", "hotprofile.trigger.window": "3s average",
						}, of)
					case "container.cpu.usage":
						most = max(most, p.DoubleValue())
					case "hotprofile.unit.state":
						profiling = profiling || of["hotprofile.policy.state"] == "profiling" && p.IntValue() == 1
					}
				}
			}
			if limit > 0 {
				nearest = max(nearest, reading/limit)
			}
		}
		return err
	})
	require.Greater(t, nearest, 1.0, "the reading that opened the gate is above the threshold")
	require.True(t, profiling)
	require.Greater(t, most, cores*threshold/100, "the container's CPU, in cores")
}

// TestAGateThatTheShutdownClosesIsPosted checks that webhooks shut down after all
// components that publish events.
func TestAGateThatTheShutdownClosesIsPosted(t *testing.T) {
	t.Parallel()
	hot := newCgroup(t, "hot")
	hot.SetQuota(t, cores)
	hot.RaiseWeight(t)
	hooks := startHook(t)
	c := pipeline{
		extensions: []string{fmt.Sprintf(`hot_units: {webhooks: [{endpoint: "%s/", group_wait: 5m, events: [hotprofile.gate.opened, hotprofile.gate.closed, hotprofile.profile.written]}]}`, hooks.URL)},
		receiver:   "{export_interval: 1s}",
		trigger:    onceAbove(t, threshold, time.Hour),
		exporters:  []string{fmt.Sprintf("pprof: {directory: %q, idle_timeout: 10m}", filepath.Join(t.TempDir(), "profiles"))},
	}.start(t, freePort(t))
	startLoad(t, hot.Command(loadBinary), hotService)
	c.wait(startTimeout, "gate opened", of(hot.Path))
	c.stop()
	bodies := hooks.at("/")
	require.Len(t, bodies, 1, "one message")
	require.Contains(t, bodies[0], "hotprofile.gate.opened")
	require.Contains(t, bodies[0], `"hotprofile.gate.why":"shutdown"`)
	require.Equal(t, len(c.lines("profile written")) > 0, strings.Contains(bodies[0], "hotprofile.profile.written"))
}
