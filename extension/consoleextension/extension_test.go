// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package consoleextension

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/component/componentstatus"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/config/confighttp"
	"go.opentelemetry.io/collector/confmap"
	"go.opentelemetry.io/collector/extension"
	"go.opentelemetry.io/collector/extension/extensiontest"
	"go.opentelemetry.io/collector/pdata/plog"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/pdata/pprofile"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
	"go.yaml.in/yaml/v3"

	"github.com/hotprofile/hotprofile/extension/consoleextension/internal/metadata"
	"github.com/hotprofile/hotprofile/extension/consoleextension/internal/store"
	"github.com/hotprofile/hotprofile/extension/hotunitsextension"
	"github.com/hotprofile/hotprofile/internal/hostid"
)

// load parses and validates a configuration in the same way as the collector.
func load(t testing.TB, text string) (*Config, error) {
	t.Helper()
	var keys map[string]any
	require.NoError(t, yaml.Unmarshal([]byte(text), &keys))
	cfg := createDefaultConfig(func(string) string { return "" }).(*Config)
	if err := confmap.NewFromStringMap(keys).Unmarshal(cfg); err != nil {
		return nil, err
	}
	return cfg, confmap.Validate(cfg)
}

type hostWith map[component.ID]component.Component

func (h hostWith) GetExtensions() map[component.ID]component.Component { return h }

type rig struct {
	*Console
	t         testing.TB
	logs      *observer.ObservedLogs
	telemetry *componenttest.Telemetry
	base      string
	host      hostWith
}

// start starts a console with its own store and its own port.
func start(t testing.TB, text string) *rig {
	t.Helper()
	r := newRig(t, text)
	require.NoError(t, r.Start(t.Context(), r.host))
	r.base = "http://" + r.server.Addr().String()
	return r
}

func newRig(t testing.TB, text string) *rig {
	t.Helper()
	cfg, err := load(t, text)
	require.NoError(t, err)
	if !strings.Contains(text, "endpoint: ") || strings.Contains(text, "manual") {
		cfg.HTTP.NetAddr.Endpoint = "localhost:0"
	}
	if !strings.Contains(text, "directory") {
		cfg.Directory = filepath.Join(t.TempDir(), "console")
	}
	core, logs := observer.New(zapcore.InfoLevel)
	r := &rig{t: t, logs: logs, telemetry: componenttest.NewTelemetry(), host: hostWith{}}
	set := extension.Settings{ID: component.NewID(metadata.Type), TelemetrySettings: r.telemetry.NewTelemetrySettings(), BuildInfo: component.BuildInfo{Version: "1.2.3"}}
	set.Logger = zap.New(core)
	r.Console, err = newConsole(set, cfg)
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, r.Shutdown(context.Background()))
		require.NoError(t, r.Shutdown(context.Background()), "again")
		require.NoError(t, r.telemetry.Shutdown(context.Background()))
	})
	return r
}

// get returns the status and the body of a page.
func (r *rig) get(path string, headers ...string) (int, string) {
	r.t.Helper()
	return r.send(http.MethodGet, path, "", headers...)
}

func (r *rig) send(method, path, body string, headers ...string) (int, string) {
	r.t.Helper()
	req, err := http.NewRequestWithContext(r.t.Context(), method, r.base+path, strings.NewReader(body))
	require.NoError(r.t, err)
	if method == http.MethodPost {
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
		if headers[i] == "Host" {
			req.Host = headers[i+1]
		}
	}
	client := http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	defer client.CloseIdleConnections()
	resp, err := client.Do(req)
	require.NoError(r.t, err)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	require.NoError(r.t, err)
	return resp.StatusCode, string(text)
}

var tokenField = regexp.MustCompile(`name="token" value="([^"]*)"`)

// token returns the token in the form of a page.
func (r *rig) token(path string) string {
	r.t.Helper()
	_, page := r.get(path)
	found := tokenField.FindStringSubmatch(page)
	require.NotNil(r.t, found, page)
	return found[1]
}

// metric returns the sum of a metric's points for each value of an attribute.
func (r *rig) metric(name, key string) map[string]int64 {
	r.t.Helper()
	got, err := r.telemetry.GetMetric(name)
	require.NoError(r.t, err)
	return sums(got.Data, key)
}

