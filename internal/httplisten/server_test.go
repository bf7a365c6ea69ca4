// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package httplisten

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/component/componentstatus"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/config/configauth"
	"go.opentelemetry.io/collector/config/confighttp"
	"go.opentelemetry.io/collector/config/confignet"
	"go.opentelemetry.io/collector/config/configoptional"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
)

const patience = time.Minute

// newConfig returns the settings of a server on a free TCP port.
func newConfig(handler http.HandlerFunc) Config {
	cfg := Config{
		Key:     "intake",
		HTTP:    confighttp.NewDefaultServerConfig(),
		Handler: handler,
		WriteError: func(w http.ResponseWriter, _ *http.Request, why string, status int) {
			w.WriteHeader(status)
			_, _ = io.WriteString(w, "refused: "+why)
		},
		MaxConnections: 10,
		MaxHeaderBytes: 4 << 10,
		SocketMode:     0o600,
	}
	cfg.HTTP.NetAddr.Endpoint = "127.0.0.1:0"
	return cfg
}

func overUnix(t *testing.T, cfg Config) Config {
	t.Helper()
	dir, err := os.MkdirTemp("", "hot") // a short path, because a socket's path has at most 108 bytes
	require.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	cfg.HTTP.NetAddr.Transport, cfg.HTTP.NetAddr.Endpoint = confignet.TransportTypeUnix, filepath.Join(dir, "s")
	return cfg
}

func start(t *testing.T, cfg Config) *Server {
	t.Helper()
	s := New(cfg)
	require.NoError(t, s.Start(t.Context(), componenttest.NewNopHost(), componenttest.NewNopTelemetrySettings()))
	t.Cleanup(func() { _ = s.Shutdown(context.Background()) })
	return s
}

func dial(t *testing.T, s *Server) net.Conn {
	t.Helper()
	c, err := net.Dial(s.Addr().Network(), s.Addr().String())
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	require.NoError(t, c.SetDeadline(time.Now().Add(patience)))
	return c
}

// get sends a request on a new connection and returns the whole response.
func get(t *testing.T, s *Server, header string) string {
	t.Helper()
	c := dial(t, s)
	_, _ = io.WriteString(c, "GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"+header+"\r\n")
	response, _ := io.ReadAll(c)
	return string(response)
}

func ok(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "served") }

func TestServesOverTCPAndUnixSocket(t *testing.T) {
	for name, cfg := range map[string]Config{"tcp": newConfig(ok), "unix": overUnix(t, newConfig(ok))} {
		t.Run(name, func(t *testing.T) {
			s := start(t, cfg)
			require.Contains(t, get(t, s, ""), "served")
			require.NoError(t, s.Shutdown(t.Context()))
			_, err := net.Dial(s.Addr().Network(), s.Addr().String())
			require.Error(t, err, "nothing listens after Shutdown")
		})
	}
}

// TestStatsMayBeReadWhileTheServerStarts searches for data races. Run it with the
// race detector.
func TestStatsMayBeReadWhileTheServerStarts(t *testing.T) {
	s := New(newConfig(ok))
	var reading sync.WaitGroup
	begun, done := make(chan struct{}), make(chan struct{})
	reading.Go(func() {
		s.Stats()
		close(begun)
		for {
			select {
			case <-done:
				return
			default:
				s.Stats()
			}
		}
	})
	<-begun
	require.NoError(t, s.Start(t.Context(), componenttest.NewNopHost(), componenttest.NewNopTelemetrySettings()))
	close(done)
	reading.Wait()
	require.NoError(t, s.Shutdown(t.Context()))
}

func TestSocketModeIsSet(t *testing.T) {
	s := start(t, overUnix(t, newConfig(ok)))
	info, err := os.Stat(s.Addr().String())
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode().Perm())
}

func TestStartErrorsNameTheKey(t *testing.T) {
	taken := start(t, newConfig(ok)).Addr().String()
	for name, tc := range map[string]struct {
		change func(*confighttp.ServerConfig)
		want   string
	}{
		"port in use": {func(c *confighttp.ServerConfig) { c.NetAddr.Endpoint = taken }, "intake.endpoint: listen at " + taken},
		"unknown authenticator": {func(c *confighttp.ServerConfig) {
			c.Auth = configoptional.Some(confighttp.AuthConfig{Config: configauth.Config{AuthenticatorID: component.MustNewID("password")}})
		}, "intake: set up the HTTP server of 127.0.0.1:0: "},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := newConfig(ok)
			tc.change(&cfg.HTTP)
			s := New(cfg)
			err := s.Start(t.Context(), componenttest.NewNopHost(), componenttest.NewNopTelemetrySettings())
			require.ErrorContains(t, err, tc.want)
			require.NoError(t, s.Shutdown(t.Context()), "Shutdown after a failed Start")
		})
	}
}

