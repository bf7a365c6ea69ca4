// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package manual

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/config/configauth"
	"go.opentelemetry.io/collector/config/confighttp"
	"go.opentelemetry.io/collector/config/confignet"
	"go.opentelemetry.io/collector/config/configopaque"
	"go.opentelemetry.io/collector/config/configoptional"
	"go.opentelemetry.io/collector/config/configtls"
	"go.uber.org/zap"

	"github.com/hotprofile/hotprofile/internal/identify"
	"github.com/hotprofile/hotprofile/internal/trigger"
	"github.com/hotprofile/hotprofile/internal/trigger/budget"
)

// fired is one call of the server that opens a gate.
type fired struct {
	unit     string
	duration time.Duration
}

// serverRig is a real server with fake gates.
type serverRig struct {
	*Server
	fired  []fired
	closed []string
	refuse error
	client *http.Client
	base   string // scheme and host
}

var handUntil = time.Date(2026, 5, 28, 20, 27, 12, 0, time.FixedZone("CEST", 2*60*60))

func newServerRig(t *testing.T, change func(*confighttp.ServerConfig)) *serverRig {
	t.Helper()
	cfg := DefaultConfig()
	cfg.HTTP.NetAddr.Endpoint = "127.0.0.1:0"
	if change != nil {
		change(&cfg.HTTP)
	}
	require.NoError(t, Validate(&cfg))
	r := &serverRig{base: "http://localhost"}
	r.Server = NewServer(cfg.HTTP, 30*time.Second, func() Gates { return handGates{r} }, r.alertsOf(t), nil, zap.NewNop())
	r.client = &http.Client{Timeout: 20 * time.Second, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, r.server.Addr().Network(), r.server.Addr().String())
		},
	}}
	return r
}

// handGates records the gates that are opened and closed.
type handGates struct{ r *serverRig }

// Find accepts any name of a unit.
func (handGates) Find(n Named) ([]identify.Identity, string) {
	return []identify.Identity{{Name: n.Name}}, ""
}

func (g handGates) Open(unit identify.Identity, _ trigger.Alert, d time.Duration) (Opened, bool, error) {
	g.r.fired = append(g.r.fired, fired{unit.Name, d})
	return Opened{TriggerID: "0badcafe", Unit: unit.Name, Until: handUntil}, true, g.r.refuse
}

func (g handGates) Close(unit, _ string) (Closed, error) {
	g.r.closed = append(g.r.closed, unit)
	return Closed{TriggerID: "0badcafe", Unit: unit, Closed: handUntil, StillOpen: []string{"cpu"}}, g.r.refuse
}

// alertsOf returns a handler of alerts for a host with one container.
func (r *serverRig) alertsOf(t *testing.T) *Alerts {
	a := newAlertRig(t, AlertsConfig{}, budget.Limits{})
	a.units["4f1c0c6b8a2e"] = []string{"4f1c0c6b8a2e"}
	return a.Alerts
}

func (r *serverRig) run(t *testing.T, host component.Host) *serverRig {
	t.Helper()
	require.NoError(t, r.Start(t.Context(), host, componenttest.NewNopTelemetrySettings()))
	t.Cleanup(func() { require.NoError(t, r.Shutdown(context.Background())) })
	return r
}

// do sends a request and returns the answer. Every answer must be JSON.
func (r *serverRig) do(t *testing.T, method, target, body string, header ...string) (status int, head http.Header, answer map[string]any) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, r.base+target, strings.NewReader(body))
	require.NoError(t, err)
	if body != "" {
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := r.client.Do(req)
	require.NoError(t, err)
	defer resp.Body.Close()
	all, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.Equal(t, "application/json", resp.Header.Get("Content-Type"), "%s", all)
	require.NoError(t, json.Unmarshal(all, &answer), "%s", all)
	return resp.StatusCode, resp.Header, answer
}

func overUnix(path string) func(*confighttp.ServerConfig) {
	return func(cfg *confighttp.ServerConfig) {
		cfg.NetAddr.Transport, cfg.NetAddr.Endpoint = confignet.TransportTypeUnix, path
	}
}