// opened returns logs with one event that reports the opening of the unit's gate.
func opened(unit string) plog.Logs {
	ld := plog.NewLogs()
	rl := ld.ResourceLogs().AppendEmpty()
	host := hostid.Best(hostid.Names("/"))
	rl.Resource().Attributes().PutStr("host.name", host)
	rl.Resource().Attributes().PutStr("service.name", "checkout")
	record := rl.ScopeLogs().AppendEmpty().LogRecords().AppendEmpty()
	record.SetEventName(hotunitsextension.GateOpened)
	for key, value := range map[string]string{
		"hotprofile.unit": unit, "hotprofile.trigger.policy": "cpu", "hotprofile.trigger.id": "5f0e9a4e6a3b1c22", "hotprofile.trigger.kind": "hot",
		"hotprofile.trigger.monitor": "cpu_utilization", "hotprofile.trigger.window": "30s average", "hotprofile.trigger.until": time.Now().Add(time.Minute).UTC().Format(time.RFC3339),
	} {
		record.Attributes().PutStr(key, value)
	}
	record.Attributes().PutDouble("hotprofile.trigger.value", 93.5)
	record.Attributes().PutDouble("hotprofile.trigger.threshold", 80)
	record.SetTimestamp(timestamp())
	return ld
}

func TestConfiguration(t *testing.T) {
	cfg, err := load(t, "{}")
	require.NoError(t, err)
	require.Equal(t, "localhost:4042", cfg.HTTP.NetAddr.Endpoint)
	require.Equal(t, "console", cfg.Directory)
	require.Equal(t, 48*time.Hour, cfg.MaxAge)
	require.EqualValues(t, 300<<20, cfg.MaxBytes)
	require.False(t, cfg.Edit)
	require.False(t, cfg.Manual.HasValue())
	for name, d := range map[string]time.Duration{
		"read_header_timeout": cfg.HTTP.ReadHeaderTimeout, "read_timeout": cfg.HTTP.ReadTimeout,
		"write_timeout": cfg.HTTP.WriteTimeout,
	} {
		require.Positive(t, d, name)
	}
	under := createDefaultConfig(func(key string) string {
		require.Equal(t, "STATE_DIRECTORY", key)
		return "/var/lib/a:/var/lib/b"
	}).(*Config)
	require.Equal(t, filepath.FromSlash("/var/lib/a/console"), under.Directory)
	require.Equal(t, time.Minute, under.HTTP.Keepalive.Get().IdleTimeout)

	for text, want := range map[string]string{
		"{endpoint: localhost}":                           `endpoint: "localhost" is not host:port, such as localhost:4042`,
		"{directory: ''}":                                 "directory: must not be empty",
		"{max_age: 1m}":                                   "max_age: 1m0s is not between 10m0s and 720h0m0s",
		"{max_bytes: 1MiB}":                               "max_bytes: 1MiB is not between 16MiB and 1TiB",
		"{allowed_hosts: ['https://a.example']}":          `allowed_hosts[0]: "https://a.example" is not a host's name`,
		"{allowed_hosts: ['a.example:4042']}":             `allowed_hosts[0]: "a.example:4042" is not a host's name`,
		"{allowed_hosts: ['*']}":                          `allowed_hosts[0]: "*" is not a host's name`,
		"{trace_url: 'https://tempo.example/'}":           "trace_url: ",
		"{trace_url: 'javascript:alert({trace_id})'}":     "trace_url: ",
		"{trace_url: 'http://u:p@tempo/{trace_id}'}":      "trace_url: ",
		"{policies_file: policies.yaml}":                  `policies_file: "policies.yaml" is not an absolute path`,
		"{edit: true}":                                    "edit: goes only with policies_file",
		"{manual: {timeout: 1s}}":                         "manual.endpoint: is needed",
		"{manual: {endpoint: 'localhost:4041'}}":          "manual.endpoint: is not http://HOST",
		"{manual: {endpoint: 'http://a/v1/trigger'}}":     "manual.endpoint: must have no path",
		"{manual: {endpoint: 'http://u:secret@a:4041'}}":  "manual.endpoint: must not have a user and password",
		"{manual: {endpoint: 'http://a:1', timeout: 0s}}": "manual.timeout: 0s is not above 0",
		"{manual: {endpont: 'http://a:4041'}}":            "endpont",
		"{max_bites: 1}":                                  "max_bites",
	} {
		_, err := load(t, text)
		require.ErrorContains(t, err, want, text)
		require.NotContains(t, err.Error(), "secret")
	}
	cfg, err = load(t, "{trace_url: 'https://tempo.example/trace/{trace_id}?span={span_id}', manual: {endpoint: 'http://localhost:4041'}, policies_file: "+filepath.Join(t.TempDir(), "p.yaml")+", edit: true, allowed_hosts: [console.example.com, node7]}")
	require.NoError(t, err)
	require.Equal(t, 5*time.Second, cfg.Manual.Get().Timeout)
}

