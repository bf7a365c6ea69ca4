// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package dotnet

import (
	"context"
	"io/fs"
	"time"

	"go.opentelemetry.io/collector/config/configoptional"
	"go.uber.org/zap"

	"github.com/hotprofile/hotprofile/internal/httplisten"
	"github.com/hotprofile/hotprofile/internal/nativeformat"
	"github.com/hotprofile/hotprofile/internal/samples"
	"github.com/hotprofile/hotprofile/internal/unixsocket"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/processes"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/sampler"
)

// These constants bound the server. Each service keeps one connection open.
const (
	maxConnections = 1024
	maxHeader      = 32 << 10
	// shutdownTimeout is the maximum time for requests in progress at shutdown.
	shutdownTimeout = time.Second
)

// Factory returns the factory of the .NET intake.
func Factory(cfg configoptional.Optional[Config]) sampler.Factory {
	return sampler.Factory{
		Key: "dotnet", Enabled: cfg.HasValue(),
		New: func(s *sampler.Shared) (sampler.Sampler, error) { return NewServer(cfg.Get(), s) },
	}
}

// Server runs the intake and its HTTP server as a part of the receiver.
type Server struct {
	*httplisten.Server
	intake *Intake
	cfg    *Config
	seen   Stats
	// seenClosed is the number of connections that a limit had closed before the last call
	// of Record.
	seenClosed uint64
}

// NewServer returns a server that does not listen yet.
func NewServer(cfg *Config, s *sampler.Shared) (*Server, error) {
	identify := processes.NewIdentifier(s.HostInfo.Root, s.HostInfo.Tree).Identify
	server := &Server{cfg: cfg, intake: New(s, identify)}
	server.Server = httplisten.New(httplisten.Config{
		Key:             "dotnet",
		HTTP:            cfg.ServerConfig,
		Handler:         server.intake,
		WriteError:      writeProblem,
		Wrap:            server.intake.Bound,
		MaxConnections:  maxConnections,
		Cgroups:         s.HostInfo.Tree,
		MaxHeaderBytes:  maxHeader,
		ShutdownTimeout: shutdownTimeout,
		SocketMode:      fs.FileMode(cfg.SocketMode).Perm(),
		About:           server.clientOf,
	})
	return server, nil
}

// Start implements sampler.Sampler.
func (s *Server) Start(ctx context.Context) error {
	if err := s.Server.Start(ctx, s.intake.Host, s.intake.Component); err != nil {
		return err
	}
	fields := []zap.Field{zap.String("transport", string(s.cfg.ServerConfig.NetAddr.Transport)), zap.Stringer("endpoint", s.Addr())}
	if s.cfg.unix() && !unixsocket.Abstract(s.cfg.ServerConfig.NetAddr.Endpoint) {
		fields = append(fields, zap.Stringer("socket_mode", s.cfg.SocketMode))
	}
	s.intake.Logger.Info(".NET profile server listening", fields...)
	return nil
}

// Stop waits for requests in progress. At the deadline, it closes the connections of
// stalled senders. Stop then returns nil, because a stalled sender is not an error of the
// collector.
func (s *Server) Stop(ctx context.Context) error {
	_ = s.Shutdown(ctx)
	return nil
}

// Record adds the intake's counters to the telemetry.
func (s *Server) Record(ctx context.Context) {
	now, seen, c := s.intake.Stats(), &s.seen, s.intake.Counters
	for kind, of := range map[nativeformat.Kind]*samples.Type{
		nativeformat.ThreadSamples:         samples.DotnetThreads,
		nativeformat.AllocationSamples:     samples.DotnetAllocSpace,
		nativeformat.SelectedThreadSamples: samples.DotnetSelected,
	} {
		n, was := &now.Lost[kind], &seen.Lost[kind]
		c.Samples(sampler.BufferFull, of.Sampler, int(n.BufferFull-was.BufferFull))
		c.Samples(sampler.Unreadable, of.Sampler, int(n.Unreadable-was.Unreadable))
		c.Samples(sampler.LeftOut, of.Sampler, int(n.LeftOut-was.LeftOut))
	}
	c.LimitHit(ctx, "dotnet_attributes", now.Attributes-seen.Attributes)
	bounds := s.Stats()
	closed := bounds.GaveWay + bounds.Refused
	c.LimitHit(ctx, "dotnet_connections", closed-s.seenClosed)
	s.seenClosed = closed
	c.LimitHit(ctx, "dotnet_names", now.Names-seen.Names)
	c.LimitHit(ctx, "dotnet_resources", now.Resources-seen.Resources)
	c.LimitHit(ctx, "dotnet_stacks", now.Stacks-seen.Stacks)
	s.seen = now
}
