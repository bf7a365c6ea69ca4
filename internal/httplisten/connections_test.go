// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package httplisten

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/config/configopaque"
	"go.opentelemetry.io/collector/config/configoptional"
	"go.opentelemetry.io/collector/config/configtls"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
)

const (
	clientEnv = "HOTPROFILE_TEST_SOCKET"
	stallEnv  = "HOTPROFILE_TEST_STALL"
)

// TestClientProcess is not a test. Other tests start it as a separate process that
// acts as a client. It sends one request. If stallEnv is set to n, it starts n
// requests and keeps them open.
func TestClientProcess(t *testing.T) {
	path := os.Getenv(clientEnv)
	if path == "" {
		t.Skip("it is started by other tests")
	}
	if n, err := strconv.Atoi(os.Getenv(stallEnv)); err == nil {
		for range n {
			c, err := net.Dial("unix", path)
			require.NoError(t, err)
			defer c.Close()
			_, _ = io.WriteString(c, "GET /stall HTTP/1.1\r\nHost: localhost\r\n\r\n")
			_, _ = c.Read(make([]byte, 1)) // until the connection is served or refused
		}
		_, _ = io.Copy(io.Discard, os.Stdin) // until the test closes the input
		return
	}
	c, err := net.Dial("unix", path)
	require.NoError(t, err)
	_, _ = io.WriteString(c, "GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
	response, err := io.ReadAll(c)
	require.NoError(t, err)
	require.Contains(t, string(response), "served")
}

func getFromAnotherProcess(t *testing.T, s *Server) {
	t.Helper()
	if runtime.GOOS != "linux" {
		t.Skip("the kernel does not identify peers")
	}
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run", "^TestClientProcess$")
	cmd.Env = append(os.Environ(), clientEnv+"="+s.Addr().String())
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
}

// stalled opens a connection with a request that is not answered until release is closed.
func stalled(t *testing.T, s *Server) net.Conn {
	t.Helper()
	c := dial(t, s)
	_, err := io.WriteString(c, "GET /stall HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
	require.NoError(t, err)
	return c
}

// stalling returns a handler that blocks requests for /stall until release is closed. The
// returned channel receives one element for each such request.
func stalling(release <-chan struct{}) (http.HandlerFunc, <-chan struct{}) {
	entered := make(chan struct{}, 100)
	return func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/stall" {
			entered <- struct{}{}
			<-release
		}
		ok(w, r)
	}, entered
}

// TestIdleConnectionsGiveWay opens many more connections from one process than the limit
// allows. New connections of this process and of other processes must still be served.
func TestIdleConnectionsGiveWay(t *testing.T) {
	for name, change := range map[string]func(*Config){
		"tcp":  func(*Config) {},
		"unix": func(cfg *Config) { *cfg = overUnix(t, *cfg) },
		"tls": func(cfg *Config) {
			cfg.HTTP.TLS = configoptional.Some(serverTLS(t))
		},
	} {
		t.Run(name, func(t *testing.T) {
			const bound = 16
			cfg := newConfig(ok)
			cfg.MaxConnections = bound
			change(&cfg)
			core, logs := observer.New(zapcore.InfoLevel)
			set := componenttest.NewNopTelemetrySettings()
			set.Logger = zap.New(core)
			s := New(cfg)
			require.NoError(t, s.Start(t.Context(), componenttest.NewNopHost(), set))
			t.Cleanup(func() { require.NoError(t, s.Shutdown(context.Background())) })

			for range 10 * bound {
				dial(t, s)
			}
			switch name {
			case "tls":
				require.Contains(t, getOverTLS(t, s), "served")
			case "unix":
				getFromAnotherProcess(t, s)
				require.Contains(t, get(t, s, ""), "served")
			default:
				require.Contains(t, get(t, s, ""), "served")
			}
			stats := s.Stats()
			require.Positive(t, stats.GaveWay)
			require.Zero(t, stats.Refused)
			lines := logs.FilterMessage("too many connections").All()
			require.Len(t, lines, 1, "at most one a minute")
			require.Equal(t, true, lines[0].ContextMap()["was_idle"])
		})
	}
}