func TestWhatComesAsOTLPIsOnThePages(t *testing.T) {
	r := start(t, "{}")
	require.Len(t, r.logs.FilterMessage("console at "+strings.Replace(r.base, "127.0.0.1", "localhost", 1)).All(), 1)
	status, page := r.get("/")
	require.Equal(t, http.StatusOK, status)
	require.Contains(t, page, "No gate opened in this time")

	require.NoError(t, r.ConsumeLogs(t.Context(), opened("4f1c0c6b8a2e")))
	require.NoError(t, r.ConsumeMetrics(t.Context(), pmetric.NewMetrics()))
	require.NoError(t, r.ConsumeProfiles(t.Context(), pprofile.NewProfiles()))
	_, page = r.get("/")
	require.Contains(t, page, "checkout")
	require.Contains(t, page, "/openings/5f0e9a4e6a3b1c22")
	for _, path := range []string{"/policies", "/health"} {
		status, page := r.get(path)
		require.Equal(t, http.StatusOK, status, page)
	}
	status, _ = r.get("/nothing")
	require.Equal(t, http.StatusNotFound, status)

	require.Equal(t, map[string]int64{"accepted": 1}, r.metric("otelcol_console.items", "outcome"))
	require.Equal(t, map[string]int64{"GET /{$}": 2, "GET /policies": 1, "GET /health": 1, "/": 1}, r.metric("otelcol_console.request.duration", "page"))
	require.Positive(t, r.metric("otelcol_console.store.size", "")[""])
	require.NoError(t, r.Shutdown(t.Context()))
	require.ErrorIs(t, r.ConsumeLogs(t.Context(), opened("4f1c0c6b8a2e")), errStopped)
}

func TestWhatWasStoredIsThereAfterARestart(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "console")
	text := fmt.Sprintf("{directory: %q}", dir)
	r := start(t, text)
	require.NoError(t, r.ConsumeLogs(t.Context(), opened("4f1c0c6b8a2e")))
	second := newRig(t, text)
	require.ErrorContains(t, second.Start(t.Context(), second.host), dir, "the directory is in use")
	require.NoError(t, r.Shutdown(t.Context()))
	r = start(t, text)
	_, page := r.get("/")
	require.Contains(t, page, "/openings/5f0e9a4e6a3b1c22")
}

func TestFindNamesTheExtensionThatIsMissing(t *testing.T) {
	id := component.NewID(metadata.Type)
	r := newRig(t, "{}")
	found, err := Find(hostWith{id: r.Console}, id)
	require.NoError(t, err)
	require.Same(t, r.Console, found)
	_, err = Find(componenttest.NewNopHost(), id)
	require.ErrorContains(t, err, `there is no extension "console": configure it under extensions, and list it under service.extensions`)
	_, err = Find(hostWith{id: componentNop{}}, id)
	require.ErrorContains(t, err, `the extension "console" is not a console`)
	require.ErrorIs(t, r.ConsumeLogs(t.Context(), plog.NewLogs()), errStopped, "not started")
}

type componentNop struct{ component.Component }