// socketPath returns a short path, because the path of a socket has at most 108 bytes.
func socketPath(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "hot")
	require.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	return filepath.Join(dir, "trigger.sock")
}

func TestAGateIsOpenedByHandOverTCPAndOverAUnixSocket(t *testing.T) {
	for name, change := range map[string]func(*confighttp.ServerConfig){
		"tcp": nil, "unix": overUnix(socketPath(t)),
	} {
		t.Run(name, func(t *testing.T) {
			r := newServerRig(t, change).run(t, componenttest.NewNopHost())
			for _, tc := range []struct {
				name, target, body string
				want               fired
			}{
				{"query", "/v1/trigger?unit=4f1c0c6b8a2e&duration=1m30s", "", fired{"4f1c0c6b8a2e", 90 * time.Second}},
				{"form", "/v1/trigger", "unit=4711&duration=2s", fired{"4711", 2 * time.Second}},
				{"some of both", "/v1/trigger?duration=24h", "unit=/system.slice/checkout.service", fired{"/system.slice/checkout.service", 24 * time.Hour}},
				{"the first policy's duration", "/v1/trigger?unit=%2Fa%20b", "", fired{"/a b", 30 * time.Second}},
			} {
				t.Run(tc.name, func(t *testing.T) {
					r.fired = nil
					status, _, answer := r.do(t, http.MethodPost, tc.target, tc.body)
					require.Equal(t, http.StatusOK, status, answer)
					require.Equal(t, []fired{tc.want}, r.fired)
					require.Equal(t, map[string]any{"trigger_id": "0badcafe", "unit": tc.want.unit, "until": "2026-05-28T18:27:12Z"}, answer)
				})
			}
		})
	}
}