// TestAKeptConnectionGivesWay checks that a connection is idle again after its request.
// Such a connection can be closed in favour of a new connection.
func TestAKeptConnectionGivesWay(t *testing.T) {
	cfg := newConfig(ok)
	cfg.MaxConnections = 1
	s := start(t, cfg)
	kept := dial(t, s)
	_, err := io.WriteString(kept, "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
	require.NoError(t, err)
	_, err = io.ReadAtLeast(kept, make([]byte, 1<<10), len("HTTP/1.1 200 OK"))
	require.NoError(t, err)
	require.Contains(t, get(t, s, ""), "served")
	_, err = io.ReadAll(kept)
	require.NotErrorIs(t, err, os.ErrDeadlineExceeded, "the server closed it")
}

// TestAClientHasNoMoreThanItsPart covers a process that uses all connections that a client
// may have. The server must close the next connection of this process, and must still
// serve other processes.
func TestAClientHasNoMoreThanItsPart(t *testing.T) {
	release := make(chan struct{})
	handler, entered := stalling(release)
	cfg := overUnix(t, newConfig(handler))
	cfg.MaxConnections = 8
	s := start(t, cfg)
	var open []net.Conn
	for range ofClient(cfg.MaxConnections) {
		open = append(open, stalled(t, s))
		<-entered
	}
	if runtime.GOOS != "linux" {
		t.Skip("the kernel does not identify peers")
	}
	require.Empty(t, get(t, s, ""), "closed without an answer")
	getFromAnotherProcess(t, s)
	require.Equal(t, Stats{Refused: 1}, s.Stats())
	close(release)
	for _, c := range open {
		response, err := io.ReadAll(c)
		require.NoError(t, err)
		require.Contains(t, string(response), "served")
	}
	require.Contains(t, get(t, s, ""), "served")
}

// TestAUserHasNoMoreThanItsPart checks that the processes of a user share the user's
// connections. Otherwise, a fork would count as a new client. Connections of other
// users must still be admitted.
func TestAUserHasNoMoreThanItsPart(t *testing.T) {
	l := newConnections(8, nil, func(client, bool) {})
	of := func(user, process string) *conn {
		return &conn{of: l, client: client{user: user, name: process}}
	}
	for i := range ofUser(8) {
		admitted, _ := l.admit(of("user 1", strings.Repeat("i", i+1)))
		require.True(t, admitted)
	}
	admitted, victim := l.admit(of("user 1", "one more"))
	require.False(t, admitted)
	require.NotNil(t, victim, "one of the same user gives way")
	require.Equal(t, "user 1", victim.client.user)
	admitted, _ = l.admit(of("user 2", "another"))
	require.True(t, admitted)
}

// TestTheLargestClientGivesWay checks that the client with the most connections loses a
// connection when the limit on all connections is reached.
func TestTheLargestClientGivesWay(t *testing.T) {
	l := newConnections(8, nil, func(client, bool) {})
	for _, name := range []string{"a", "b", "b", "c", "d", "e", "f", "g"} {
		admitted, _ := l.admit(&conn{of: l, client: client{name: name}})
		require.True(t, admitted)
	}
	_, victim := l.admit(&conn{of: l, client: client{name: "h"}})
	require.Equal(t, "b", victim.client.name)
	_, victim = l.admit(&conn{of: l, client: client{name: "h"}})
	require.Nil(t, victim, "there is room")
}

// TestConnectionsBeyondTheBoundWait covers a server whose connections are all in use. The
// next connection waits and is then served.
func TestConnectionsBeyondTheBoundWait(t *testing.T) {
	release := make(chan struct{})
	handler, entered := stalling(release)
	cfg := newConfig(handler)
	cfg.MaxConnections = 2
	s := start(t, cfg)
	for range cfg.MaxConnections {
		stalled(t, s)
		<-entered
	}
	next := stalled(t, s)
	select {
	case <-entered:
		t.Fatal("more requests than connections")
	default:
	}
	close(release)
	response, err := io.ReadAll(next)
	require.NoError(t, err)
	require.Contains(t, string(response), "served")
	require.Equal(t, Stats{}, s.Stats())
}

// TestShutdownDoesNotWaitForThoseThatWait checks that a waiting connection does not
// delay Shutdown.
func TestShutdownDoesNotWaitForThoseThatWait(t *testing.T) {
	release := make(chan struct{})
	handler, entered := stalling(release)
	cfg := newConfig(handler)
	cfg.MaxConnections = 1
	s := start(t, cfg)
	stalled(t, s)
	<-entered
	waiting := dial(t, s)
	down := make(chan error, 1)
	go func() { down <- s.Shutdown(t.Context()) }()
	_, err := io.ReadAll(waiting)
	require.NotErrorIs(t, err, os.ErrDeadlineExceeded, "closed")
	close(release)
	require.NoError(t, <-down)
}

func TestClientOf(t *testing.T) {
	for addr, want := range map[string]client{
		"127.0.0.1:1":          {},
		"[::1]:1":              {},
		"10.0.0.7:1":           {name: "10.0.0.7"},
		"[::ffff:10.0.0.7]:1":  {name: "10.0.0.7"},
		"[2001:db8::1:2:3]:99": {name: "2001:db8::/64"},
		"nonsense":             {name: "unknown"},
	} {
		require.Equal(t, want, clientOf(remote{addr: addr}, nil), addr)
	}
}

// remote is a connection that has only an address.
type remote struct {
	net.Conn
	addr string
}

func (r remote) RemoteAddr() net.Addr { return r }
func (r remote) Network() string      { return "tcp" }
func (r remote) String() string       { return r.addr }

// serverTLS returns the settings of a server with a self-signed certificate.
func serverTLS(t *testing.T) configtls.ServerConfig {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: []string{"localhost"}, NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	require.NoError(t, err)
	private, err := x509.MarshalPKCS8PrivateKey(key)
	require.NoError(t, err)
	return configtls.ServerConfig{Config: configtls.Config{
		CertPem: configopaque.String(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})),
		KeyPem:  configopaque.String(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private})),
	}}
}

func getOverTLS(t *testing.T, s *Server) string {
	t.Helper()
	c := tls.Client(dial(t, s), &tls.Config{InsecureSkipVerify: true}) //nolint:gosec // of this test
	_, err := io.WriteString(c, "GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
	require.NoError(t, err)
	response, _ := io.ReadAll(c)
	return string(response)
}