func TestAStartThatFailsLeavesNothing(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer taken.Close()
	dir := filepath.Join(t.TempDir(), "console")
	r := newRig(t, fmt.Sprintf("{endpoint: %q, directory: %q}", taken.Addr(), dir))
	r.cfg.HTTP.NetAddr.Endpoint = taken.Addr().String()
	require.ErrorContains(t, r.Start(t.Context(), r.host), "console.endpoint: listen at "+taken.Addr().String())
	start(t, fmt.Sprintf("{directory: %q}", dir)) // the directory is no longer locked

	r = newRig(t, "{auth: {authenticator: nobody}}")
	require.ErrorContains(t, r.Start(t.Context(), r.host), "nobody")
	require.Equal(t, []component.ID{component.MustNewID("nobody")}, r.Dependencies())
}

// TestAWebsiteWhoseNameWasPointedHereReadsNothing covers DNS rebinding. In this attack,
// the browser sends requests under the website's name and considers them same-origin.
func TestAWebsiteWhoseNameWasPointedHereReadsNothing(t *testing.T) {
	r := start(t, "{allowed_hosts: [console.example.com]}")
	for _, host := range []string{"localhost", "127.0.0.1:4042", "console.example.com", "Console.example.com:443"} {
		status, _ := r.get("/", "Host", host)
		require.Equal(t, http.StatusOK, status, host)
	}
	for _, path := range []string{"/", "/health", "/static/console.css", "/units/x/trends.json"} {
		status, body := r.get(path, "Host", "evil.example", "Origin", "http://evil.example", "Sec-Fetch-Site", "same-origin")
		require.Equal(t, http.StatusForbidden, status)
		require.Contains(t, body, `Host is "evil.example" and must be localhost, a loopback address, or one of allowed_hosts`)
	}
	require.EqualValues(t, 4, r.metric("otelcol_console.refused", "reason")["host"])
}

func TestOnAnAddressOfTheNetworkTheHostIsCheckedToo(t *testing.T) {
	r := newRig(t, "{allowed_hosts: [console.example.com]}")
	r.cfg.HTTP.NetAddr.Endpoint = "0.0.0.0:0"
	require.NoError(t, r.Start(t.Context(), r.host))
	_, port, err := net.SplitHostPort(r.server.Addr().String())
	require.NoError(t, err)
	r.base = "http://127.0.0.1:" + port
	name, err := os.Hostname()
	require.NoError(t, err)
	for _, host := range []string{"console.example.com", "10.1.2.3:4042", name} {
		status, _ := r.get("/", "Host", host)
		require.Equal(t, http.StatusOK, status, host)
	}
	status, _ := r.get("/", "Host", "evil.example")
	require.Equal(t, http.StatusForbidden, status)
	require.Len(t, r.logs.FilterMessage("console at http://"+name+":"+port).All(), 1)
}

func TestAGateIsOpenedByHand(t *testing.T) {
	var asked []url.Values
	status := http.StatusOK
	trigger := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if req.URL.Path != "/v1/trigger" || req.Method != http.MethodPost || req.ParseForm() != nil {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		asked = append(asked, req.PostForm)
		w.WriteHeader(status)
		if status != http.StatusOK {
			_, _ = io.WriteString(w, `{"error": "over budget: max_concurrent_units"}`)
			return
		}
		_, _ = io.WriteString(w, `{"trigger_id": "0badcafe", "unit": "4f1c0c6b8a2e", "until": "2026-01-02T03:04:05Z"}`)
	}))
	defer trigger.Close()
	r := start(t, "{manual: {endpoint: '"+trigger.URL+"'}}")
	require.NoError(t, r.ConsumeLogs(t.Context(), opened("4f1c0c6b8a2e")))
	units := r.store.Units()
	require.Len(t, units, 1)
	path := "/units/" + string(units[0].ID)
	form := url.Values{"token": {r.token(path)}}.Encode()

	got, body := r.send(http.MethodPost, path+"/profile", form, "Origin", r.base)
	require.Equal(t, http.StatusSeeOther, got, body)
	require.Equal(t, []url.Values{{"unit": {"4f1c0c6b8a2e"}}}, asked)

	status = http.StatusTooManyRequests
	got, body = r.send(http.MethodPost, path+"/profile", form)
	require.Equal(t, http.StatusBadGateway, got)
	require.Contains(t, body, "over budget: max_concurrent_units")

	for name, headers := range map[string][]string{
		"another website": {"Origin", "http://evil.example"}, "another port": {"Sec-Fetch-Site", "same-site"},
	} {
		got, _ = r.send(http.MethodPost, path+"/profile", form, headers...)
		require.Equal(t, http.StatusForbidden, got, name)
	}
	got, _ = r.send(http.MethodPost, path+"/profile", "token=x")
	require.Equal(t, http.StatusForbidden, got)
	got, _ = r.send(http.MethodPost, path+"/profile", strings.Repeat("a", 2<<20))
	require.Equal(t, http.StatusRequestEntityTooLarge, got)
	require.Len(t, asked, 2)
	refused := r.metric("otelcol_console.refused", "reason")
	require.EqualValues(t, 2, refused["origin"])
	require.EqualValues(t, 1, refused["token"])
}