func TestWhatIsAskedWronglyOpensNothingAndIsAnsweredWithWhatIsWrong(t *testing.T) {
	r := newServerRig(t, nil).run(t, componenttest.NewNopHost())
	for _, tc := range []struct {
		name, method, target, body string
		header                     []string
		status                     int
		says                       string
	}{
		{name: "no unit", status: 400, target: "/v1/trigger", says: "unit: must be set"},
		{name: "an empty unit", status: 400, target: "/v1/trigger?unit=", says: "unit: must be set"},
		{name: "a long unit", status: 400, target: "/v1/trigger?unit=" + strings.Repeat("a", 513), says: "unit: has 513 bytes, must have at most 512"},
		{name: "a unit with a line break", status: 400, target: "/v1/trigger?unit=a%0ab", says: `unit: "a\nb" is not`},
		{name: "a unit that is no text", status: 400, target: "/v1/trigger?unit=%ff", says: `unit: "\xff" is not`},
		{name: "two units", status: 400, target: "/v1/trigger?unit=a", body: "unit=b", says: "unit: given 2 times"},
		{name: "no duration", status: 400, target: "/v1/trigger?unit=a&duration=", says: `duration: "" is not a duration`},
		{name: "a number without its unit", status: 400, target: "/v1/trigger?unit=a&duration=30", says: `duration: "30" is not a duration such as 30s`},
		{name: "a duration too short", status: 400, target: "/v1/trigger?unit=a&duration=999ms", says: "duration: 999ms is not between 1s and 24h0m0s"},
		{name: "a duration too long", status: 400, target: "/v1/trigger?unit=a&duration=24h1ns", says: "is not between 1s and 24h0m0s"},
		{name: "a negative duration", status: 400, target: "/v1/trigger?unit=a&duration=-30s", says: "is not between"},
		{name: "an unknown parameter", status: 400, target: "/v1/trigger?unit=a&durations=30s", says: `unknown parameter "durations": there are unit and duration`},
		{name: "a bad query", status: 400, target: "/v1/trigger?unit=%zz", says: "read the parameters"},
		{name: "JSON", status: 400, target: "/v1/trigger", body: `{"unit":"a"}`, header: []string{"Content-Type", "application/json"}, says: `the body is "application/json"`},
		{name: "JSON beside a good query", status: 400, target: "/v1/trigger?unit=a", body: `{}`, header: []string{"Content-Type", "application/json"}, says: `the body is "application/json"`},
		{name: "a body of no kind", status: 400, target: "/v1/trigger?unit=a", body: `duration=5m`, header: []string{"Content-Type", ""}, says: `the body is ""`},
		{name: "a large body", status: 413, target: "/v1/trigger", body: "unit=" + strings.Repeat("a", 5000), says: "the body is larger than 4096 bytes"},
		{name: "a compressed body", status: 400, target: "/v1/trigger?unit=a", body: "x", header: []string{"Content-Encoding", "gzip"}, says: "unsupported Content-Encoding: gzip"},
		{name: "GET", status: 405, method: http.MethodGet, target: "/v1/trigger?unit=a", says: "use POST /v1/trigger to open a gate, DELETE to close it"},
		{name: "PUT", status: 405, method: http.MethodPut, target: "/v1/trigger?unit=a", says: "use POST /v1/trigger to open a gate, DELETE to close it"},
		{name: "another path", status: 404, target: "/", says: "there is nothing but POST and DELETE /v1/trigger"},
		{name: "a path below", status: 404, target: "/v1/trigger/?unit=a", says: "there is nothing but POST and DELETE /v1/trigger"},
		{name: "a website", status: 403, target: "/v1/trigger?unit=a", header: []string{"Origin", "https://evil.example", "Sec-Fetch-Site", "cross-site"}, says: "a website of another origin may neither open nor close gates"},
		{name: "a website that closes", status: 403, method: http.MethodDelete, target: "/v1/trigger?unit=a", header: []string{"Origin", "https://evil.example"}, says: "a website of another origin may neither open nor close gates"},
		{name: "closing without a unit", status: 400, method: http.MethodDelete, target: "/v1/trigger", says: "unit: must be set"},
		{name: "closing for a time", status: 400, method: http.MethodDelete, target: "/v1/trigger?unit=a&duration=30s", says: `unknown parameter "duration": there is only unit`},
		{name: "a website in an old browser", status: 403, target: "/v1/trigger?unit=a", header: []string{"Origin", "https://evil.example"}, says: "a website of another origin may neither open nor close gates"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r.fired = nil
			if tc.method == "" {
				tc.method = http.MethodPost
			}
			status, head, answer := r.do(t, tc.method, tc.target, tc.body, tc.header...)
			require.Equal(t, tc.status, status, answer)
			require.Contains(t, answer["error"], tc.says)
			require.Empty(t, r.fired)
			require.Empty(t, r.closed)
			if tc.status == http.StatusMethodNotAllowed {
				require.Equal(t, "POST, DELETE", head.Get("Allow"))
			}
		})
	}
}

func TestWhyAGateIsNotOpenedIsAnswered(t *testing.T) {
	r := newServerRig(t, nil).run(t, componenttest.NewNopHost())
	for _, tc := range []struct {
		name   string
		err    error
		status int
		want   map[string]any
		retry  string
	}{
		{"no such unit", &NoSuchUnitError{"4711", "no process here has this pid"}, 404, map[string]any{"error": `no unit "4711": no process here has this pid`}, ""},
		{"over budget", fmt.Errorf("fire: %w", &budget.ExceededError{Budget: "max_triggers_per_hour"}), 429, map[string]any{"budget": "max_triggers_per_hour"}, "60"},
		{"shut down", ErrShutdown, 503, map[string]any{"error": ErrShutdown.Error()}, ""},
		{"a fault", errors.New("disk on fire"), 500, map[string]any{"error": "disk on fire"}, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r.refuse = tc.err
			status, head, answer := r.do(t, http.MethodPost, "/v1/trigger?unit=4711", "")
			require.Equal(t, tc.status, status)
			require.Equal(t, tc.retry, head.Get("Retry-After"))
			require.Contains(t, answer["error"], tc.err.Error())
			delete(tc.want, "error")
			delete(answer, "error")
			require.Equal(t, tc.want, answer)
		})
	}
}

