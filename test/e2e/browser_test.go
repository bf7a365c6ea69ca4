// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package e2e

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/hotprofile/hotprofile/test/hosttest"
)

// browser runs a script in test/browser, which controls Chromium. file is the name of the
// script, and facts is the input of the script. The browser has no higher CPU weight, because
// it would then take the CPU time of the collectors in containers, which have none either.
func browser(t *testing.T, file string, facts map[string]any) {
	t.Helper()
	packages, err := os.ReadFile("../browser/package.json")
	require.NoError(t, err)
	chromium, node := hosttest.Tool(t, "chromium"), hosttest.Tool(t, "node")
	dir := install(t, fmt.Sprintf("browser-%08x", crc32.ChecksumIEEE(packages)), func(dir string) []string {
		require.NoError(t, os.WriteFile(filepath.Join(dir, "package.json"), packages, 0o644))
		return []string{"npm", "install", "--silent", "--no-audit", "--no-fund", "--prefix", dir}
	})
	// JavaScript modules are searched next to the file.
	work := t.TempDir()
	require.NoError(t, os.Symlink(filepath.Join(dir, "node_modules"), filepath.Join(work, "node_modules")))
	files, err := filepath.Glob("../browser/*.mjs")
	require.NoError(t, err)
	for _, f := range files {
		content, err := os.ReadFile(f)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(work, filepath.Base(f)), content, 0o644))
	}
	facts["pictures"] = os.Getenv("HOTPROFILE_PICTURES")
	facts["downloads"] = t.TempDir()
	told, err := json.Marshal(facts)
	require.NoError(t, err)
	cmd := exec.Command(node, filepath.Join(work, file), string(told))
	cmd.Env = append(os.Environ(), "CHROMIUM="+chromium)
	out, err := cmd.CombinedOutput()
	t.Logf("%s:\n%s", file, out)
	require.NoError(t, err)
}

// TestTheConsoleInABrowser runs a collector with a console and uses every page in a
// browser. The hot program waits, is warm for long enough to have a baseline, and then
// turns hot. Other tests run during the minute before the program turns hot.
func TestTheConsoleInABrowser(t *testing.T) {
	// The IDs of these containers share a prefix that no other ID has.
	prefix := fmt.Sprintf("%x", sha256.Sum256(fmt.Append(nil, t.Name(), os.Getpid())))[:12]
	container := func(service string, load ...string) (unit string) {
		unit = prefix + fmt.Sprintf("%x", sha256.Sum256([]byte(service)))[:52]
		cg := hosttest.NewCgroupCalled(t, "docker-"+unit+".scope")
		cg.SetQuota(t, cores/2)
		cg.RaiseWeight(t)
		startLoad(t, cg.Command(loadBinary, load...), service)
		return unit
	}
	policies := filepath.Join(t.TempDir(), "policies.yaml")
	require.NoError(t, os.WriteFile(policies, fmt.Appendf(nil, `# Policies of this node.
- name: cpu
  match: {container.id: %[1]q}
  any_of: [{monitor: cpu_utilization, threshold: 60, average_over: 3s}]
  duration: 5s
  cooldown: 1h
  baseline: {every: 1m, duration: 5s}
- name: trial
  dry_run: true
  match: {container.id: %[1]q}
  any_of: [{monitor: cpu_usage, threshold: 0.15, average_over: 3s}]
`, prefix+"*"), 0o644))
	port, manual, otlp := freePort(t), freePort(t), freePort(t)
	c := startCollector(t, "collector", fmt.Sprintf(`
extensions:
  hot_units:
  console:
    endpoint: 127.0.0.1:%[1]d
    directory: %[2]q
    policies_file: %[3]q
    edit: true
    manual: {endpoint: "http://127.0.0.1:%[4]d"}
receivers:
  cpu_profiler: {frequency: 397, max_overhead: 0, export_interval: 1s, off_cpu: {when: always}}
  hot_units: {collection_interval: 1s}
  otlp: {protocols: {http: {endpoint: "127.0.0.1:%[5]d"}}}
processors:
  cpu_trigger:
    evaluation_interval: 500ms
    min_age: 0
    manual: {endpoint: "127.0.0.1:%[4]d"}
    policies_from: {file: %[3]q}
exporters:
  console:
service:
  extensions: [hot_units, console]
  telemetry:
    resource: {attributes: [{name: host.name, value: "of-this-test"}]}
    logs:
      encoding: json
      sampling: {enabled: false}
      processors: [{batch: {exporter: {otlp: {protocol: http/protobuf, endpoint: "http://127.0.0.1:%[5]d"}}}}]
    metrics:
      readers: [{periodic: {interval: 2000, exporter: {otlp: {protocol: http/protobuf, endpoint: "http://127.0.0.1:%[5]d"}}}}]
  pipelines:
    profiles: {receivers: [cpu_profiler], processors: [cpu_trigger], exporters: [console]}
    logs: {receivers: [hot_units, otlp], exporters: [console]}
    metrics: {receivers: [hot_units, otlp], exporters: [console]}
`, port, filepath.Join(t.TempDir(), "console"), policies, manual, otlp))
	c.wait(startTimeout, "Everything is ready. Begin running and processing data.", nil)
	require.NotEmpty(t, c.lines(fmt.Sprintf("console at http://127.0.0.1:%d", port)))
	for service, duty := range map[string]string{"cart": "0.05", "payments": "0.02", "search": "0.08"} {
		container(service, "-duty", duty)
	}
	hostile := `"><img src=x onerror=alert(1)><script>alert(1)</script>`
	if os.Getenv("HOTPROFILE_PICTURES") == "" {
		container(hostile, "-duty", "0.02")
	}
	hot := container("checkout", "-warm", "66s", "-warm-duty", "0.03", "-busy", "15s", "-waiting", "1")
	t.Parallel()
	id := c.wait(2*time.Minute, "gate opened", func(l logLine) bool {
		return l.str("unit") == hot && l.str("policy") == "cpu" && l["phase"] == nil
	}).str("trigger_id")
	c.wait(startTimeout, "gate closed", func(l logLine) bool { return l.str("trigger_id") == id })
	pages{t, fmt.Sprintf("http://127.0.0.1:%d", port)}.wait("/openings/"+id, "after the trigger")

	browser(t, "console.mjs", map[string]any{
		"url": fmt.Sprintf("http://127.0.0.1:%d", port), "service": "checkout", "hostile": hostile, "policies": policies,
	})
	// Each action that the page confirmed must have taken effect.
	content, err := os.ReadFile(policies)
	require.NoError(t, err)
	require.Contains(t, string(content), "# edited in the browser")
	c.wait(startTimeout, "policies changed", nil)
	require.NotEmpty(t, slices.DeleteFunc(c.lines("gate opened"), func(l logLine) bool { return l.str("policy") != "manual" }))
	c.stop()
}