func TestThePolicyFileIsCheckedByWhatReadsIt(t *testing.T) {
	path := filepath.Join(t.TempDir(), "policies.yaml")
	require.NoError(t, os.WriteFile(path, []byte("one"), 0o600))
	factory := hotunitsextension.NewFactory()
	ext, err := factory.Create(t.Context(), extensiontest.NewNopSettings(factory.Type()), factory.CreateDefaultConfig())
	require.NoError(t, err)
	hot := ext.(*hotunitsextension.HotUnits)
	r := newRig(t, fmt.Sprintf("{edit: true, policies_file: %q}", path))
	r.host[component.NewID(factory.Type())] = hot
	require.NoError(t, r.Start(t.Context(), r.host))
	r.base = "http://" + r.server.Addr().String()
	_, page := r.get("/policies")
	require.Contains(t, page, "no cpu_trigger of this collector reads the file")

	remove := hot.AddPolicyFile(hotunitsextension.PolicyFile{
		Reader: component.MustNewID("cpu_trigger"), Path: path, Version: func() string { return "" },
		Check: func(document []byte) error {
			if string(document) != "two\n" {
				return errors.New("line 1: it must be two")
			}
			return nil
		},
	})
	defer remove()
	form := url.Values{"token": {r.token("/policies")}, "version": {"7692c3ad3540"}, "do": {"save"}, "text": {"three"}}
	status, page := r.send(http.MethodPost, "/policies", form.Encode())
	require.Equal(t, http.StatusUnprocessableEntity, status)
	require.Contains(t, page, "line 1: it must be two")
	form.Set("text", "two\r\n")
	status, page = r.send(http.MethodPost, "/policies", form.Encode())
	require.Equal(t, http.StatusSeeOther, status, page)
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, "two\n", string(text))
	require.Len(t, r.logs.FilterMessage("policy file saved by the console").All(), 1)
}

// TestASlowClientIsCutOff covers clients that connect and send nothing, or
// never complete a header or a body.
func TestASlowClientIsCutOff(t *testing.T) {
	r := newRig(t, "{}")
	r.cfg.HTTP.ReadHeaderTimeout, r.cfg.HTTP.ReadTimeout = 50*time.Millisecond, 100*time.Millisecond
	require.NoError(t, r.Start(t.Context(), r.host))
	for name, request := range map[string]string{
		"silent":         "",
		"half a header":  "GET / HTTP/1.1\r\nHost: localhost\r\n",
		"half a body":    "POST /policies HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-www-form-urlencoded\r\nContent-Length: 100\r\n\r\ntoken=",
		"a large header": "GET / HTTP/1.1\r\nHost: localhost\r\nX: " + strings.Repeat("a", 100<<10) + "\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			conn, err := net.Dial("tcp", r.server.Addr().String())
			require.NoError(t, err)
			defer conn.Close()
			require.NoError(t, conn.SetDeadline(time.Now().Add(time.Minute)))
			_, _ = io.WriteString(conn, request) // the connection may be closed during the write
			answer, err := io.ReadAll(bufio.NewReader(conn))
			require.NotErrorIs(t, err, os.ErrDeadlineExceeded, "the server hangs up")
			require.NotContains(t, string(answer), "200 OK")
		})
	}
}