func TestAGateIsClosedByHand(t *testing.T) {
	r := newServerRig(t, nil).run(t, componenttest.NewNopHost())
	status, _, answer := r.do(t, http.MethodDelete, "/v1/trigger?unit=4711", "")
	require.Equal(t, http.StatusOK, status, answer)
	require.Equal(t, map[string]any{"trigger_id": "0badcafe", "unit": "4711", "closed": "2026-05-28T18:27:12Z", "still_open": []any{"cpu"}}, answer)
	require.Equal(t, []string{"4711"}, r.closed)
	require.Empty(t, r.fired)

	for _, tc := range []struct {
		err    error
		status int
	}{
		{ErrNotOpen, http.StatusNotFound},
		{&NoSuchUnitError{"4711", "no process here has this pid"}, http.StatusNotFound},
		{ErrShutdown, http.StatusServiceUnavailable},
	} {
		r.refuse = tc.err
		status, _, answer = r.do(t, http.MethodDelete, "/v1/trigger?unit=4711", "")
		require.Equal(t, tc.status, status)
		require.Equal(t, map[string]any{"error": tc.err.Error()}, answer)
	}
}

// TestAWebsiteWhoseNameWasPointedHereOpensNothing covers DNS rebinding. Browsers then
// send the requests of a website to this server as same-origin requests. Their header
// Host contains the name of the website.
func TestAWebsiteWhoseNameWasPointedHereOpensNothing(t *testing.T) {
	r := newServerRig(t, nil).run(t, componenttest.NewNopHost())
	r.base = "http://evil.example"
	for _, method := range []string{http.MethodPost, http.MethodDelete} {
		status, _, answer := r.do(t, method, "/v1/trigger?unit=a", "", "Origin", "http://evil.example", "Sec-Fetch-Site", "same-origin")
		require.Equal(t, http.StatusForbidden, status, answer)
		require.Contains(t, answer["error"], `Host is "evil.example" and must be localhost or a loopback address`)
	}
	require.Empty(t, r.fired)
	require.Empty(t, r.closed)
	require.EqualValues(t, 2, r.Stats().WrongHost)
}

func TestAnOriginThatIsAllowedMayOpenGates(t *testing.T) {
	r := newServerRig(t, func(cfg *confighttp.ServerConfig) {
		cors := confighttp.NewDefaultCORSConfig()
		cors.AllowedOrigins = []string{"https://ops.example"}
		cfg.CORS = configoptional.Some(cors)
	}).run(t, componenttest.NewNopHost())
	status, head, _ := r.do(t, http.MethodPost, "/v1/trigger?unit=a", "", "Origin", "https://ops.example", "Sec-Fetch-Site", "cross-site")
	require.Equal(t, http.StatusOK, status)
	require.Equal(t, "https://ops.example", head.Get("Access-Control-Allow-Origin"))
	status, _, _ = r.do(t, http.MethodPost, "/v1/trigger?unit=a", "", "Origin", "https://evil.example", "Sec-Fetch-Site", "cross-site")
	require.Equal(t, http.StatusForbidden, status)
}

// password is an authenticator.
type password struct{ component.Component }

func (password) Authenticate(ctx context.Context, headers map[string][]string) (context.Context, error) {
	if v := headers["Authorization"]; len(v) == 1 && v[0] == "Bearer open sesame" {
		return ctx, nil
	}
	return ctx, errors.New("who are you?")
}

type hostWith map[component.ID]component.Component

func (h hostWith) GetExtensions() map[component.ID]component.Component { return h }

func TestWhoMayNotIsAnswered401(t *testing.T) {
	id := component.MustNewID("password")
	r := newServerRig(t, func(cfg *confighttp.ServerConfig) {
		cfg.Auth = configoptional.Some(confighttp.AuthConfig{Config: configauth.Config{AuthenticatorID: id}})
	})
	require.ErrorContains(t, r.Start(t.Context(), hostWith{}, componenttest.NewNopTelemetrySettings()), "password")
	r.run(t, hostWith{id: password{}})
	status, _, answer := r.do(t, http.MethodPost, "/v1/trigger?unit=a", "")
	require.Equal(t, http.StatusUnauthorized, status)
	require.Equal(t, map[string]any{"error": "who are you?"}, answer)
	require.Empty(t, r.fired)
	alerts := message("firing", "f1", alertsStart, labels{"container_id": "4f1c0c6b8a2e"})
	status, _, _ = r.do(t, http.MethodPost, "/v1/alerts", alerts)
	require.Equal(t, http.StatusUnauthorized, status)
	_, _, answer = r.do(t, http.MethodPost, "/v1/alerts", alerts, "Authorization", "Bearer open sesame")
	require.Contains(t, fmt.Sprint(answer), "outcome:opened", "for the first time")
	status, _, _ = r.do(t, http.MethodPost, "/v1/trigger?unit=a", "", "Authorization", "Bearer open sesame")
	require.Equal(t, http.StatusOK, status)
}

