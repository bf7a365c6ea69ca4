// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package e2e

import (
	"crypto/sha256"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	pprof "github.com/google/pprof/profile"
	"github.com/stretchr/testify/require"

	"github.com/hotprofile/hotprofile/test/hosttest"
)

// pages reads the pages of a console.
type pages struct {
	t    *testing.T
	base string
}

// get returns the body of a page that must exist.
func (p pages) get(path string) string {
	p.t.Helper()
	resp, err := http.Get(p.base + path)
	require.NoError(p.t, err)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	require.NoError(p.t, err)
	require.Equal(p.t, http.StatusOK, resp.StatusCode, "%s: %s", path, body)
	return string(body)
}

// wait waits until a pattern matches a page. It returns the match and its groups.
func (p pages) wait(path, pattern string) []string {
	p.t.Helper()
	of, deadline := regexp.MustCompile(pattern), time.Now().Add(startTimeout)
	for {
		body := p.get(path)
		if found := of.FindStringSubmatch(body); found != nil {
			return found
		}
		if time.Now().After(deadline) {
			require.Fail(p.t, "the page never had it", "%s: %s\n%s", path, pattern, body)
		}
		time.Sleep(200 * time.Millisecond)
	}
}

// hotContainer returns a container's ID and a cgroup with the name of the container.
func hotContainer(t *testing.T, which string) (unit string, hot *hosttest.Cgroup) {
	t.Helper()
	unit = fmt.Sprintf("%x", sha256.Sum256([]byte(t.Name()+which+strconv.Itoa(os.Getpid()))))
	hot = hosttest.NewCgroupCalled(t, "docker-"+unit+".scope")
	hot.SetQuota(t, cores)
	hot.RaiseWeight(t)
	return unit, hot
}

// TestTheConsoleShowsWhatWasHot runs a busy program in a container's cgroup, and a
// collector with a console. The pages must show the opening, its profile and the
// policy. The test also edits the policy and opens a gate by hand on the pages.
func TestTheConsoleShowsWhatWasHot(t *testing.T) {
	t.Parallel()
	unit, hot := hotContainer(t, "")
	dir, port, manual := t.TempDir(), freePort(t), freePort(t)
	policies := filepath.Join(dir, "policies.yaml")
	policy := fmt.Sprintf("- {name: cpu, match: {cgroup: %q}, any_of: [{monitor: cpu_utilization, threshold: %d, average_over: 3s}], duration: 5s, cooldown: 1h}\n", hot.Path, threshold)
	require.NoError(t, os.WriteFile(policies, []byte(policy), 0o600))
	c := startCollector(t, "collector", fmt.Sprintf(`
extensions:
  hot_units:
  console:
    endpoint: localhost:%[1]d
    directory: %[2]q
    policies_file: %[3]q
    edit: true
    manual: {endpoint: "http://localhost:%[4]d"}
receivers:
  cpu_profiler: {export_interval: 1s}
  hot_units: {collection_interval: 1s}
processors:
  cpu_trigger:
    evaluation_interval: 500ms
    min_age: 0
    policies_from: {file: %[3]q}
    manual: {endpoint: "localhost:%[4]d"}
exporters:
  console:
service:
  extensions: [hot_units, console]
  telemetry: {logs: {encoding: json, sampling: {enabled: false}}, metrics: {level: none}}
  pipelines:
    profiles: {receivers: [cpu_profiler], processors: [cpu_trigger], exporters: [console]}
    logs: {receivers: [hot_units], exporters: [console]}
    metrics: {receivers: [hot_units], exporters: [console]}
`, port, filepath.Join(dir, "console"), policies, manual))
	p := pages{t, fmt.Sprintf("http://localhost:%d", port)}
	c.wait(startTimeout, "console at "+p.base, nil)
	startLoad(t, hot.Command(loadBinary), hotService)
	id := c.wait(startTimeout, "gate opened", of(unit)).str("trigger_id")
	c.wait(startTimeout, "gate closed", of(unit))

	p.wait("/", `href="/openings/`+id+`"`)
	page := p.wait("/", `href="(/units/[0-9a-f]{16})"><bdi>`+hotService)[1]
	p.wait(page, `(?s)cpu_utilization.*`+id)
	p.wait("/openings/"+id, `/openings/`+id+`/profile\.pb\.gz`)
	require.Contains(t, p.get("/openings/"+id+"/flame.json"), "main.burnThreeParts")
	resp, err := http.Get(p.base + "/openings/" + id + "/profile.pb.gz")
	require.NoError(t, err)
	defer resp.Body.Close()
	prof, err := pprof.Parse(resp.Body)
	require.NoError(t, err)
	require.NotEmpty(t, prof.Sample)

	// The policy is edited in the browser. A wrong policy must be refused by the checks of
	// cpu_trigger, and a correct policy must take effect soon.
	p.wait("/policies", `cpu_utilization</bdi> over `+strconv.Itoa(threshold))
	form := url.Values{"do": {"save"}, "text": {strings.Replace(policy, "monitor: ", "moniter: ", 1)}}
	require.Contains(t, p.post("/policies", form, http.StatusUnprocessableEntity), "line 1: policies[0].any_of[0].moniter: unknown key of ")
	form.Set("text", strings.Replace(policy, "name: cpu", "name: edited", 1))
	p.post("/policies", form, http.StatusSeeOther)
	c.wait(startTimeout, "policies changed", func(l logLine) bool { return strings.Contains(fmt.Sprint(l["added"]), "edited") })
	p.wait("/policies", `cpu_trigger: in force`)
	kept, err := os.ReadFile(policies + ".previous")
	require.NoError(t, err)
	require.Equal(t, policy, string(kept))

	p.post(page+"/profile", url.Values{}, http.StatusSeeOther)
	opened := c.wait(startTimeout, "gate opened", func(l logLine) bool { return of(unit)(l) && l.str("policy") == "manual" })
	p.wait(page, "/openings/"+opened.str("trigger_id"))
	c.stop()
}

