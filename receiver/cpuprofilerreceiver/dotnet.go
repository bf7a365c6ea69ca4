// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package cpuprofilerreceiver

import (
	"context"
	"fmt"
	"net"
	"slices"
	"time"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/config/confighttp"
	"go.uber.org/zap"

	"github.com/hotprofile/hotprofile/internal/httplisten"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/processes"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/sampler/dotnet"
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
	*httplisten.Server
	zstd *dotnet.Zstd // nil where zstd is not configured
}

// startDotnet returns a started server.
func startDotnet(ctx context.Context, host component.Host, set component.TelemetrySettings, cfg *DotnetConfig,
	intake *dotnet.Intake, identify func(pid int) (processes.Identity, error),
) (*dotnetServer, error) {
	s := &dotnetServer{}
	var options []confighttp.ToServerOption
	if slices.Contains(cfg.ServerConfig.CompressionAlgorithms, "zstd") {
		var err error
		if s.zstd, err = intake.Zstd(); err != nil {
			return nil, fmt.Errorf("dotnet.compression_algorithms: %w", err)
		}
		options = append(options, confighttp.WithDecoder("zstd", s.zstd.Body))
	}
	s.Server = httplisten.New(httplisten.Config{
		Key:             "dotnet",
		HTTP:            cfg.ServerConfig,
		Handler:         intake,
		WriteError:      dotnet.WriteProblem,
		Options:         options,
		Wrap:            intake.Bound,
		MaxConnections:  maxDotnetConnections,
		MaxHeaderBytes:  maxDotnetHeader,
		ShutdownTimeout: dotnetShutdown,
		SocketMode:      cfg.mode(),
		WrapUnix:        func(l net.Listener) net.Listener { return dotnet.Peers(l, identify) },
		ConnContext:     dotnet.WithPeer,
	})
	if err := s.Start(ctx, host, set); err != nil {
		s.closeZstd()
		return nil, err
	}
	fields := []zap.Field{zap.String("transport", string(cfg.ServerConfig.NetAddr.Transport)), zap.Stringer("endpoint", s.Addr())}
	if cfg.guarded() {
		fields = append(fields, zap.Stringer("socket_mode", cfg.SocketMode))
	}
	set.Logger.Info(".NET profile server listening", fields...)
	return s, nil
}

// stop waits for the requests under way; the deadline closes the connections of
// senders that stall, which is not an error of the collector.
func (s *dotnetServer) stop(ctx context.Context) {
	_ = s.Shutdown(ctx)
	s.closeZstd()
}

func (s *dotnetServer) closeZstd() {
	if s.zstd != nil {
		s.zstd.Close()
	}
}
