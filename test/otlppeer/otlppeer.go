// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package otlppeer is an OTLP gRPC server for profiles, for tests that have to
// know what really arrived.
package otlppeer

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"

	"go.opentelemetry.io/collector/pdata/pprofile"
	"go.opentelemetry.io/collector/pdata/pprofile/pprofileotlp"
	"google.golang.org/grpc"
	_ "google.golang.org/grpc/encoding/gzip" // the default compression of exporters
)

// maxRequest bounds one request, above what any configuration here sends.
const maxRequest = 64 << 20

// Server takes profiles at one port of the loopback. It can be stopped and
// started again, there.
type Server struct {
	// Port is the port on which it listens, or listened last.
	Port int

	handle func(context.Context, pprofile.Profiles) error

	mu     sync.Mutex
	server *grpc.Server // nil while stopped
	served chan struct{}
}

// New returns a server, stopped, that answers each request with what handle
// returns, which may have the status of gRPC.
func New(handle func(context.Context, pprofile.Profiles) error) *Server {
	return &Server{handle: handle}
}

// Start listens and serves: at Port, or at any port if that is 0.
func (s *Server) Start() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.server != nil {
		return errors.New("start the OTLP peer: it runs already")
	}
	l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", s.Port))
	if err != nil {
		return fmt.Errorf("start the OTLP peer: %w", err)
	}
	s.Port = l.Addr().(*net.TCPAddr).Port
	server, served := grpc.NewServer(grpc.MaxRecvMsgSize(maxRequest)), make(chan struct{})
	pprofileotlp.RegisterGRPCServer(server, &service{handle: s.handle})
	go func() {
		defer close(served)
		_ = server.Serve(l) // ends with Stop
	}()
	s.server, s.served = server, served
	return nil
}

// Stop cuts off the requests under way and refuses connections from then on.
func (s *Server) Stop() { s.stop((*grpc.Server).Stop) }

// GracefulStop answers the requests under way first, and refuses all later ones.
func (s *Server) GracefulStop() { s.stop((*grpc.Server).GracefulStop) }

func (s *Server) stop(how func(*grpc.Server)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.server == nil {
		return
	}
	how(s.server)
	<-s.served
	s.server = nil
}

type service struct {
	pprofileotlp.UnimplementedGRPCServer
	handle func(context.Context, pprofile.Profiles) error
}

func (s *service) Export(ctx context.Context, r pprofileotlp.ExportRequest) (pprofileotlp.ExportResponse, error) {
	return pprofileotlp.NewExportResponse(), s.handle(ctx, r.Profiles())
}

// Events counts what samples stand for: a sample's timestamps if it has any,
// else one.
func Events(p pprofile.Profile) (n int) {
	for _, sample := range p.Samples().All() {
		n += max(1, sample.TimestampsUnixNano().Len())
	}
	return n
}