var tokenField = regexp.MustCompile(`name="token" value="([^"]*)"`)

// post sends a form of a page. The hidden fields are read from the page.
func (p pages) post(path string, form url.Values, status int) string {
	p.t.Helper()
	page := p.get(strings.TrimSuffix(path, "/profile"))
	token := tokenField.FindStringSubmatch(page)
	require.NotNil(p.t, token, page)
	form.Set("token", token[1])
	if version := regexp.MustCompile(`name="version" value="([^"]*)"`).FindStringSubmatch(page); version != nil {
		form.Set("version", version[1])
	}
	client := http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	resp, err := client.PostForm(p.base+path, form)
	require.NoError(p.t, err)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	require.NoError(p.t, err)
	require.Equal(p.t, status, resp.StatusCode, "%s: %s", path, body)
	return string(body)
}

// TestAGatewayHasAConsoleOfAllNodes runs two collectors and a gateway with a console. The
// collectors send profiles, events, readings and their own telemetry to the gateway.
func TestAGatewayHasAConsoleOfAllNodes(t *testing.T) {
	t.Parallel()
	dir, grpc, httpPort, port := t.TempDir(), freePort(t), freePort(t), freePort(t)
	gateway := startCollector(t, "gateway", fmt.Sprintf(`
extensions:
  console: {endpoint: "localhost:%d", directory: %q}
receivers:
  otlp: {protocols: {grpc: {endpoint: "127.0.0.1:%d"}, http: {endpoint: "127.0.0.1:%d"}}}
exporters:
  console:
service:
  extensions: [console]
  telemetry: {logs: {encoding: json}, metrics: {level: none}}
  pipelines:
    profiles: {receivers: [otlp], exporters: [console]}
    logs: {receivers: [otlp], exporters: [console]}
    metrics: {receivers: [otlp], exporters: [console]}
`, port, filepath.Join(dir, "console"), grpc, httpPort))
	p := pages{t, fmt.Sprintf("http://localhost:%d", port)}
	gateway.wait(startTimeout, "console at "+p.base, nil)

	nodes := []string{"node-1.example", "node-2.example"}
	opened := map[string]func() (id string){}
	for _, node := range nodes {
		unit, hot := hotContainer(t, node)
		c := startCollector(t, node, fmt.Sprintf(`
extensions:
  hot_units:
receivers:
  cpu_profiler: {export_interval: 1s, targets: [{cgroup: %[2]q}]}
  hot_units: {collection_interval: 1s}
processors:
  cpu_trigger:
    evaluation_interval: 500ms
    min_age: 0
    policies:
      - {name: cpu, match: {cgroup: %[2]q}, any_of: [{monitor: cpu_utilization, threshold: %[3]d, average_over: 3s}], duration: 5s, cooldown: 1h}
  # Both run on one host here.
  resource/node: {attributes: [{action: upsert, key: host.name, value: %[1]s}]}
exporters:
  otlp_grpc: {endpoint: "127.0.0.1:%[4]d", tls: {insecure: true}}
service:
  extensions: [hot_units]
  telemetry:
    resource: {attributes: [{name: host.name, value: %[1]s}]}
    logs:
      encoding: json
      sampling: {enabled: false}
      processors: [{batch: {exporter: {otlp: {protocol: http/protobuf, endpoint: "http://127.0.0.1:%[5]d"}}}}]
    metrics:
      readers: [{periodic: {interval: 1000, exporter: {otlp: {protocol: http/protobuf, endpoint: "http://127.0.0.1:%[5]d"}}}}]
  pipelines:
    profiles: {receivers: [cpu_profiler], processors: [cpu_trigger, resource/node], exporters: [otlp_grpc]}
    logs: {receivers: [hot_units], processors: [resource/node], exporters: [otlp_grpc]}
    metrics: {receivers: [hot_units], processors: [resource/node], exporters: [otlp_grpc]}
`, node, hot.Path, threshold, grpc, httpPort))
		c.wait(startTimeout, "Everything is ready. Begin running and processing data.", nil)
		startLoad(t, hot.Command(loadBinary), hotService)
		opened[node] = func() string {
			c.wait(startTimeout, "gate closed", of(unit))
			return c.lines("gate opened")[0].str("trigger_id")
		}
		defer c.stop()
	}
	for _, node := range nodes {
		id := opened[node]()
		p.wait("/", `(?s)<bdi>`+regexp.QuoteMeta(node)+`</bdi>.*/openings/`+id)
		p.wait("/openings/"+id, `/openings/`+id+`/profile\.pb\.gz`)
		require.Contains(t, p.get("/openings/"+id+"/flame.json"), "main.burnThreeParts")
		p.wait("/health", `(?s)<bdi>`+regexp.QuoteMeta(node)+`</bdi>.*sampling started.*samples of the receiver`)
	}
	health := p.get("/health")
	require.Contains(t, health, "% of a core")
	require.NotContains(t, health, "It sent no log of its start")
	browser(t, "gateway.mjs", map[string]any{"url": p.base, "nodes": nodes, "service": hotService})
}