func TestGatesAreOpenedByHandOverTLS(t *testing.T) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: []string{"localhost"}, NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	require.NoError(t, err)
	private, err := x509.MarshalPKCS8PrivateKey(key)
	require.NoError(t, err)
	certificate := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(certificate)
	for name, tc := range map[string]struct {
		change func(*confighttp.ServerConfig)
		two    bool
	}{
		"tcp, HTTP/1.1": {}, "tcp, HTTP/2": {two: true}, "unix, HTTP/2": {overUnix(socketPath(t)), true},
	} {
		t.Run(name, func(t *testing.T) {
			r := newServerRig(t, func(cfg *confighttp.ServerConfig) {
				cfg.TLS = configoptional.Some(configtls.ServerConfig{Config: configtls.Config{
					CertPem: configopaque.String(certificate),
					KeyPem:  configopaque.String(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private})),
				}})
				if tc.change != nil {
					tc.change(cfg)
				}
			}).run(t, componenttest.NewNopHost())
			transport := r.client.Transport.(*http.Transport)
			// Without ForceAttemptHTTP2, a client with its own dial function
			// uses HTTP/1.1.
			transport.TLSClientConfig, transport.ForceAttemptHTTP2 = &tls.Config{RootCAs: roots}, tc.two
			r.base = "https://localhost"
			status, _, _ := r.do(t, http.MethodPost, "/v1/trigger?unit=a", "")
			require.Equal(t, http.StatusOK, status)
		})
	}
}

func TestTheSocketIsForItsUserAloneAndGoneAfterShutdown(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("no file modes")
	}
	path := socketPath(t)
	r := newServerRig(t, overUnix(path)).run(t, componenttest.NewNopHost())
	info, err := os.Lstat(path)
	require.NoError(t, err)
	require.Equal(t, os.ModeSocket|0o600, info.Mode())
	require.NoError(t, r.Shutdown(t.Context()))
	require.NoFileExists(t, path)
}

func TestASocketOfAnEarlierRunIsReplaced(t *testing.T) {
	path := socketPath(t)
	l, err := net.Listen("unix", path)
	require.NoError(t, err)
	l.(*net.UnixListener).SetUnlinkOnClose(false) // as if the process had been killed
	require.NoError(t, l.Close())
	_, err = os.Lstat(path)
	require.NoError(t, err, "the socket is still there")

	r := newServerRig(t, overUnix(path)).run(t, componenttest.NewNopHost())
	status, _, _ := r.do(t, http.MethodPost, "/v1/trigger?unit=a", "")
	require.Equal(t, http.StatusOK, status)
}

func TestWhatIsAtTheSocketsPathAndNotOursIsLeftAlone(t *testing.T) {
	for name, tc := range map[string]struct {
		make func(t *testing.T, path string)
		says string
	}{
		"a file": {func(t *testing.T, path string) { require.NoError(t, os.WriteFile(path, []byte("mine"), 0o600)) }, "is not a socket: remove it or choose another path"},
		"a link to a socket": {func(t *testing.T, path string) {
			l, err := net.Listen("unix", path+"2")
			require.NoError(t, err)
			t.Cleanup(func() { l.Close() })
			require.NoError(t, os.Symlink(path+"2", path))
		}, "is not a socket: remove it or choose another path"},
		"a socket in use": {func(t *testing.T, path string) {
			l, err := net.Listen("unix", path)
			require.NoError(t, err)
			t.Cleanup(func() { l.Close() })
		}, "is in use by another process: stop it or choose another path"},
		"a missing folder": {func(t *testing.T, path string) { require.NoError(t, os.Remove(filepath.Dir(path))) }, "no such file or directory"},
	} {
		t.Run(name, func(t *testing.T) {
			path := socketPath(t)
			tc.make(t, path)
			before, _ := os.Lstat(path)
			err := newServerRig(t, overUnix(path)).Start(t.Context(), componenttest.NewNopHost(), componenttest.NewNopTelemetrySettings())
			require.ErrorContains(t, err, "manual.endpoint: listen at "+path)
			require.ErrorContains(t, err, tc.says)
			after, _ := os.Lstat(path)
			require.True(t, before == nil && after == nil || os.SameFile(before, after))
		})
	}
}

