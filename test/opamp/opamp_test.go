// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

// Package opamp tests that the OpAMP supervisor applies policies that a server sends.
package opamp

import (
	"context"
	"crypto/sha256"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/open-telemetry/opamp-go/protobufs"
	"github.com/open-telemetry/opamp-go/server"
	"github.com/open-telemetry/opamp-go/server/types"
	"github.com/stretchr/testify/require"
)

// collector is the configuration that the server sends.
const collector = `
receivers: {cpu_profiler: {targets: [{pid: %[1]d}], export_interval: 1s}}
processors:
  cpu_trigger:
    scope: process
    evaluation_interval: 1s
    min_age: 0s
    policies:
      - {name: cpu, any_of: [{monitor: cpu_usage, threshold: %[2]s, average_over: 2s}], duration: 3s, cooldown: 1s}
exporters: {pprof: {directory: %[3]q}}
service:
  telemetry: {metrics: {level: none}}
  pipelines: {profiles: {receivers: [cpu_profiler], processors: [cpu_trigger], exporters: [pprof]}}
`

// backend is the server. It keeps the last reports of the supervisor.
type backend struct {
	*testing.T
	mu     sync.Mutex
	conn   types.Connection
	uid    []byte
	status *protobufs.RemoteConfigStatus
	health *protobufs.ComponentHealth
}

func (b *backend) onMessage(_ context.Context, conn types.Connection, m *protobufs.AgentToServer) *protobufs.ServerToAgent {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.conn, b.uid = conn, m.InstanceUid
	if m.RemoteConfigStatus != nil {
		b.status = m.RemoteConfigStatus
	}
	if m.Health != nil {
		b.health = m.Health
	}
	return &protobufs.ServerToAgent{InstanceUid: m.InstanceUid}
}

func startBackend(t *testing.T) (*backend, string) {
	b := &backend{T: t}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	s := server.New(nil)
	handler, connContext, err := s.Attach(server.Settings{Callbacks: types.Callbacks{OnConnecting: func(*http.Request) types.ConnectionResponse {
		return types.ConnectionResponse{Accept: true, ConnectionCallbacks: types.ConnectionCallbacks{OnMessage: b.onMessage}}
	}}})
	require.NoError(t, err)
	mux := http.NewServeMux()
	mux.HandleFunc("/v1/opamp", handler)
	web := &http.Server{Handler: mux, ConnContext: connContext}
	go func() { _ = web.Serve(l) }()
	t.Cleanup(func() { web.Close() })
	return b, l.Addr().String()
}

func (b *backend) within(limit time.Duration, what string, done func() bool) {
	b.Helper()
	for begin := time.Now(); ; time.Sleep(100 * time.Millisecond) {
		b.mu.Lock()
		ok := done()
		b.mu.Unlock()
		if ok {
			break
		}
		if time.Since(begin) > limit {
			b.Fatalf("after %v not yet: %s; status %v, health %v", limit, what, b.status, b.health)
		}
	}
	b.Log(what)
}

// send sends a configuration and waits until the supervisor reports the expected status.
func (b *backend) send(config string, want protobufs.RemoteConfigStatuses) {
	b.Helper()
	hash := sha256.Sum256([]byte(config))
	b.mu.Lock()
	conn, uid := b.conn, b.uid
	b.status = nil
	b.mu.Unlock()
	require.NoError(b, conn.Send(context.Background(), &protobufs.ServerToAgent{
		InstanceUid: uid,
		RemoteConfig: &protobufs.AgentRemoteConfig{
			ConfigHash: hash[:],
			Config:     &protobufs.AgentConfigMap{ConfigMap: map[string]*protobufs.AgentConfigFile{"": {Body: []byte(config), ContentType: "text/yaml"}}},
		},
	}))
	b.within(time.Minute, "the supervisor reports "+want.String(), func() bool {
		return b.status != nil && b.status.Status == want && string(b.status.LastRemoteConfigHash) == string(hash[:])
	})
	b.Log(b.status.ErrorMessage)
}

func (b *backend) healthy(want bool) {
	b.Helper()
	b.within(time.Minute, fmt.Sprintf("healthy: %v", want), func() bool { return b.health != nil && b.health.Healthy == want })
}

// run starts a program that runs until the test ends.
func run(t *testing.T, name string, args ...string) *exec.Cmd {
	t.Helper()
	out, err := os.Create(filepath.Join(t.TempDir(), "log"))
	require.NoError(t, err)
	cmd := exec.Command(name, args...)
	cmd.Stdout, cmd.Stderr = out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait()
		content, _ := os.ReadFile(out.Name())
		if t.Failed() {
			t.Logf("%s:\n%s", name, content[max(0, len(content)-8000):])
		}
	})
	return cmd
}

func TestPoliciesFromAServer(t *testing.T) {
	bin := os.Getenv("HOTPROFILE_BIN")
	if bin == "" {
		t.Skip("run make opamp")
	}
	b, endpoint := startBackend(t)
	load := run(t, filepath.Join(bin, "load"))
	dir := t.TempDir()
	config := filepath.Join(dir, "supervisor.yaml")
	require.NoError(t, os.WriteFile(config, fmt.Appendf(nil, `
server: {endpoint: "ws://%s/v1/opamp"}
capabilities: {accepts_remote_config: true, reports_remote_config: true, reports_effective_config: true, reports_health: true}
agent:
  executable: %q
  validate_config: true
  config_apply_timeout: 15s
  bootstrap_timeout: 30s
storage: {directory: %q}
`, endpoint, filepath.Join(bin, "otelcol-hotprofile-opamp"), filepath.Join(dir, "state")), 0o644))
	run(t, filepath.Join(bin, "opampsupervisor"), "--config", config)
	b.within(time.Minute, "the supervisor is connected", func() bool { return b.conn != nil })

	profiles := filepath.Join(dir, "profiles")
	written := func() int { files, _ := filepath.Glob(filepath.Join(profiles, "*.pb.gz")); return len(files) }
	of := func(threshold, directory string) string {
		return fmt.Sprintf(collector, load.Process.Pid, threshold, directory)
	}
	b.send(of("100", profiles), protobufs.RemoteConfigStatuses_RemoteConfigStatuses_APPLIED)
	b.healthy(true)
	require.Zero(t, written())

	b.send(of("0.02", profiles), protobufs.RemoteConfigStatuses_RemoteConfigStatuses_APPLIED)
	b.within(time.Minute, "the new policy opened a gate: a profile is written", func() bool { return written() > 0 })

	b.send(of("0.02", "/proc/1/nothing"), protobufs.RemoteConfigStatuses_RemoteConfigStatuses_FAILED)
	b.healthy(false)

	b.send(of("0.03", profiles), protobufs.RemoteConfigStatuses_RemoteConfigStatuses_APPLIED)
	b.healthy(true)
	before := written()
	b.within(time.Minute, "a good configuration mends it", func() bool { return written() > before })

	b.send(of("0.02", profiles)+"connectors: {nothing: }\n", protobufs.RemoteConfigStatuses_RemoteConfigStatuses_FAILED)
	before = written()
	b.within(time.Minute, "an unknown component is refused, and the collector goes on", func() bool { return written() > before })
}
