// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package cpuprofilerreceiver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/component/componentstatus"
	"go.opentelemetry.io/collector/config/confighttp"
	"go.uber.org/zap"

	"github.com/hotprofile/hotprofile/internal/httplisten"
	"github.com/hotprofile/hotprofile/internal/unixsocket"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/dotnet"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/processes"
)

// What the server of .NET services takes on at most. A service keeps one
// connection; those beyond the bound wait in the kernel's queue.
const (
	maxDotnetConnections = 1024
	maxDotnetHeader      = 32 << 10
	// dotnetShutdown is how long requests that are under way have at the end.
	dotnetShutdown = time.Second
)

// dotnetServer is the HTTP server in front of an intake.
type dotnetServer struct {
	cfg    *DotnetConfig
	intake *dotnet.Intake
	zstd   *dotnet.Zstd
	log    *zap.Logger

	server *http.Server
	addr   net.Addr
	served chan struct{} // closed when nothing is accepted any more

	mu      sync.Mutex
	stopped bool
	serving sync.WaitGroup // requests; none is added once stopped
}

// startDotnet listens and serves, or says why not.
func startDotnet(ctx context.Context, host component.Host, set component.TelemetrySettings, cfg *DotnetConfig,
	intake *dotnet.Intake, identify func(pid int) (processes.Identity, error),
) (*dotnetServer, error) {
	s := &dotnetServer{cfg: cfg, intake: intake, log: set.Logger, served: make(chan struct{})}
	server, err := s.newServer(ctx, host, set)
	if err != nil {
		return nil, fmt.Errorf("dotnet: make the server of %s: %w", cfg.ServerConfig.NetAddr.Endpoint, err)
	}
	listener, err := s.listen(ctx, identify)
	if err != nil {
		s.closeZstd()
		return nil, fmt.Errorf("dotnet.endpoint: listen at %s: %w", cfg.ServerConfig.NetAddr.Endpoint, err)
	}
	s.server, s.addr = server, listener.Addr()
	fields := []zap.Field{zap.String("transport", string(cfg.ServerConfig.NetAddr.Transport)), zap.String("endpoint", s.addr.String())}
	if cfg.guarded() {
		fields = append(fields, zap.Stringer("socket_mode", cfg.SocketMode))
	}
	s.log.Info("Buffers of .NET services are taken", fields...)
	go func() {
		defer close(s.served)
		err := server.Serve(listener)
		if !errors.Is(err, http.ErrServerClosed) {
			err = fmt.Errorf("buffers of .NET services are not taken any more: serve %s: %w", s.addr, err)
			s.log.Error("The server of .NET services has failed", zap.Error(err))
			componentstatus.ReportStatus(host, componentstatus.NewRecoverableErrorEvent(err))
		}
	}()
	return s, nil
}

func (s *dotnetServer) newServer(ctx context.Context, host component.Host, set component.TelemetrySettings) (*http.Server, error) {
	options := []confighttp.ToServerOption{confighttp.WithErrorHandler(dotnet.WriteProblem)}
	cfg := s.cfg.ServerConfig
	if slices.Contains(cfg.CompressionAlgorithms, "zstd") {
		var err error
		if s.zstd, err = s.intake.Zstd(); err != nil {
			return nil, err
		}
		options = append(options, confighttp.WithDecoder("zstd", func(body io.ReadCloser) (io.ReadCloser, error) { return s.zstd.Body(body) }))
	}
	server, err := cfg.ToServer(ctx, host.GetExtensions(), set, s.intake, options...)
	if err != nil {
		s.closeZstd()
		return nil, err
	}
	server.MaxHeaderBytes = maxDotnetHeader
	server.ConnContext = dotnet.WithPeer
	bounded := s.intake.Bound(server.Handler)
	server.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !s.begin() {
			dotnet.WriteProblem(w, r, "the collector is shutting down", http.StatusServiceUnavailable)
			return
		}
		defer s.serving.Done()
		bounded.ServeHTTP(w, r)
	})
	return server, nil
}

// begin begins a request, unless there may be none any more.
func (s *dotnetServer) begin() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped {
		return false
	}
	s.serving.Add(1)
	return true
}

// listen listens at a Unix socket, where the peers are asked for, or where
// confighttp does.
func (s *dotnetServer) listen(ctx context.Context, identify func(pid int) (processes.Identity, error)) (net.Listener, error) {
	at := &s.cfg.ServerConfig.NetAddr
	return httplisten.Listen(ctx, &s.cfg.ServerConfig, maxDotnetConnections, func(ctx context.Context) (net.Listener, error) {
		if !s.cfg.unix() {
			return at.Listen(ctx)
		}
		l, err := unixsocket.Listen(ctx, at.Endpoint, s.cfg.mode())
		if err != nil {
			return nil, err
		}
		return dotnet.Peers(l, identify), nil
	})
}

// stop takes no more requests and waits for those that are being served; ones
// that are still reading are cut off.
func (s *dotnetServer) stop(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, dotnetShutdown)
	defer cancel()
	if s.server.Shutdown(ctx) != nil {
		_ = s.server.Close() // whoever is cut off here will not see an answer
	}
	<-s.served
	s.mu.Lock()
	s.stopped = true
	s.mu.Unlock()
	s.serving.Wait()
	s.closeZstd()
}

func (s *dotnetServer) closeZstd() {
	if s.zstd != nil {
		s.zstd.Close()
	}
}
