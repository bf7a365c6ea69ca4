// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"text/template"
)

// settings are the settings that differ between the runs of the collector.
type settings struct {
	Direct bool   // no queue, and no allocations
	Loads  string // a glob of the loads' cgroups
	Dir    string // the collector's own directory
	// PprofSocket is the path of the socket on which a load serves net/http/pprof.
	PprofSocket string
	Backend     int // a port, as are the next five fields
	Metrics     int
	Final       int
	Pprof       int
	Manual      int
	OTLP        int
	GoMemory    string // GOMEMLIMIT; "" leaves it unset
}

// config is the configuration of the collector. The buffers, the
// recorder, the queue and the budgets are small, so that their
// limits are reached. The gates open and close often.
var config = template.Must(template.New("config").Parse(strings.TrimLeft(`
extensions:
  hot_units:
  pprof: {endpoint: "127.0.0.1:{{.Pprof}}"}
  file_storage: {directory: "{{.Dir}}/storage", create_directory: true}

receivers:
  cpu_profiler:
    targets:
      - cgroup: {{.Loads}}
    discovery_interval: 1s
    frequency: 999
    max_overhead: 0 # or the frequency would fall until nothing is lost
    buffer_size: 256KiB
    export_interval: 1s
    off_cpu: {when: hot, min_duration: 100us, max_events_per_second: 200}
    {{- if not .Direct}}
    allocations: {when: hot, max_samples_per_minute: 120}
    {{- end}}
    pprof_endpoints:
      - {socket: "{{.PprofSocket}}", profiles: [profile, allocs, goroutine], keep_sampled: true, interval: 4s, duration: 2s, resource: {service.name: soak-pprof}}
    dotnet: {transport: unix, endpoint: "{{.Dir}}/dotnet.sock"}

processors:
  cpu_trigger:
    evaluation_interval: 1s
    min_age: 0s
    pre_trigger: 10s
    pre_trigger_memory: 2MiB
    storage: file_storage
    manual: {endpoint: "127.0.0.1:{{.Manual}}"}
    budgets: {max_concurrent_units: 2}
    policies:
      - name: busy
        match: {cgroup: "{{.Loads}}"}
        exclude: {cgroup: "*-waiting"}
        any_of:
          - {monitor: cpu_usage, threshold: 0.05, period: 3s, count: 2, release_below: 0.04}
        duration: 6s
        cooldown: 4s
      - name: cpu_alone
        match: {cgroup: "*-waiting"}
        any_of:
          - {monitor: cpu_usage, threshold: 0.02, average_over: 3s}
        profile_types: [cpu]
        duration: 5s
        cooldown: 3s
      - name: trying
        match: {cgroup: "*-churning"}
        dry_run: true
        any_of:
          - {monitor: cpu_usage, threshold: 0.01, average_over: 3s}
        duration: 5s
        cooldown: 1s

exporters:
  otlp_grpc:
    endpoint: "127.0.0.1:{{.Backend}}"
    tls: {insecure: true}
    {{- if .Direct}}
    timeout: 10s
    retry_on_failure: {enabled: false}
    sending_queue: {enabled: false}
    {{- else}}
    timeout: 5s
    retry_on_failure: {initial_interval: 200ms, max_interval: 2s, max_elapsed_time: 0s}
    sending_queue:
      storage: file_storage
      sizer: bytes
      queue_size: 600000
      num_consumers: 2
      batch: {sizer: bytes, flush_timeout: 200ms, min_size: 50000, max_size: 3000000}
    {{- end}}

service:
  extensions: [hot_units, pprof, file_storage]
  telemetry:
    logs: {encoding: json, sampling: {enabled: false}}
    metrics:
      level: detailed
      readers:
        - pull: {exporter: {prometheus: {host: 127.0.0.1, port: {{.Metrics}}}}}
        # What the collector counts while it shuts down can no longer be scraped: it
        # pushes it in the end.
        - periodic: {interval: 3600000, exporter: {otlp: {protocol: grpc, endpoint: "http://127.0.0.1:{{.Final}}", insecure: true}}}
  pipelines:
    profiles:
      receivers: [cpu_profiler]
      processors: [cpu_trigger]
      exporters: [otlp_grpc]
`, "\n")))

func (s settings) yaml(config *template.Template) (string, error) {
	var text strings.Builder
	err := config.Execute(&text, s)
	return text.String(), err
}
