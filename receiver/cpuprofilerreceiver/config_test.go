// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package cpuprofilerreceiver

import (
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/config/configoptional"
	"go.opentelemetry.io/collector/confmap"
	"go.opentelemetry.io/collector/confmap/confmaptest"

	"github.com/hotprofile/hotprofile/internal/bytesize"
	"github.com/hotprofile/hotprofile/internal/configlog"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/metadata"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/sampler"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/sampler/allocs"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/sampler/dotnet"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/sampler/network"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/sampler/offcpu"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/sampler/oncpu"
)

func TestConfigIsReadAsWritten(t *testing.T) {
	file, err := confmaptest.LoadConf(filepath.Join("testdata", "config.yaml"))
	require.NoError(t, err)
	with := func(change func(*Config)) *Config {
		cfg := createDefaultConfig()
		change(cfg)
		return cfg
	}
	for name, want := range map[string]*Config{
		"": createDefaultConfig(),
		"all": {
			RootPath: "/hostfs",
			Targets: []TargetConfig{
				{PID: 4711},
				{Executable: "/usr/lib/jvm/*/bin/java"},
				{Cgroup: "/system.slice/checkout.service"},
				{ContainerID: "4f1c0c6b8a2e"},
			},
			DiscoveryInterval: time.Second,
			RateConfig:        oncpu.RateConfig{Frequency: 199, MaxOverhead: 0.5},
			MaxPerfEvents:     512,
			MaxMemory:         64 * bytesize.MiB,
			KernelStacks:      KernelStacksTrue,
			Unwind:            UnwindDwarf,
			ThreadAttributes:  []string{"thread.name", "thread.id"},
			Languages:         []string{"node"},
			GoroutineLabels:   []string{"http.route", "tenant"},
			CPU:               oncpu.Config{Enabled: true},
			OffCPU:            configoptional.Some(offcpu.Config{When: sampler.WhenAlways, MinDuration: 2 * time.Millisecond, MaxEventsPerSecond: 100}),
			Allocations:       configoptional.Some(allocs.Config{When: sampler.WhenAlways, MaxSamplesPerMinute: 0}),
			Network:           configoptional.Some(network.Config{When: sampler.WhenAlways, MaxEventsPerSecond: 300}),
			Dotnet: configoptional.Some(func() dotnet.Config {
				d := dotnet.DefaultConfig()
				d.ServerConfig.NetAddr.Transport, d.ServerConfig.NetAddr.Endpoint = "unix", "/run/hotprofile/dotnet.sock"
				d.SocketMode = 0o666
				return d
			}()),
			BufferSize:     200 * bytesize.KiB,
			ExportInterval: 10 * time.Second,
		},
		"overhead_number":    with(func(c *Config) { c.MaxOverhead = 3 }),
		"overhead_fraction":  with(func(c *Config) { c.MaxOverhead = 0.25 }),
		"overhead_unbounded": with(func(c *Config) { c.MaxOverhead = 0 }),
		"kernel_false":       with(func(c *Config) { c.KernelStacks = KernelStacksFalse }),
		"kernel_auto":        createDefaultConfig(),
		"threads_together":   with(func(c *Config) { c.ThreadAttributes = []string{} }),
		"no_languages":       with(func(c *Config) { c.Languages = []string{} }),
		"no_labels":          with(func(c *Config) { c.GoroutineLabels = []string{} }),
		"bytes":              with(func(c *Config) { c.BufferSize = bytesize.MiB }),
		"cpu_block_empty":    createDefaultConfig(),
		"dotnet_alone": with(func(c *Config) {
			c.CPU.Enabled = false
			c.Dotnet = configoptional.Some(dotnet.DefaultConfig())
		}),
		"dotnet_empty": with(func(c *Config) {
			c.CPU.Enabled = false
			c.Dotnet = configoptional.Some(dotnet.DefaultConfig())
		}),
		"dotnet_and_cpu": with(func(c *Config) { c.Dotnet = configoptional.Some(dotnet.DefaultConfig()) }),
		"dotnet_and_targets": with(func(c *Config) {
			c.Dotnet = configoptional.Some(dotnet.DefaultConfig())
			c.Targets = []TargetConfig{{PID: 4711}}
		}),
		"dotnet_mode_text": with(func(c *Config) {
			c.CPU.Enabled = false
			d := dotnet.DefaultConfig()
			d.SocketMode = 0o600
			c.Dotnet = configoptional.Some(d)
		}),
		"off":               with(func(c *Config) { c.CPU.Enabled = false }),
		"allocations_empty": with(func(c *Config) { c.Allocations = configoptional.Some(allocs.DefaultConfig()) }),
		"allocations_and_dotnet": with(func(c *Config) {
			c.Allocations = configoptional.Some(allocs.Config{When: sampler.WhenHot, MaxSamplesPerMinute: 50})
			c.Dotnet = configoptional.Some(dotnet.DefaultConfig())
		}),
		"network_empty": with(func(c *Config) { c.Network = configoptional.Some(network.DefaultConfig()) }),
		"network_and_dotnet": with(func(c *Config) {
			c.Network = configoptional.Some(network.Config{When: sampler.WhenHot, MaxEventsPerSecond: 500})
			c.Dotnet = configoptional.Some(dotnet.DefaultConfig())
		}),
		"off_cpu_empty": with(func(c *Config) { c.OffCPU = configoptional.Some(offcpu.DefaultConfig()) }),
		"off_cpu_and_dotnet": with(func(c *Config) {
			c.OffCPU = configoptional.Some(offcpu.Config{When: sampler.WhenHot, MinDuration: 0, MaxEventsPerSecond: 500})
			c.Dotnet = configoptional.Some(dotnet.DefaultConfig())
		}),
	} {
		t.Run(name, func(t *testing.T) {
			sub, err := file.Sub(component.NewIDWithName(metadata.Type, name).String())
			require.NoError(t, err)
			cfg := NewFactory().CreateDefaultConfig()
			require.NoError(t, sub.Unmarshal(&cfg))
			require.NoError(t, confmap.Validate(cfg))
			require.Equal(t, want, cfg)
		})
	}
}

