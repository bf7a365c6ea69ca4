// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package cpuprofilerreceiver

import (
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/confmap"

	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/sampler"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/sampler/pprof"
)

// pprofWith returns a configuration with one pprof endpoint.
func pprofWith(keys map[string]any) map[string]any {
	return map[string]any{"pprof_endpoints": []any{keys}}
}

func TestConfigPprofEndpointsHaveDefaultsOfTheirOwn(t *testing.T) {
	cfg := createDefaultConfig()
	require.NoError(t, confmap.NewFromStringMap(map[string]any{"pprof_endpoints": []any{
		map[string]any{"socket": "/run/a.sock"},
		map[string]any{
			"endpoint": "https://b/debug/pprof", "when": "hot", "profiles": []any{"heap"}, "interval": "30s", "duration": "5s",
			"headers": map[string]any{"X-A": "b"}, "target": map[string]any{"pid": 7}, "resource": map[string]any{"service.name": "checkout"},
		},
	}}).Unmarshal(cfg))
	require.NoError(t, confmap.Validate(cfg))
	require.False(t, cfg.CPU.Enabled, "nothing but endpoints is named")
	first, second := pprof.DefaultConfig(), &cfg.PprofEndpoints[1]
	first.ClientConfig.Endpoint, first.Socket = pprof.SocketEndpoint, "/run/a.sock"
	require.Equal(t, first, cfg.PprofEndpoints[0])
	require.Equal(t, "https://b/debug/pprof", second.ClientConfig.Endpoint)
	require.Equal(t, sampler.WhenHot, second.When)
	require.Equal(t, []string{"heap"}, second.Profiles)
	require.Equal(t, []time.Duration{30 * time.Second, 5 * time.Second, 10 * time.Second}, []time.Duration{second.Interval, second.Duration, second.ClientConfig.Timeout})
	require.Len(t, second.ClientConfig.Headers, 1)
	require.Equal(t, TargetConfig{PID: 7}, *second.Target.Get())
	require.Equal(t, map[string]any{"service.name": "checkout"}, second.Resource)
}

func TestConfigFaultsOfPprofEndpointsNameTheirKey(t *testing.T) {
	for name, test := range map[string]struct {
		yaml map[string]any
		want []string // all of these must be in the error
	}{
		"nowhere":               {pprofWith(nil), []string{"endpoint", "is needed", "http://localhost:6060/debug/pprof"}},
		"endpoint is not a URL": {pprofWith(map[string]any{"endpoint": "localhost:6060"}), []string{"pprof_endpoints", "endpoint", "http://HOST"}},
		"with a password":       {pprofWith(map[string]any{"endpoint": "http://u:secret@localhost"}), []string{"endpoint", "basicauth"}},
		"with a query":          {pprofWith(map[string]any{"endpoint": "http://localhost/x?y=z"}), []string{"endpoint", "path"}},
		"socket relative":       {pprofWith(map[string]any{"socket": "a.sock"}), []string{"socket", "absolute"}},
		"when":                  {pprofWith(map[string]any{"endpoint": "http://a", "when": "warm"}), []string{"when", "hot, always"}},
		"key unknown":           {pprofWith(map[string]any{"endpoint": "http://a", "profile": "cpu"}), []string{"profile"}},
		"profile unknown":       {pprofWith(map[string]any{"endpoint": "http://a", "profiles": []any{"cpu"}}), []string{"profiles[0]", "profile, allocs, heap, goroutine, threadcreate, block, mutex"}},
		"profile twice":         {pprofWith(map[string]any{"endpoint": "http://a", "profiles": []any{"heap", "heap"}}), []string{"profiles[1]", "twice"}},
		"no profiles":           {pprofWith(map[string]any{"endpoint": "http://a", "profiles": []any{}}), []string{"profiles"}},
		"interval":              {pprofWith(map[string]any{"endpoint": "http://a", "interval": "1ms"}), []string{"interval", "between 1s and 24h"}},
		"duration too long":     {pprofWith(map[string]any{"endpoint": "http://a", "interval": "5s"}), []string{"duration", "between 1s and interval"}},
		"duration of parts":     {pprofWith(map[string]any{"endpoint": "http://a", "duration": "1500ms"}), []string{"duration", "whole seconds"}},
		"timeout":               {pprofWith(map[string]any{"endpoint": "http://a", "timeout": "5s"}), []string{"pprof_endpoints[0].timeout: this key is gone", "10 seconds longer than duration"}},
		"size":                  {pprofWith(map[string]any{"endpoint": "http://a", "max_size": "1MiB"}), []string{"pprof_endpoints[0].max_size: this key is gone", "16 MiB"}},
		"target":                {pprofWith(map[string]any{"endpoint": "http://a", "target": map[string]any{"pid": 1, "cgroup": "/a"}}), []string{"target", "exactly one"}},
		"pid as resource":       {pprofWith(map[string]any{"endpoint": "http://a", "resource": map[string]any{"process.pid": 1}}), []string{"resource", "target"}},
		"reason as resource":    {pprofWith(map[string]any{"endpoint": "http://a", "resource": map[string]any{"hotprofile.x": "y"}}), []string{"resource", "cpu_trigger"}},
		"no target":             {pprofWith(map[string]any{"endpoint": "http://a", "resource": map[string]any{"team": "x"}}), []string{"target", "executable", "container_id", "cgroup", "socket", "container.id", "service.name"}},
		"list as resource":      {pprofWith(map[string]any{"endpoint": "http://a", "resource": map[string]any{"a": []any{1}}}), []string{"resource", "whole number"}},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := createDefaultConfig()
			err := confmap.NewFromStringMap(test.yaml).Unmarshal(cfg)
			if err == nil {
				err = confmap.Validate(cfg)
			}
			require.Error(t, err)
			require.NotContains(t, err.Error(), "secret")
			for _, want := range test.want {
				require.ErrorContains(t, err, want)
			}
		})
	}
}

func TestConfigPprofEndpointOnTheLoopbackOfLinuxNeedsNoTarget(t *testing.T) {
	for endpoint, loopback := range map[string]bool{
		"http://localhost:6060/debug/pprof": true, "http://127.0.0.2": true, "https://[::1]:1": true,
		"http://10.0.0.1:6060": false, "http://localhost.example:6060": false,
	} {
		cfg := createDefaultConfig()
		require.NoError(t, confmap.NewFromStringMap(pprofWith(map[string]any{"endpoint": endpoint})).Unmarshal(cfg))
		err := confmap.Validate(cfg)
		require.Equal(t, loopback && runtime.GOOS == "linux", err == nil, "%s: %v", endpoint, err)
	}
}

func TestConfigPprofEndpointWithoutATargetIsIdentifiedByItsResource(t *testing.T) {
	for _, key := range []string{"container.id", "process.linux.cgroup", "service.name"} {
		cfg := createDefaultConfig()
		yaml := pprofWith(map[string]any{"endpoint": "http://a", "resource": map[string]any{key: "x"}})
		require.NoError(t, confmap.NewFromStringMap(yaml).Unmarshal(cfg))
		require.NoError(t, confmap.Validate(cfg), key)
	}
}
