// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package httplisten

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/component/componentstatus"
	"go.opentelemetry.io/collector/config/confighttp"
	"go.uber.org/zap"

	"github.com/hotprofile/hotprofile/internal/cgroup"
	"github.com/hotprofile/hotprofile/internal/procfs"
	"github.com/hotprofile/hotprofile/internal/truncate"
)

// Config configures a Server.
type Config struct {
	// Key is the YAML key of the server's settings. Errors contain this key.
	Key  string
	HTTP confighttp.ServerConfig
	// Handler serves the requests that pass authentication and decompression.
	Handler http.Handler
	// WriteError writes the response to a request that does not reach Handler.
	WriteError func(w http.ResponseWriter, r *http.Request, why string, status int)
	// Wrap wraps confighttp's handlers, so that it receives a request before
	// authentication and decompression. Wrap may be nil.
	Wrap func(http.Handler) http.Handler
	// MaxConnections is the maximum number of concurrent connections. A client may have
	// at most as many connections as there are free places. When a limit is reached, idle
	// connections are closed in favour of new connections.
	MaxConnections int
	// Cgroups are the host's cgroups. If Cgroups is set, the processes of a container or
	// service are one client on a Unix socket. Otherwise, each process is a client.
	Cgroups *cgroup.Tree
	// MaxHeaderBytes is the maximum size of a request's header, in bytes.
	MaxHeaderBytes int
	// ShutdownTimeout is the time for which Shutdown waits for running requests before
	// it closes their connections. If it is 0, Shutdown waits until its context ends.
	ShutdownTimeout time.Duration
	// AllowedHosts lists names that the header Host may contain, in addition to localhost
	// and the host of the endpoint. If it is nil, a server that other hosts can reach
	// accepts any name. In errors, AllowedHosts is called allowed_hosts.
	AllowedHosts []string
	// SocketMode is the mode of a Unix socket's file.
	SocketMode fs.FileMode
	// About is called with each accepted connection, unless About is nil. If key is not
	// nil, the contexts of the connection's requests contain the value under this key.
	About func(net.Conn) (key, value any)
}

// Server is an HTTP server. New creates a Server.
type Server struct {
	cfg    Config
	server *http.Server // nil until started, like addr
	addr   net.Addr
	next   http.Handler  // Wrap, confighttp's handlers and Handler
	served chan struct{} // closed when the server accepts no more connections
	log    *zap.Logger

	hosts       *hosts // nil if any Host is allowed
	wrongHost   atomic.Uint64
	connections *connections
	limitLine   line
	hostLine    line

	mu       sync.Mutex
	stopping bool
	requests sync.WaitGroup // no request is added after stopping is set
	shutdown sync.Once
}

// New returns a server that does not listen yet.
func New(cfg Config) *Server {
	s := &Server{cfg: cfg}
	cgroups := cfg.Cgroups
	if cgroups != nil && procfs.At(cgroups.Root()).OwnPID() != os.Getpid() {
		cgroups = nil // pids in this procfs and pids of peers are from different namespaces
	}
	s.connections = newConnections(cfg.MaxConnections, cgroups, s.logLimit)
	s.connections.about = cfg.About
	return s
}

// Addr returns the address of the started server's listener.
func (s *Server) Addr() net.Addr { return s.addr }

// Start listens and serves. A failure after Start is logged and reported as the
// component's status.
func (s *Server) Start(ctx context.Context, host component.Host, set component.TelemetrySettings) error {
	s.log = set.Logger
	server, err := s.newHTTPServer(ctx, host, set)
	if err != nil {
		return fmt.Errorf("%s: set up the HTTP server of %s: %w", s.cfg.Key, s.cfg.HTTP.NetAddr.Endpoint, err)
	}
	listener, err := s.listen(ctx)
	if err != nil {
		return fmt.Errorf("%s.endpoint: listen at %s: %w", s.cfg.Key, s.cfg.HTTP.NetAddr.Endpoint, err)
	}
	server.ConnState = s.connections.setState
	s.hosts = newHosts(s.cfg.HTTP.NetAddr.Endpoint, listener.Addr(), s.cfg.AllowedHosts)
	s.server, s.addr, s.served = server, listener.Addr(), make(chan struct{})
	go func() {
		defer close(s.served)
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			err = fmt.Errorf("%s: accept no more connections at %s: %w", s.cfg.Key, s.addr, err)
			set.Logger.Error("HTTP server failed", zap.Error(err))
			componentstatus.ReportStatus(host, componentstatus.NewRecoverableErrorEvent(err))
		}
	}()
	return nil
}