func TestComponentsThatAreNotWellAreShown(t *testing.T) {
	r := start(t, "{}")
	id := componentstatus.NewInstanceID(component.MustNewID("cpu_trigger"), component.KindProcessor)
	r.ComponentStatusChanged(id, componentstatus.NewRecoverableErrorEvent(errors.New("no control groups <here>")))
	_, page := r.get("/health")
	require.Contains(t, page, "processor cpu_trigger")
	require.Contains(t, page, "no control groups &lt;here&gt;")
	r.ComponentStatusChanged(id, componentstatus.NewEvent(componentstatus.StatusOK))
	_, page = r.get("/health")
	require.NotContains(t, page, "no control groups")
}

// TestEventsDoNotWaitForADiskThatIsLate checks that no event is lost if the disk is slow,
// and that later events wait for a shorter time.
func TestEventsDoNotWaitForADiskThatIsLate(t *testing.T) {
	r := start(t, "{}")
	late, cancel := context.WithCancel(t.Context())
	cancel()
	require.NoError(t, r.ConsumeLogs(late, opened("4f1c0c6b8a2e")))
	require.True(t, r.slow.Load())
	_, page := r.get("/")
	require.Contains(t, page, "/openings/5f0e9a4e6a3b1c22")
	require.Eventually(t, func() bool {
		require.NoError(t, r.ConsumeLogs(t.Context(), plog.NewLogs()))
		return !r.slow.Load()
	}, time.Minute, time.Millisecond, "the disk answers")
}

// TestAShutdownEndsWithItsContext checks that Shutdown returns when its context ends, even
// if the disk does not respond.
func TestAShutdownEndsWithItsContext(t *testing.T) {
	r := start(t, "{}")
	r.mu.RLock() // a consumer waits for the disk
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorContains(t, r.Shutdown(ctx), "does not answer")
	r.mu.RUnlock()
	require.Eventually(t, func() bool {
		again, err := store.Open(store.Options{Directory: r.cfg.Directory})
		return err == nil && again.Close() == nil
	}, time.Minute, 10*time.Millisecond, "it is closed when the disk answers")
}

func TestAddresses(t *testing.T) {
	at := func(ip string) net.Addr { return &net.TCPAddr{IP: net.ParseIP(ip), Port: 4042} }
	for endpoint, tc := range map[string]struct {
		bound net.Addr
		want  string
	}{
		"localhost:0":    {at("127.0.0.1"), "http://localhost:4042"},
		"[::1]:4042":     {at("::1"), "http://[::1]:4042"},
		"10.1.2.3:4042":  {at("10.1.2.3"), "http://10.1.2.3:4042"},
		"console.x:4042": {at("10.1.2.3"), "http://console.x:4042"},
	} {
		cfg := confighttp.NewDefaultServerConfig()
		cfg.NetAddr.Endpoint = endpoint
		require.Equal(t, tc.want, address(cfg, tc.bound))
	}
}

// TestGatesOfThisHostAloneAreOpenedOnLoopback checks that a manual endpoint on a loopback
// address can open only the gates of units on this host. Units without a host name do not
// count as units of this host.
func TestGatesOfThisHostAloneAreOpenedOnLoopback(t *testing.T) {
	can := func(endpoint string) func(store.Unit) bool {
		cfg, err := load(t, "{manual: {endpoint: '"+endpoint+"'}}")
		require.NoError(t, err)
		return (&Console{cfg: cfg}).canOpen()
	}
	own, err := os.Hostname()
	require.NoError(t, err)
	local, remote := can("http://localhost:4041"), can("http://trigger.example:4041")
	for host, want := range map[string]bool{own: true, "": false, "elsewhere": false} {
		require.Equal(t, want, local(store.Unit{Host: host}), host)
		require.True(t, remote(store.Unit{Host: host}))
	}
}

// hostForStore sets the directory of the store. It returns the host
// that the generated test uses.
func hostForStore(t *testing.T, cfg component.Config) component.Host {
	cfg.(*Config).Directory = t.TempDir()
	return componenttest.NewNopHost()
}