func TestAPortInUseIsAnError(t *testing.T) {
	r := newServerRig(t, nil).run(t, componenttest.NewNopHost())
	second := newServerRig(t, func(cfg *confighttp.ServerConfig) { cfg.NetAddr.Endpoint = r.server.Addr().String() })
	require.ErrorContains(t, second.Start(t.Context(), componenttest.NewNopHost(), componenttest.NewNopTelemetrySettings()), "manual.endpoint: listen at 127.0.0.1:")
	require.NoError(t, second.Shutdown(t.Context()))
}

func TestShutdownWaitsForTheRequestThatIsAnsweredAndRefusesTheNext(t *testing.T) {
	r := newServerRig(t, nil)
	entered, proceed := make(chan struct{}), make(chan struct{})
	r.gates = func() Gates {
		close(entered)
		<-proceed
		return handGates{r}
	}
	r.run(t, componenttest.NewNopHost())
	answered := make(chan int, 1)
	go func() {
		status, _, _ := r.do(t, http.MethodPost, "/v1/trigger?unit=a", "")
		answered <- status
	}()
	<-entered
	down := make(chan error, 1)
	go func() { down <- r.Shutdown(context.Background()) }()
	require.Eventually(t, func() bool {
		early := httptest.NewRecorder()
		r.server.ServeHTTP(early, httptest.NewRequest(http.MethodGet, "/v1/trigger?unit=a", nil))
		return early.Code == http.StatusServiceUnavailable
	}, time.Minute, time.Millisecond)
	select {
	case <-down:
		t.Fatal("did not wait")
	default:
	}
	late := httptest.NewRecorder()
	r.server.ServeHTTP(late, httptest.NewRequest(http.MethodPost, "/v1/trigger?unit=a", nil))
	require.Equal(t, http.StatusServiceUnavailable, late.Code)
	close(proceed)
	require.Equal(t, http.StatusOK, <-answered)
	require.NoError(t, <-down)
	require.NoError(t, r.Shutdown(t.Context()), "again")
	require.Len(t, r.fired, 1)
	require.NoError(t, newServerRig(t, nil).Shutdown(t.Context()), "without start")
}

// TestTheServerIsBounded checks that the server closes a connection if the client sends
// no complete header, or a header that is too large.
func TestTheServerIsBounded(t *testing.T) {
	r := newServerRig(t, func(cfg *confighttp.ServerConfig) { cfg.ReadHeaderTimeout = 50 * time.Millisecond }).run(t, componenttest.NewNopHost())
	defaults := DefaultConfig().HTTP
	for name, d := range map[string]time.Duration{
		"read_header_timeout": defaults.ReadHeaderTimeout, "read_timeout": defaults.ReadTimeout,
		"write_timeout": defaults.WriteTimeout, "idle_timeout": defaults.Keepalive.Get().IdleTimeout,
	} {
		require.Positive(t, d, name)
	}
	for name, request := range map[string]string{
		"silent":         "",
		"half a header":  "POST /v1/trigger?unit=a HTTP/1.1\r\nHost: localhost\r\n",
		"a large header": "POST /v1/trigger?unit=a HTTP/1.1\r\nHost: localhost\r\nX: " + strings.Repeat("a", 100<<10) + "\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			conn, err := net.Dial("tcp", r.server.Addr().String())
			require.NoError(t, err)
			defer conn.Close()
			require.NoError(t, conn.SetDeadline(time.Now().Add(time.Minute)))
			_, _ = io.WriteString(conn, request) // the server may close the connection during the write
			answer, err := io.ReadAll(conn)
			require.NotErrorIs(t, err, os.ErrDeadlineExceeded, "the server hangs up")
			require.NotContains(t, string(answer), "200")
			require.Empty(t, r.fired)
		})
	}
}

