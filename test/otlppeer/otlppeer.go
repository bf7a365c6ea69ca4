// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package otlppeer is an OTLP gRPC server for profiles. Tests use it to
// check which profiles have arrived.
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
	_ "google.golang.org/grpc/encoding/gzip" // exporters use gzip by default
)

// maxRequest is the maximum size of a request. All configurations here send less.
const maxRequest = 64 << 20

// Server receives profiles on a port of the loopback interface. It can be stopped and started
// again on the same port.
type Server struct {
	// Port is the current or last port of the server.
	Port int

	handle func(context.Context, pprofile.Profiles) error

	mu     sync.Mutex
	server *grpc.Server // nil while stopped
	served chan struct{}
}

// New returns a stopped server. The server answers each request with the error that
// handle returns. This error may be a gRPC status.
func New(handle func(context.Context, pprofile.Profiles) error) *Server {
	return &Server{handle: handle}
}

// Start starts the server at Port. If Port is 0, any free port is used.
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
		_ = server.Serve(l) // returns after Stop
	}()
	s.server, s.served = server, served
	return nil
}

// Stop cancels the current requests and refuses new connections.
func (s *Server) Stop() { s.stop((*grpc.Server).Stop) }

// GracefulStop answers the current requests and refuses later requests.
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

// Events returns the number of events in a profile. A sample counts once for each of its
// timestamps, or once if it has no timestamps.
func Events(p pprofile.Profile) (n int) {
	for _, sample := range p.Samples().All() {
		n += max(1, sample.TimestampsUnixNano().Len())
	}
	return n
}