func TestConfigFaultsNameTheirKeyAndWhatIsAllowed(t *testing.T) {
	for name, test := range map[string]struct {
		yaml map[string]any
		want []string // all of these must be in the error
	}{
		"unknown key":                    {map[string]any{"frequenzy": 1}, []string{"frequenzy"}},
		"allocation key unknown":         {map[string]any{"allocations": map[string]any{"rate": 1}}, []string{"rate"}},
		"allocations when":               {map[string]any{"allocations": map[string]any{"when": "cold"}}, []string{"allocations", "when", "hot, always"}},
		"allocations below none":         {map[string]any{"allocations": map[string]any{"max_samples_per_minute": -1}}, []string{"allocations", "max_samples_per_minute", "between 0 and 1000000"}},
		"network key unknown":            {map[string]any{"network": map[string]any{"sampling_bytes": 1}}, []string{"sampling_bytes"}},
		"network when":                   {map[string]any{"network": map[string]any{"when": "now"}}, []string{"network", "when", "hot, always"}},
		"network no samples":             {map[string]any{"network": map[string]any{"max_events_per_second": 0}}, []string{"network", "max_events_per_second", "between 1 and 1000000"}},
		"off-CPU key unknown":            {map[string]any{"off_cpu": map[string]any{"whenever": "hot"}}, []string{"whenever"}},
		"off-CPU when":                   {map[string]any{"off_cpu": map[string]any{"when": "now"}}, []string{"off_cpu", "when", "hot, always"}},
		"off-CPU duration":               {map[string]any{"off_cpu": map[string]any{"min_duration": "-1ms"}}, []string{"off_cpu", "min_duration", "between 0"}},
		"off-CPU no stacks":              {map[string]any{"off_cpu": map[string]any{"max_events_per_second": 0}}, []string{"off_cpu", "max_events_per_second", "between 1 and 1000000"}},
		"unknown key of a target":        {map[string]any{"targets": []any{map[string]any{"name": "x"}}}, []string{"name"}},
		"root path not absolute":         {map[string]any{"root_path": "hostfs"}, []string{"root_path", "absolute"}},
		"root path empty":                {map[string]any{"root_path": ""}, []string{"root_path", "absolute"}},
		"target without a key":           {map[string]any{"targets": []any{map[string]any{}}}, []string{"targets[0]", "exactly one of pid (above 0), executable, cgroup, container_id"}},
		"target with two keys":           {map[string]any{"targets": []any{map[string]any{"pid": 1, "cgroup": "/a"}}}, []string{"targets[0]", "exactly one", "pid and cgroup"}},
		"pid negative":                   {map[string]any{"targets": []any{map[string]any{"pid": -1}}}, []string{"targets[0]", "pid", "between 1 and 4194304"}},
		"pid absurd":                     {map[string]any{"targets": []any{map[string]any{"pid": 99999999999}}}, []string{"targets[0]", "pid", "between 1 and 4194304"}},
		"executable no glob":             {map[string]any{"targets": []any{map[string]any{"executable": "/a/[b"}}}, []string{"targets[0]", "executable", "glob"}},
		"cgroup is not a glob":           {map[string]any{"targets": []any{map[string]any{"cgroup": "/a/{b"}}}, []string{"targets[0]", "cgroup", "glob"}},
		"container id too short":         {map[string]any{"targets": []any{map[string]any{"container_id": "4f1c"}}}, []string{"targets[0]", "container_id", "12"}},
		"frequency zero":                 {map[string]any{"frequency": 0}, []string{"frequency", "between 1 and 999"}},
		"frequency negative":             {map[string]any{"frequency": -97}, []string{"frequency", "between 1 and 999"}},
		"frequency absurd":               {map[string]any{"frequency": 1000}, []string{"frequency", "between 1 and 999"}},
		"frequency a fraction":           {map[string]any{"frequency": 9.5}, []string{"frequency"}},
		"overhead negative":              {map[string]any{"max_overhead": "-1%"}, []string{"max_overhead", "-1%", "between 0.01% and 100%", "0, which means no bound"}},
		"overhead of nothing":            {map[string]any{"max_overhead": "0.001%"}, []string{"max_overhead", "between 0.01% and 100%"}},
		"overhead above everything":      {map[string]any{"max_overhead": 101}, []string{"max_overhead", "101%", "between 0.01% and 100%"}},
		"overhead not a number":          {map[string]any{"max_overhead": "NaN%"}, []string{"max_overhead", "2%"}},
		"overhead is not a percentage":   {map[string]any{"max_overhead": "off"}, []string{"max_overhead", "off", "2%"}},
		"memory too little":              {map[string]any{"max_memory": "1MiB"}, []string{"max_memory", "between 16MiB and 64GiB"}},
		"descriptors too few":            {map[string]any{"max_perf_events": 0}, []string{"max_perf_events", "between 8 and 1048576"}},
		"kernel stacks unknown":          {map[string]any{"kernel_stacks": "maybe"}, []string{"kernel_stacks", "auto, true, false"}},
		"unwind unknown":                 {map[string]any{"unwind": "lbr"}, []string{"unwind", "auto, frame_pointer, dwarf"}},
		"stack bytes":                    {map[string]any{"stack_bytes": 512}, []string{"stack_bytes: this key is gone", "grow"}},
		"buffer of allocations":          {map[string]any{"allocations": map[string]any{"buffer_size": "1MiB"}}, []string{"allocations.buffer_size: this key is gone", "sixteenth"}},
		"thread attribute unknown":       {map[string]any{"thread_attributes": []any{"thread.name", "cpu"}}, []string{"thread_attributes[1]", "thread.name, thread.id"}},
		"buffer tiny":                    {map[string]any{"buffer_size": "1KiB"}, []string{"buffer_size", "between 64KiB and 1GiB"}},
		"buffer negative":                {map[string]any{"buffer_size": -1}, []string{"buffer_size", "between 64KiB and 1GiB"}},
		"buffer is not a size":           {map[string]any{"buffer_size": "much"}, []string{"buffer_size", "much"}},
		"interval zero":                  {map[string]any{"export_interval": "0s"}, []string{"export_interval", "between 100ms and 10m"}},
		"interval over an hour":          {map[string]any{"export_interval": "2h"}, []string{"export_interval", "between 100ms and 10m"}},
		"dotnet compressed by zstd":      {map[string]any{"dotnet": map[string]any{"compression_algorithms": []any{"zstd"}}}, []string{"dotnet", "compression_algorithms", "zstd"}},
		"export timeout":                 {map[string]any{"export_timeout": "5s"}, []string{"export_timeout: this key is gone", "5 seconds"}},
		"language unknown":               {map[string]any{"languages": []any{"java", "ruby"}}, []string{`languages[1]: "ruby" is not one of java, node, php, python`}},
		"languages as a block":           {map[string]any{"languages": map[string]any{"python": false, "php": true}}, []string{"languages", "write languages: [java, node, php]"}},
		"discovery zero":                 {map[string]any{"discovery_interval": "0s"}, []string{"discovery_interval", "between 100ms and 1h"}},
		"dotnet key unknown":             {map[string]any{"dotnet": map[string]any{"socket_mod": 1}}, []string{"socket_mod"}},
		"dotnet port is not a number":    {map[string]any{"dotnet": map[string]any{"endpoint": "localhost:65536"}}, []string{"dotnet", "endpoint", "host:port"}},
		"dotnet endpoint without a port": {map[string]any{"dotnet": map[string]any{"endpoint": "localhost"}}, []string{"dotnet", "endpoint", "host:port"}},
		"dotnet socket unnamed":          {map[string]any{"dotnet": map[string]any{"transport": "unix"}}, []string{"dotnet", "endpoint", "path of a socket"}},
		"dotnet transport unknown":       {map[string]any{"dotnet": map[string]any{"transport": "udp"}}, []string{"dotnet", "transport", "tcp, tcp4, tcp6, unix"}},
		"dotnet mode decimal":            {map[string]any{"dotnet": map[string]any{"socket_mode": 660}}, []string{"dotnet", "socket_mode", "1224", "octal"}},
		"dotnet mode no number":          {map[string]any{"dotnet": map[string]any{"socket_mode": "rw"}}, []string{"socket_mode", "octal"}},
		"dotnet body":                    {map[string]any{"dotnet": map[string]any{"max_request_body_size": 4096}}, []string{"dotnet.max_request_body_size: this key is gone", "1 MiB"}},
		"all faults at once": {
			map[string]any{"frequency": 0, "buffer_size": "1KiB", "export_interval": "0s", "kernel_stacks": "x"},
			[]string{"frequency", "buffer_size", "export_interval", "kernel_stacks"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := NewFactory().CreateDefaultConfig()
			err := confmap.NewFromStringMap(test.yaml).Unmarshal(&cfg)
			if err == nil {
				err = confmap.Validate(cfg)
			}
			require.Error(t, err)
			for _, want := range test.want {
				require.ErrorContains(t, err, want)
			}
		})
	}
}