func TestWrapSeesRequestsBeforeDecompression(t *testing.T) {
	cfg := newConfig(ok)
	var seen int
	cfg.Wrap = func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			seen++
			next.ServeHTTP(w, r)
		})
	}
	s := start(t, cfg)
	require.Contains(t, get(t, s, "Content-Encoding: nonsense\r\n"), "refused: unsupported Content-Encoding: nonsense")
	require.NoError(t, s.Shutdown(t.Context()))
	require.Equal(t, 1, seen)
}

func TestLargeHeaderIsRefused(t *testing.T) {
	cfg := newConfig(func(http.ResponseWriter, *http.Request) { t.Error("served") })
	response := get(t, start(t, cfg), "X: "+strings.Repeat("a", 100<<10)+"\r\n")
	require.NotContains(t, response, "200")
}

func TestShutdownWaitsForRequestsUnderWayAndRefusesNewOnes(t *testing.T) {
	entered, proceed := make(chan struct{}), make(chan struct{})
	s := start(t, newConfig(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/" {
			close(entered)
			<-proceed
		}
		ok(w, r)
	}))
	response := make(chan string, 1)
	go func() { response <- get(t, s, "") }()
	<-entered
	down := make(chan error, 1)
	go func() { down <- s.Shutdown(context.Background()) }()
	require.Eventually(t, func() bool {
		late := httptest.NewRecorder()
		s.ServeHTTP(late, httptest.NewRequest(http.MethodGet, "/late", nil))
		return late.Code == http.StatusServiceUnavailable && late.Body.String() == "refused: the collector is shutting down"
	}, patience, time.Millisecond)
	select {
	case <-down:
		t.Fatal("Shutdown returned while a request was under way")
	default:
	}
	close(proceed)
	require.Contains(t, <-response, "served")
	require.NoError(t, <-down)
	require.NoError(t, s.Shutdown(t.Context()), "twice")
	require.NoError(t, New(newConfig(ok)).Shutdown(t.Context()), "without Start")
}

// TestShutdownClosesConnectionsAtItsDeadline checks that Shutdown aborts a request that
// stalls, and returns only after the handler of the request.
func TestShutdownClosesConnectionsAtItsDeadline(t *testing.T) {
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	for name, tc := range map[string]struct {
		ctx     context.Context
		timeout time.Duration
		want    error
	}{
		"timeout of the server": {context.Background(), time.Millisecond, context.DeadlineExceeded},
		"context":               {canceled, 0, context.Canceled},
	} {
		t.Run(name, func(t *testing.T) {
			entered, returned := make(chan struct{}), false
			cfg := newConfig(func(_ http.ResponseWriter, r *http.Request) {
				close(entered)
				<-r.Context().Done()
				returned = true
			})
			cfg.ShutdownTimeout = tc.timeout
			s := start(t, cfg)
			_, err := io.WriteString(dial(t, s), "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
			require.NoError(t, err)
			<-entered
			err = s.Shutdown(tc.ctx)
			require.ErrorIs(t, err, tc.want)
			require.ErrorContains(t, err, "intake: wait for the last requests")
			require.True(t, returned)
		})
	}
}

// reporter forwards the status that a component reports.
type reporter struct {
	component.Host
	events chan *componentstatus.Event
}

func (r reporter) Report(e *componentstatus.Event) { r.events <- e }

func TestFailureAfterStartIsLoggedAndReported(t *testing.T) {
	cfg := overUnix(t, newConfig(ok))
	core, logs := observer.New(zapcore.InfoLevel)
	set := componenttest.NewNopTelemetrySettings()
	set.Logger = zap.New(core)
	host := reporter{componenttest.NewNopHost(), make(chan *componentstatus.Event, 1)}
	s := New(cfg)
	require.NoError(t, s.Start(t.Context(), host, set))
	require.NoError(t, s.connections.Listener.Close())
	event := <-host.events
	require.Equal(t, componentstatus.StatusRecoverableError, event.Status())
	require.ErrorContains(t, event.Err(), "intake: accept no more connections at "+s.Addr().String()+": accept unix ")
	require.Equal(t, 1, logs.FilterMessage("HTTP server failed").Len())
	require.NoError(t, s.Shutdown(t.Context()))
}

func TestValidateAddr(t *testing.T) {
	for _, tc := range []struct{ name, transport, endpoint, want string }{
		{"host and port", "tcp", "localhost:4319", ""},
		{"name of a service", "tcp4", "localhost:http", ""},
		{"any IPv6 address", "tcp6", "[::]:0", ""},
		{"socket", "unix", "/run/x.sock", ""},
		{"no port", "tcp", "localhost", `intake.endpoint: "localhost" is not host:port, such as localhost:1`},
		{"port too large", "tcp", "localhost:65536", `intake.endpoint: "localhost:65536" is not host:port`},
		{"datagrams", "udp", "localhost:1", `intake.transport: "udp" is not one of tcp, tcp4, tcp6, unix`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			err := ValidateAddr("intake.", confignet.AddrConfig{Endpoint: tc.endpoint, Transport: confignet.TransportType(tc.transport)}, "localhost:1")
			if tc.want == "" {
				require.NoError(t, err)
			} else {
				require.ErrorContains(t, err, tc.want)
			}
		})
	}
}
