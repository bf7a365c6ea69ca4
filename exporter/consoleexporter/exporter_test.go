// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package consoleexporter

import (
	"context"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/confmap"
	"go.opentelemetry.io/collector/exporter/exportertest"
	"go.opentelemetry.io/collector/exporter/xexporter"
	"go.opentelemetry.io/collector/extension"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/plog"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/pdata/pprofile"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/hotprofile/hotprofile/exporter/consoleexporter/internal/metadata"
	"github.com/hotprofile/hotprofile/extension/consoleextension"
)

type hostWith map[component.ID]component.Component

func (h hostWith) GetExtensions() map[component.ID]component.Component { return h }

// startConsole starts a console extension. It returns a host with the extension, and
// the URL of the console's pages.
func startConsole(t *testing.T, id component.ID) (hostWith, string) {
	t.Helper()
	factory := consoleextension.NewFactory()
	cfg := factory.CreateDefaultConfig().(*consoleextension.Config)
	cfg.HTTP.NetAddr.Endpoint, cfg.Directory = "127.0.0.1:0", filepath.Join(t.TempDir(), "console")
	core, logs := observer.New(zapcore.InfoLevel)
	set := extension.Settings{ID: id, TelemetrySettings: componenttest.NewNopTelemetrySettings()}
	set.Logger = zap.New(core)
	ext, err := factory.Create(t.Context(), set, cfg)
	require.NoError(t, err)
	require.NoError(t, ext.Start(t.Context(), componenttest.NewNopHost()))
	t.Cleanup(func() { require.NoError(t, ext.Shutdown(context.Background())) })
	for _, line := range logs.All() {
		if url, ok := strings.CutPrefix(line.Message, "console at "); ok {
			return hostWith{id: ext}, url
		}
	}
	t.Fatal("no address in the log")
	return nil, ""
}

// events returns logs that contain one hotprofile.gate.opened event.
func events() plog.Logs {
	ld := plog.NewLogs()
	rl := ld.ResourceLogs().AppendEmpty()
	rl.Resource().Attributes().PutStr("host.name", "node-7")
	rl.Resource().Attributes().PutStr("service.name", "checkout")
	record := rl.ScopeLogs().AppendEmpty().LogRecords().AppendEmpty()
	record.SetEventName("hotprofile.gate.opened")
	record.SetTimestamp(pcommon.NewTimestampFromTime(time.Now()))
	for key, value := range map[string]string{
		"hotprofile.unit": "4f1c0c6b8a2e", "hotprofile.trigger.policy": "cpu", "hotprofile.trigger.id": "5f0e9a4e6a3b1c22", "hotprofile.trigger.kind": "hot",
	} {
		record.Attributes().PutStr(key, value)
	}
	return ld
}

func TestEverySignalReachesTheConsole(t *testing.T) {
	id := component.MustNewIDWithName("console", "2")
	host, url := startConsole(t, id)
	factory := NewFactory()
	cfg := factory.CreateDefaultConfig().(*Config)
	cfg.Extension = id
	set := exportertest.NewNopSettings(metadata.Type)
	logs, err := factory.CreateLogs(t.Context(), set, cfg)
	require.NoError(t, err)
	metrics, err := factory.CreateMetrics(t.Context(), set, cfg)
	require.NoError(t, err)
	profiles, err := factory.(xexporter.Factory).CreateProfiles(t.Context(), set, cfg)
	require.NoError(t, err)
	for _, e := range []component.Component{logs, metrics, profiles} {
		require.NoError(t, e.Start(t.Context(), host))
	}
	require.NoError(t, logs.ConsumeLogs(t.Context(), events()))
	require.NoError(t, metrics.ConsumeMetrics(t.Context(), pmetric.NewMetrics()))
	require.NoError(t, profiles.ConsumeProfiles(t.Context(), pprofile.NewProfiles()))
	require.False(t, logs.Capabilities().MutatesData)
	for _, e := range []component.Component{logs, metrics, profiles} {
		require.NoError(t, e.Shutdown(t.Context()), "which waits for the queue")
	}
	resp, err := http.Get(url) //nolint:noctx // of this test
	require.NoError(t, err)
	defer resp.Body.Close()
	page, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.Contains(t, string(page), "/openings/5f0e9a4e6a3b1c22")
	http.DefaultClient.CloseIdleConnections()
}

func TestWithoutTheExtensionTheStartFails(t *testing.T) {
	factory := NewFactory()
	set, cfg := exportertest.NewNopSettings(metadata.Type), factory.CreateDefaultConfig()
	create := map[string]func() (component.Component, error){
		"logs":    func() (component.Component, error) { return factory.CreateLogs(t.Context(), set, cfg) },
		"metrics": func() (component.Component, error) { return factory.CreateMetrics(t.Context(), set, cfg) },
		"profiles": func() (component.Component, error) {
			return factory.(xexporter.Factory).CreateProfiles(t.Context(), set, cfg)
		},
	}
	for signal, create := range create {
		e, err := create()
		require.NoError(t, err, signal)
		require.ErrorContains(t, e.Start(t.Context(), componenttest.NewNopHost()),
			`there is no extension "console": configure it under extensions, and list it under service.extensions`, signal)
		require.NoError(t, e.Shutdown(t.Context()), signal)
	}
}

func TestConfiguration(t *testing.T) {
	load := func(keys map[string]any) (*Config, error) {
		cfg := createDefaultConfig().(*Config)
		if err := confmap.NewFromStringMap(keys).Unmarshal(cfg); err != nil {
			return nil, err
		}
		return cfg, confmap.Validate(cfg)
	}
	cfg, err := load(nil)
	require.NoError(t, err)
	require.Equal(t, component.MustNewID("console"), cfg.Extension)
	require.Equal(t, 5*time.Second, cfg.Timeout)
	queue := cfg.Queue.Get()
	require.EqualValues(t, 16<<20, queue.QueueSize)
	require.False(t, queue.BlockOnOverflow, "pipelines do not wait")
	require.Equal(t, 1, queue.NumConsumers)

	cfg, err = load(map[string]any{"extension": "console/2", "timeout": "1s", "sending_queue": map[string]any{"queue_size": 1 << 20}})
	require.NoError(t, err)
	require.Equal(t, component.MustNewIDWithName("console", "2"), cfg.Extension)
	require.EqualValues(t, 1<<20, cfg.Queue.Get().QueueSize)
	cfg, err = load(map[string]any{"sending_queue": map[string]any{"enabled": false}})
	require.NoError(t, err)
	require.False(t, cfg.Queue.HasValue())

	_, err = load(map[string]any{"timeout": "1ms"})
	require.ErrorContains(t, err, "timeout: 1ms is not between 100ms and 1m0s")
	_, err = load(map[string]any{"extension": ""})
	require.Error(t, err)
	_, err = load(map[string]any{"extensoin": "console"})
	require.ErrorContains(t, err, "extensoin")
}
