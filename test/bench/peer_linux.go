// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"net"
	"sync"
	"time"

	"go.opentelemetry.io/collector/pdata/pprofile"
	"go.opentelemetry.io/collector/pdata/pprofile/pprofileotlp"
	"google.golang.org/grpc"
	_ "google.golang.org/grpc/encoding/gzip" // what the exporter compresses with unless told otherwise
)

// peer is an OTLP gRPC server that counts samples and throws them away.
type peer struct {
	pprofileotlp.UnimplementedGRPCServer
	server *grpc.Server
	port   int

	mu      sync.Mutex
	samples int
	latest  time.Time // of the last request
}

func startPeer() (*peer, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := &peer{server: grpc.NewServer(grpc.MaxRecvMsgSize(64 << 20)), port: l.Addr().(*net.TCPAddr).Port}
	pprofileotlp.RegisterGRPCServer(p.server, p)
	go func() { _ = p.server.Serve(l) }()
	return p, nil
}

func (p *peer) Export(_ context.Context, r pprofileotlp.ExportRequest) (pprofileotlp.ExportResponse, error) {
	n := countSamples(r.Profiles())
	p.mu.Lock()
	defer p.mu.Unlock()
	p.samples += n
	p.latest = time.Now()
	return pprofileotlp.NewExportResponse(), nil
}

// countSamples counts events: a sample's timestamps if it has any, else one.
func countSamples(profiles pprofile.Profiles) (n int) {
	for _, r := range profiles.ResourceProfiles().All() {
		for _, s := range r.ScopeProfiles().All() {
			for _, p := range s.Profiles().All() {
				for _, sample := range p.Samples().All() {
					n += max(1, sample.TimestampsUnixNano().Len())
				}
			}
		}
	}
	return n
}

func (p *peer) received() (samples int, latest time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.samples, p.latest
}

// batch waits for the next batch and returns the samples so far. It returns once
// nothing has come for a while: at that moment the sender has nothing under way,
// so two such moments have the work for the samples between them between them.
func (p *peer) batch(ctx context.Context, from *child) (int, error) {
	const quiet, limit = 500 * time.Millisecond, time.Minute
	began := time.Now()
	for {
		if err := sleep(ctx, quiet/10); err != nil {
			return 0, err
		}
		if err := from.running(); err != nil {
			return 0, err
		}
		n, latest := p.received()
		if latest.After(began) && time.Since(latest) > quiet {
			return n, nil
		}
		if time.Since(began) > limit {
			return 0, fmt.Errorf("%s sent nothing within %v; its last words:\n%s", from.name, limit, from.lastWords())
		}
	}
}