func TestConfigEffectiveHasEveryKey(t *testing.T) {
	effective, err := configlog.Map(createDefaultConfig())
	require.NoError(t, err)
	for _, field := range reflect.VisibleFields(reflect.TypeFor[Config]()) {
		if key, _, _ := strings.Cut(field.Tag.Get("mapstructure"), ","); key != "" {
			require.Contains(t, effective, key)
		}
	}
	require.EqualValues(t, 97, effective["frequency"])
	require.EqualValues(t, "2%", effective["max_overhead"])
}

func TestConfigSchemaHasEveryKey(t *testing.T) {
	schema, err := confmaptest.LoadConf("config.schema.yaml")
	require.NoError(t, err)
	var check func(of reflect.Type, properties map[string]any, at string)
	check = func(of reflect.Type, properties map[string]any, at string) {
		keys := 0
		for _, field := range reflect.VisibleFields(of) {
			key := field.Tag.Get("mapstructure")
			if key == "" || field.Anonymous { // the fields of embedded structs are visited too
				continue
			}
			keys++
			property, ok := properties[key].(map[string]any)
			require.True(t, ok, "%s%s is not in the schema", at, key)
			require.NotEmpty(t, property["description"], "%s%s", at, key)
			if inner, ok := property["properties"].(map[string]any); ok && key != "dotnet" { // the block also has the keys of confighttp
				of := field.Type
				if get, optional := reflect.PointerTo(of).MethodByName("Get"); optional {
					of = get.Type.Out(0).Elem()
				}
				check(of, inner, at+key+".")
			}
			if items, ok := property["items"].(map[string]any); ok && field.Type.Elem().Kind() == reflect.Struct && key != "pprof_endpoints" { // these items also have the keys of confighttp

				check(field.Type.Elem(), items["properties"].(map[string]any), at+key+"[].")
			}
		}
		require.Len(t, properties, keys, "%s: the schema has keys that there are not", at)
	}
	check(reflect.TypeFor[Config](), schema.ToStringMap()["properties"].(map[string]any), "")
}