func TestTheServerOfManualIsOffWithoutAnEndpoint(t *testing.T) {
	for _, tc := range []struct {
		name   string
		change func(*confighttp.ServerConfig)
		says   string
	}{
		{"nothing set", func(*confighttp.ServerConfig) {}, ""},
		{"tcp", func(c *confighttp.ServerConfig) { c.NetAddr.Endpoint = "localhost:4041" }, ""},
		{"unix", overUnix("/run/hotprofile.sock"), ""},
		{"a key without an endpoint", func(c *confighttp.ServerConfig) { c.ReadTimeout = time.Second }, "manual.endpoint: must be set"},
		{"no port", func(c *confighttp.ServerConfig) { c.NetAddr.Endpoint = "localhost" }, `manual.endpoint: "localhost" is not host:port`},
		{"port that is none", func(c *confighttp.ServerConfig) { c.NetAddr.Endpoint = "localhost:99999" }, `manual.endpoint: "localhost:99999" is not host:port`},
		{"udp", func(c *confighttp.ServerConfig) { c.NetAddr.Endpoint, c.NetAddr.Transport = "localhost:1", "udp" }, `manual.transport: "udp" is not one of tcp, tcp4, tcp6, unix`},
		{"every website", func(c *confighttp.ServerConfig) {
			c.NetAddr.Endpoint = "localhost:1"
			c.CORS = configoptional.Some(confighttp.CORSConfig{AllowedOrigins: []string{"*"}})
		}, `manual.cors.allowed_origins: "*" is not scheme://host[:port]`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			cfg := DefaultConfig()
			tc.change(&cfg.HTTP)
			err := Validate(&cfg)
			if tc.says == "" {
				require.NoError(t, err)
			} else {
				require.ErrorContains(t, err, tc.says)
			}
		})
	}
}

func FuzzManualRequest(f *testing.F) {
	const form = "application/x-www-form-urlencoded"
	f.Add("unit=4711&duration=30s", "", "")
	f.Add("", form, "unit=%2Fsystem.slice%2Fa.service&duration=1h")
	f.Add("unit=a", form, "unit=b")
	f.Add("unit=%ff&duration=1e9s", "", "")
	f.Add("unit=a;duration=1s", "multipart/form-data; boundary=x", "--x--")
	f.Add("unit=a&duration=9999999999h", form+"; charset=utf-8", "%")
	f.Fuzz(func(t *testing.T, query, kind, body string) {
		rig := &serverRig{}
		m := NewServer(DefaultConfig().HTTP, 30*time.Second, func() Gates { return handGates{rig} }, nil, nil, zap.NewNop())
		r := httptest.NewRequest(http.MethodPost, triggerPath, strings.NewReader(body))
		r.URL.RawQuery = query
		r.Header.Set("Content-Type", kind)
		w := httptest.NewRecorder()
		m.ServeHTTP(w, r)
		got := rig.fired
		require.True(t, json.Valid(w.Body.Bytes()), "%s", w.Body)
		switch w.Code {
		case http.StatusOK:
			require.Len(t, got, 1)
			require.NotEmpty(t, got[0].unit)
			require.LessOrEqual(t, len(got[0].unit), maxUnit)
			require.NotContains(t, got[0].unit, "\n")
			require.GreaterOrEqual(t, got[0].duration, minDuration)
			require.LessOrEqual(t, got[0].duration, maxDuration)
			var answer Opened
			require.NoError(t, json.Unmarshal(w.Body.Bytes(), &answer))
			require.Equal(t, got[0].unit, answer.Unit)
		case http.StatusBadRequest, http.StatusRequestEntityTooLarge:
			require.Empty(t, got)
			require.Less(t, w.Body.Len(), 16<<10, "the error names the fault and does not repeat the whole input")
		default:
			t.Fatalf("status %d: %s", w.Code, w.Body)
		}
	})
}