func (s *Server) newHTTPServer(ctx context.Context, host component.Host, set component.TelemetrySettings) (*http.Server, error) {
	cfg := s.cfg.HTTP // ToServer changes it
	server, err := cfg.ToServer(ctx, host.GetExtensions(), set, s.cfg.Handler, confighttp.WithErrorHandler(s.cfg.WriteError))
	if err != nil {
		return nil, err
	}
	s.next = server.Handler
	if s.cfg.Wrap != nil {
		s.next = s.cfg.Wrap(s.next)
	}
	server.Handler = s
	server.MaxHeaderBytes = s.cfg.MaxHeaderBytes
	server.ConnContext = connContext
	return server, nil
}

// ServeHTTP serves one request of a started server. After Shutdown has begun, it responds
// with the status 503.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !s.begin() {
		s.cfg.WriteError(w, r, "the collector is shutting down", http.StatusServiceUnavailable)
		return
	}
	defer s.requests.Done()
	if !s.hosts.allow(r) {
		s.wrongHost.Add(1)
		s.logHost(r)
		s.cfg.WriteError(w, r, fmt.Sprintf("Host is %q and must be %s: a website whose name was pointed to this host could send such a request", quotable(r.Host), s.hosts.rule()), http.StatusForbidden)
		return
	}
	s.next.ServeHTTP(w, r)
}

// Stats returns the numbers of connections and requests that were affected by the
// server's limits. Stats may be called before Start.
func (s *Server) Stats() Stats {
	s.connections.mu.Lock()
	defer s.connections.mu.Unlock()
	stats := s.connections.stats
	stats.WrongHost = s.wrongHost.Load()
	return stats
}

func quotable(host string) string { return truncate.Cut(host, 256) }

// line is a log message that is logged at most once per minute.
type line struct{ last atomic.Int64 }

func (l *line) due(now time.Time) bool {
	last, at := l.last.Load(), now.UnixNano()
	return (last == 0 || at-last >= int64(time.Minute)) && l.last.CompareAndSwap(last, at)
}

func (s *Server) logHost(r *http.Request) {
	if s.hostLine.due(time.Now()) {
		s.log.Warn("request for another host refused", zap.String("server", s.cfg.Key), zap.String("host", quotable(r.Host)),
			zap.Uint64("refused", s.wrongHost.Load()))
	}
}

// logLimit logs that a client's connection was closed because of a limit.
func (s *Server) logLimit(p client, gaveWay bool) {
	if !s.limitLine.due(time.Now()) {
		return
	}
	stats := s.Stats()
	s.log.Warn("too many connections", zap.String("server", s.cfg.Key), zap.Stringer("peer", p), zap.Bool("was_idle", gaveWay),
		zap.Int("limit", s.cfg.MaxConnections), zap.Int("limit_of_peer", ofClient(s.cfg.MaxConnections)),
		zap.Uint64("idle_closed", stats.GaveWay), zap.Uint64("refused", stats.Refused))
}

// begin counts a request as running. It reports whether the request may be served.
func (s *Server) begin() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopping {
		return false
	}
	s.requests.Add(1)
	return true
}

// Shutdown refuses new requests and waits for running requests. At the deadline, it
// closes the connections of running requests, waits until the handlers have returned, and
// returns an error. A later call of Shutdown has no effect.
func (s *Server) Shutdown(ctx context.Context) (err error) {
	s.shutdown.Do(func() { err = s.stop(ctx) })
	return err
}

func (s *Server) stop(ctx context.Context) error {
	s.mu.Lock()
	s.stopping = true
	s.mu.Unlock()
	if s.server == nil {
		return nil
	}
	if s.cfg.ShutdownTimeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, s.cfg.ShutdownTimeout)
		defer cancel()
	}
	err := s.server.Shutdown(ctx)
	if err != nil {
		err = fmt.Errorf("%s: wait for the last requests: %w", s.cfg.Key, errors.Join(err, s.server.Close()))
	}
	<-s.served
	s.requests.Wait()
	return err
}
