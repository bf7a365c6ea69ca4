// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package e2e

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pprofile"

	"github.com/hotprofile/hotprofile/test/conformancetest"
	"github.com/hotprofile/hotprofile/test/otlppeer"
)

// peer is a second process of the distribution. It writes profiles to
// files, one for OTLP over gRPC and one for OTLP over HTTP.
type peer struct {
	*collector
	grpc, http         int
	grpcFile, httpFile string
}

func startPeer(t testing.TB) *peer {
	dir := t.TempDir()
	p := &peer{
		grpc: freePort(t), http: freePort(t),
		grpcFile: filepath.Join(dir, "grpc.json"), httpFile: filepath.Join(dir, "http.json"),
	}
	p.collector = startCollector(t, "peer", fmt.Sprintf(`
receivers:
  otlp/grpc: {protocols: {grpc: {endpoint: "127.0.0.1:%d", max_recv_msg_size_mib: 16}}}
  otlp/http: {protocols: {http: {endpoint: "127.0.0.1:%d"}}}
exporters:
  file/grpc: {path: %q, format: json, flush_interval: 200ms}
  file/http: {path: %q, format: json, flush_interval: 200ms}
service:
  telemetry: {logs: {encoding: json}, metrics: {level: none}}
  pipelines:
    profiles/grpc: {receivers: [otlp/grpc], exporters: [file/grpc]}
    profiles/http: {receivers: [otlp/http], exporters: [file/http]}
`, p.grpc, p.http, p.grpcFile, p.httpFile))
	p.wait(startTimeout, "Everything is ready. Begin running and processing data.", nil)
	return p
}

// exporter returns the configuration of an exporter that sends to the peer over gRPC.
func (p *peer) exporter() string {
	return fmt.Sprintf(`otlp_grpc/peer: {endpoint: "127.0.0.1:%d", tls: {insecure: true}}`, p.grpc)
}

// readProfiles reads a file that the file exporter has written. Each line is one request.
// The profiles must have passed cpu_trigger. readProfiles checks that attributes are
// references and that all entries of the dictionary are used.
func readProfiles(t testing.TB, file string) (out []pprofile.Profiles) {
	t.Helper()
	content, err := os.ReadFile(file)
	require.NoError(t, err)
	for line := range bytes.Lines(content) {
		if line = bytes.TrimSpace(line); len(line) == 0 {
			continue
		}
		p, err := (&pprofile.JSONUnmarshaler{}).UnmarshalProfiles(line)
		require.NoError(t, err)
		require.Contains(t, string(line), `"stringValueStrindex":`)
		for _, v := range conformancetest.Check(p, conformancetest.Options{Triggered: true, References: true}) {
			t.Errorf("request %d in %s: %v", len(out), filepath.Base(file), v)
		}
		out = append(out, p)
	}
	return out
}

// wire is an OTLP gRPC server in the test. It keeps the profiles that arrive.
type wire struct {
	port int

	mu   sync.Mutex
	held []pprofile.Profiles
}

// exporter returns the configuration of an exporter that sends to the server.
func (w *wire) exporter() string {
	return fmt.Sprintf(`otlp_grpc/wire: {endpoint: "127.0.0.1:%d", tls: {insecure: true}}`, w.port)
}

func startWire(t testing.TB) *wire {
	w := &wire{}
	server := otlppeer.New(w.take)
	require.NoError(t, server.Start())
	w.port = server.Port
	t.Cleanup(server.Stop)
	return w
}

func (w *wire) take(_ context.Context, profiles pprofile.Profiles) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.held = append(w.held, profiles)
	return nil
}

func (w *wire) received() []pprofile.Profiles {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]pprofile.Profiles(nil), w.held...)
}
