// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package cputriggerprocessor

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/confmap"
	"go.opentelemetry.io/collector/confmap/confmaptest"
	"go.yaml.in/yaml/v3"

	"github.com/hotprofile/hotprofile/internal/configlog"
	"github.com/hotprofile/hotprofile/internal/identify"
	"github.com/hotprofile/hotprofile/internal/monitor"
	"github.com/hotprofile/hotprofile/internal/trigger"
	"github.com/hotprofile/hotprofile/internal/trigger/budget"
	"github.com/hotprofile/hotprofile/processor/cputriggerprocessor/internal/requests"
	"github.com/hotprofile/hotprofile/processor/cputriggerprocessor/internal/units"
)

// load unmarshals and validates a configuration in the same way as the collector.
func load(t testing.TB, text string) (*Config, error) {
	t.Helper()
	var m map[string]any
	require.NoError(t, yaml.Unmarshal([]byte(text), &m))
	cfg := NewFactory().CreateDefaultConfig().(*Config)
	if err := confmap.NewFromStringMap(m).Unmarshal(cfg); err != nil {
		return nil, err
	}
	return cfg, confmap.Validate(cfg)
}

func TestConfigDefaultsAreAValidProduct(t *testing.T) {
	cfg, err := load(t, "")
	require.NoError(t, err)
	require.NoError(t, componenttest.CheckConfigStruct(cfg))
	require.Len(t, cfg.Policies, 3)
	third := cfg.Policies[2]
	require.Equal(t, "thread", third.Name)
	require.Equal(t, "cpu_busiest_thread", third.AnyOf[0].Monitor)
	require.Equal(t, 90.0, *third.AnyOf[0].Threshold)
	p := cfg.Policies[0]
	require.Equal(t, "cpu", p.Name)
	require.True(t, p.Enabled)
	require.Equal(t, 30*time.Second, p.Duration)
	require.Equal(t, 4*time.Hour, p.Cooldown)
	require.Len(t, p.AnyOf, 1)
	require.Equal(t, "cpu_utilization", p.AnyOf[0].Monitor)
	require.Equal(t, 80.0, *p.AnyOf[0].Threshold)
	require.Equal(t, 30*time.Second, p.AnyOf[0].AverageOver)
	require.Equal(t, 5*time.Second, cfg.EvaluationInterval)
	require.Equal(t, time.Second, cfg.CollectionInterval)
	require.Equal(t, UnmatchedDrop, cfg.Unmatched)
	require.Empty(t, cfg.KeepProcessAttributes)

	second := cfg.Policies[1]
	require.Equal(t, "throttled", second.Name)
	require.True(t, second.Enabled)
	require.Equal(t, 30*time.Second, second.Duration)
	require.Equal(t, 4*time.Hour, second.Cooldown)
	require.Len(t, second.AnyOf, 1)
	require.Equal(t, "cpu_throttling", second.AnyOf[0].Monitor)
	require.Equal(t, 25.0, *second.AnyOf[0].Threshold)
	require.Equal(t, 30*time.Second, second.AnyOf[0].AverageOver)

	require.Equal(t, time.Minute, cfg.MinAge)
	require.Equal(t, CooldownByUnit, cfg.CooldownBy)
	require.Nil(t, cfg.Storage)
	require.Equal(t, 10*time.Second, cfg.PreTrigger)
	require.Equal(t, "32MiB", cfg.PreTriggerMemory.String())
	require.Nil(t, cfg.manual())
	require.Equal(t, budget.Limits{MaxConcurrentUnits: 10}, cfg.Budgets)

	null, err := load(t, "policies:")
	require.NoError(t, err)
	require.Equal(t, cfg.Policies, null.Policies)
}

func TestConfigPoliciesReplaceTheDefaultOnes(t *testing.T) {
	cfg, err := load(t, `
policies:
  - any_of: [{monitor: cpu_usage, threshold: 1.5, period: 10s, count: 8}]
  - {name: second, enabled: false, cooldown: 0s, any_of: [{monitor: cpu_utilization, threshold: 0, average_over: 1s}], profile_types: [cpu, samples/count]}
`)
	require.NoError(t, err)
	require.Len(t, cfg.Policies, 2)
	require.Equal(t, "policy-1", cfg.Policies[0].Name)
	require.Len(t, cfg.Policies[0].AnyOf, 1)
	require.Equal(t, 8, cfg.Policies[0].AnyOf[0].Count)
	require.Zero(t, cfg.Policies[0].AnyOf[0].AverageOver)
	require.Equal(t, 4*time.Hour, cfg.Policies[0].Cooldown)
	require.True(t, cfg.Policies[0].Enabled)
	require.False(t, cfg.Policies[1].Enabled)
	require.Zero(t, cfg.Policies[1].Cooldown)
	require.Equal(t, []string{"cpu_usage"}, cfg.readings().Names, "a disabled policy's monitor is not read")
}

func TestConfigConditionWithoutAWindowAveragesOver30s(t *testing.T) {
	cfg, err := load(t, `policies: [{any_of: [{monitor: cpu_usage, threshold: 1, release_below: 0.5}, {monitor: cpu_usage, threshold: 2, period: 5s, count: 3}]}]`)
	require.NoError(t, err)
	require.Equal(t, 30*time.Second, cfg.Policies[0].AnyOf[0].AverageOver)
	require.Zero(t, cfg.Policies[0].AnyOf[1].AverageOver)
}

func TestConfigFaultsNameTheKeyAndWhatIsAllowed(t *testing.T) {
	item := func(s string) string { return "policies: [{name: p, any_of: [{" + s + "}]}]" }
	for name, c := range map[string]struct {
		yaml string
		want []string
	}{
		"unknown key":               {"tresold: 1", []string{"tresold"}},
		"unknown key of a policy":   {"policies: [{name: p, treshold: 1}]", []string{"treshold"}},
		"unknown key of an item":    {item("monitor: cpu_usage, threshold: 1, average_over: 5s, release: 1"), []string{"release"}},
		"a duration without a unit": {"policies: [{name: p, duration: 30}]", []string{"policies[0].duration: 30 has no unit", "30s"}},
		"unknown key of budgets":    {"budgets: {max_units: 1}", []string{"max_units"}},
		"unknown key of baseline":   {"policies: [{name: p, baseline: {each: 1h}}]", []string{"each"}},
		"unknown key of manual":     {"manual: {endpoints: 'localhost:0'}", []string{"endpoints"}},
		"both windows":              {item("monitor: cpu_usage, threshold: 1, average_over: 5s, period: 5s, count: 2"), []string{"policies[0].any_of[0]", "average_over", "period"}},
		"neither window":            {item("monitor: cpu_usage, threshold: 1, average_over: 0s"), []string{"policies[0].any_of[0]", "average_over", "period with count"}},
		"count above the readings":  {item("monitor: cpu_usage, threshold: 1, period: 5s, count: 6"), []string{"policies[0].any_of[0].count", "6", "1 to 5"}},
		"count without period":      {item("monitor: cpu_usage, threshold: 1, count: 2"), []string{"policies[0].any_of[0].period"}},
		"negative count":            {item("monitor: cpu_usage, threshold: 1, period: 5s, count: -1"), []string{"policies[0].any_of[0].count"}},
		"window below a second":     {item("monitor: cpu_usage, threshold: 1, average_over: 900ms"), []string{"policies[0].any_of[0].average_over", "1s", "tick"}},
		"negative window":           {item("monitor: cpu_usage, threshold: 1, average_over: -5s"), []string{"policies[0].any_of[0].average_over", "1s"}},
		"negative threshold":        {item("monitor: cpu_usage, threshold: -1, average_over: 5s"), []string{"policies[0].any_of[0].threshold", "0 or more"}},
		"missing threshold":         {item("monitor: cpu_usage, average_over: 5s"), []string{"policies[0].any_of[0].threshold", "must be set"}},
		"threshold no number":       {item("monitor: cpu_usage, threshold: .nan, average_over: 5s"), []string{"policies[0].any_of[0].threshold"}},
		"unknown monitor":           {item("monitor: cpu, threshold: 1, average_over: 5s"), []string{"policies[0].any_of[0].monitor", "cpu_usage", "cpu_utilization"}},
		"missing monitor":           {item("threshold: 1, average_over: 5s"), []string{"policies[0].any_of[0].monitor"}},
		"no item":                   {"policies: [{name: p}]", []string{"policies[0].any_of"}},
		"no policy":                 {"policies: []", []string{"policies: must have at least one"}},
		"negative duration":         {"policies: [{name: p, duration: -1s, any_of: [{monitor: cpu_usage, threshold: 1, average_over: 5s}]}]", []string{"policies[0].duration"}},
		"absurd duration":           {"policies: [{name: p, duration: 1000h, any_of: [{monitor: cpu_usage, threshold: 1, average_over: 5s}]}]", []string{"policies[0].duration", "at most"}},
		"negative cooldown":         {"policies: [{name: p, cooldown: -1s, any_of: [{monitor: cpu_usage, threshold: 1, average_over: 5s}]}]", []string{"policies[0].cooldown"}},
		"absurd cooldown":           {"policies: [{name: p, cooldown: 1000h, any_of: [{monitor: cpu_usage, threshold: 1, average_over: 5s}]}]", []string{"policies[0].cooldown", "at most"}},
		"name twice": {
			"policies: [{name: p, any_of: [{monitor: cpu_usage, threshold: 1, average_over: 5s}]}, {name: p, any_of: [{monitor: cpu_usage, threshold: 1, average_over: 5s}]}]",
			[]string{"policies[1].name"},
		},
		"name with a comma":            {"policies: [{name: 'a,b', any_of: [{monitor: cpu_usage, threshold: 1, average_over: 5s}]}]", []string{"policies[0].name", "comma"}},
		"unknown profile type":         {"policies: [{name: p, profile_types: [heap], any_of: [{monitor: cpu_usage, threshold: 1, average_over: 5s}]}]", []string{"policies[0].profile_types[0]", "off_cpu"}},
		"profile type without unit":    {"policies: [{name: p, profile_types: [a/], any_of: [{monitor: cpu_usage, threshold: 1, average_over: 5s}]}]", []string{"policies[0].profile_types[0]"}},
		"collection_interval zero":     {"collection_interval: 0s", []string{"collection_interval", "100ms"}},
		"collection_interval absurd":   {"collection_interval: 24h", []string{"collection_interval", "1m"}},
		"evaluation_interval negative": {"evaluation_interval: -1s", []string{"evaluation_interval", "100ms"}},
		"unknown scope":                {"scope: pod", []string{"scope", "cgroup, process"}},
		"unknown unmatched":            {"unmatched: keep", []string{"unmatched", "drop, pass"}},
		"unknown process attribute":    {"keep_process_attributes: [process.pid, process.executable.name]", []string{"keep_process_attributes[1]", "process.executable.name", "process.command_line, process.creation.time"}},
		"relative root_path":           {"root_path: host", []string{"root_path", "absolute"}},
		"min_age negative":             {"min_age: -1s", []string{"min_age", "24h"}},
		"pre_trigger negative":         {"pre_trigger: -1s", []string{"pre_trigger", "10m"}},
		"pre_trigger absurd":           {"pre_trigger: 1h", []string{"pre_trigger", "10m"}},
		"no memory for the recorder":   {"pre_trigger_memory: 0", []string{"pre_trigger_memory", "64KiB", "pre_trigger: 0s"}},
		"memory of no known unit":      {"pre_trigger_memory: 32 bananas", []string{"pre_trigger_memory", "bananas"}},
		"unknown cooldown_by":          {"cooldown_by: pod", []string{"cooldown_by", "unit, service"}},
		"storage is not an id":         {"storage: '/'", []string{"storage"}},
		"negative budgets": {
			"budgets: {max_concurrent_units: -1, max_triggers_per_hour: -1, max_triggers_per_service_per_hour: -1, max_bytes_per_hour: -1}",
			[]string{"budgets.max_concurrent_units", "budgets.max_triggers_per_hour", "budgets.max_triggers_per_service_per_hour", "budgets.max_bytes_per_hour", "0"},
		},
		"release above the threshold":            {item("monitor: cpu_usage, threshold: 1, average_over: 5s, release_below: 2"), []string{"policies[0].any_of[0].release_below", "threshold"}},
		"negative release":                       {item("monitor: cpu_usage, threshold: 1, average_over: 5s, release_below: -2"), []string{"policies[0].any_of[0].release_below"}},
		"monitor of another scope":               {"{scope: process, " + item("monitor: cpu_pressure, threshold: 1, average_over: 5s") + "}", []string{"policies[0].any_of[0].monitor", "cpu_pressure", "scope: process"}},
		"pressure of another scope":              {"{scope: process, " + item("monitor: io_pressure, threshold: 1, average_over: 5s") + "}", []string{"policies[0].any_of[0].monitor", "io_pressure", "scope: process"}},
		"unknown event":                          {item("monitor: memory_events, events: [max, failcnt], threshold: 1"), []string{"policies[0].any_of[0].events[1]", "failcnt", "high, max, oom, oom_kill"}},
		"events of another monitor":              {item("monitor: memory_pressure, events: [max], threshold: 1"), []string{"policies[0].any_of[0].events", "memory_events"}},
		"parameters in the name":                 {item("monitor: 'memory_events(max)', threshold: 1"), []string{"policies[0].any_of[0].monitor", "memory_events(max)"}},
		"percentile of 100":                      {item("monitor: http_response_time, percentile: 100, threshold: 1"), []string{"policies[0].any_of[0].percentile", "below 100"}},
		"percentile of another monitor":          {item("monitor: http_error_rate, percentile: 95, threshold: 1"), []string{"policies[0].any_of[0].percentile", "http_response_time"}},
		"uri of another monitor":                 {item("monitor: cpu_usage, uri: {list: [/a]}, threshold: 1"), []string{"policies[0].any_of[0].uri"}},
		"uri that is no glob":                    {item("monitor: http_error_rate, uri: {list: ['/a', '[']}, threshold: 1"), []string{"policies[0].any_of[0].uri.list[1]"}},
		"uri that is no expression":              {item("monitor: http_error_rate, uri: {regex: '('}, threshold: 1"), []string{"policies[0].any_of[0].uri.regex"}},
		"uri with an unknown key":                {item("monitor: http_error_rate, uri: {glob: a}, threshold: 1"), []string{"glob"}},
		"no such status":                         {item("monitor: http_error_rate, statuses: [5xx, 6xx], threshold: 1"), []string{"policies[0].any_of[0].statuses[1]", "6xx"}},
		"no such code":                           {item("monitor: rpc_error_rate, statuses: [5xx], threshold: 1"), []string{"policies[0].any_of[0].statuses[0]", "UNAVAILABLE"}},
		"statuses of a time":                     {item("monitor: http_response_time, statuses: [5xx], threshold: 1"), []string{"policies[0].any_of[0].statuses", "http_error_rate"}},
		"min_requests of a rate":                 {item("monitor: http_request_rate, min_requests: 1, threshold: 1"), []string{"policies[0].any_of[0].min_requests"}},
		"min_requests below zero":                {item("monitor: http_error_rate, min_requests: -1, threshold: 1"), []string{"policies[0].any_of[0].min_requests"}},
		"metric without a name":                  {item("monitor: metric, threshold: 1"), []string{"policies[0].any_of[0].name"}},
		"unknown statistic":                      {item("monitor: metric, name: a, statistic: max, threshold: 1"), []string{"policies[0].any_of[0].statistic", "last, rate, mean, percentile"}},
		"name of a monitor without one":          {item("monitor: cpu_usage, name: a, threshold: 1"), []string{"policies[0].any_of[0].name"}},
		"parameters in the name of a monitor":    {item("monitor: 'http_error_rate(min=20 over=30s)', threshold: 1"), []string{"policies[0].any_of[0].monitor", "http_error_rate"}},
		"monitor that only guards":               {item("monitor: cpu_host_share, threshold: 1, average_over: 5s"), []string{"policies[0].any_of[0].monitor", "cpu_host_share"}},
		"match is not a glob":                    {"policies: [{name: p, match: {service.name: '[a-'}, any_of: [{monitor: cpu_usage, threshold: 1, average_over: 5s}]}]", []string{"policies[0].match.service.name", "[a-"}},
		"exclude that is no glob":                {"policies: [{name: p, exclude: {cgroup: '{a'}, any_of: [{monitor: cpu_usage, threshold: 1, average_over: 5s}]}]", []string{"policies[0].exclude.cgroup", "{a"}},
		"empty glob":                             {"policies: [{name: p, match: {service.name: ''}, any_of: [{monitor: cpu_usage, threshold: 1, average_over: 5s}]}]", []string{"policies[0].match.service.name"}},
		"baseline too often":                     {"policies: [{name: p, baseline: {every: 1s}, any_of: [{monitor: cpu_usage, threshold: 1, average_over: 5s}]}]", []string{"policies[0].baseline.every", "1m"}},
		"baseline as long as every":              {"policies: [{name: p, baseline: {every: 1m, duration: 1m}, any_of: [{monitor: cpu_usage, threshold: 1, average_over: 5s}]}]", []string{"policies[0].baseline.duration", "less than every"}},
		"a policy with the manual policy's name": {"policies: [{name: manual, any_of: [{monitor: cpu_usage, threshold: 1, average_over: 5s}]}]", []string{"policies[0].name", "by hand"}},
		"manual without an endpoint":             {"manual: {transport: unix}", []string{"manual.endpoint"}},
		"unknown key of alerts":                  {"manual: {endpoint: 'localhost:4041', alerts: {durations: 1m}}", []string{"durations"}},
		"alerts for too short":                   {"manual: {endpoint: 'localhost:4041', alerts: {duration: 1ms}}", []string{"manual.alerts.duration", "1s"}},
		"alerts that name no unit":               {"manual: {endpoint: 'localhost:4041', alerts: {labels: {ns: k8s.namespace.name}}}", []string{"manual.alerts.labels", "container.id"}},
		"manual over datagrams":                  {"manual: {endpoint: 'localhost:4041', transport: udp}", []string{"manual.transport", "tcp, tcp4, tcp6, unix"}},
		"disabled policy":                        {"policies: [{name: p, enabled: false, any_of: [{monitor: nope, threshold: 1, average_over: 5s}]}]", []string{"policies[0].any_of[0].monitor"}},
		"no duration at all":                     {"min_age: soon", []string{"min_age"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := load(t, c.yaml)
			require.Error(t, err)
			for _, w := range c.want {
				require.Contains(t, err.Error(), w)
			}
		})
	}
}

func TestConfigFaultsAreReportedAllAtOnce(t *testing.T) {
	_, err := load(t, `
scope: pod
min_age: -1s
policies:
  - {name: a, duration: -1s, any_of: [{monitor: nope, threshold: -2, average_over: 5s, count: 3}]}
  - {name: a, profile_types: [x], any_of: []}
`)
	require.Error(t, err)
	for _, key := range []string{
		"scope:", "min_age:", "policies[0].duration:", "policies[0].any_of[0].monitor:",
		"policies[0].any_of[0].threshold:", "policies[0].any_of[0]:", "policies[1].name:", "policies[1].profile_types[0]:", "policies[1].any_of:",
	} {
		require.Contains(t, err.Error(), key)
	}
}

// TestMonitorsOfRequestsHaveTheirParametersInTheirNames checks that conditions with equal
// parameters share a monitor. It also checks that cpu_usage is added if all monitors are
// monitors of requests. Otherwise the end of a unit would not be noticed.
func TestMonitorsOfRequestsHaveTheirParametersInTheirNames(t *testing.T) {
	cfg, err := load(t, `
policies:
  - name: slow
    any_of:
      - {monitor: http_response_time, threshold: 500}
      - {monitor: http_response_time, percentile: 95, min_requests: 20, threshold: 300, average_over: 30s}
      - {monitor: http_error_rate, threshold: 5, statuses: [4xx, 503], uri: {list: ["/b", "/a"], regex: "^/c"}, method: GET, period: 10s, count: 3}
      - {monitor: metric, name: jvm.gc.duration, attributes: {jvm.gc.action: end of major GC}, percentile: 99, threshold: 0.5}
      - {monitor: metric, name: queue.length, threshold: 1000}
`)
	require.NoError(t, err)
	slow := "http_response_time(percentile=95 min=20 over=30s)"
	require.Equal(t, []string{
		"cpu_usage", slow,
		`http_error_rate(uri=/a|/b regex="^/c" method=GET statuses=4xx|503 min=20 over=10s each=reading)`,
		`metric(name=jvm.gc.duration jvm.gc.action="end of major GC" statistic=percentile percentile=99 min=0 over=30s)`,
		"metric(name=queue.length statistic=last)",
	}, cfg.readings().Names)
	require.Equal(t, 300.0, cfg.readings().Least[slow])
	require.Equal(t, 150.0, cfg.readings().Warm[1])
	require.Equal(t, 900.0, cfg.readings().Warm[4], "a gauge may stay where it is")
}

// TestEventsOfMemoryAreMonitorsOfTheirOwn checks that each selection of events is a separate
// monitor.
func TestEventsOfMemoryAreMonitorsOfTheirOwn(t *testing.T) {
	cfg, err := load(t, `
policies:
  - name: memory
    any_of:
      - {monitor: memory_events, threshold: 0}
      - {monitor: memory_events, events: [oom_kill, oom], threshold: 2}
      - {monitor: memory_events, events: [max, high], threshold: 10}
      - {monitor: memory_events, events: [high, max, max], threshold: 5, period: 10s, count: 3}
      - {monitor: memory_pressure, threshold: 10}
  - {name: off, enabled: false, any_of: [{monitor: memory_events, events: [oom], threshold: 1}]}
`)
	require.NoError(t, err)
	require.Equal(t, []string{"memory_events", "memory_pressure", "memory_events(high,max)"}, cfg.readings().Names)
	require.Equal(t, map[string]float64{"memory_events": 0, "memory_events(high,max)": 5, "memory_pressure": 10}, cfg.readings().Least)
	require.Equal(t, []float64{math.SmallestNonzeroFloat64, 5, 2.5}, cfg.readings().Warm, "without an event a unit is not warm")
}

// TestConfigFaultIsSaidOnce checks that one fault yields one error. Errors that only
// follow from another fault are not reported.
func TestConfigFaultIsSaidOnce(t *testing.T) {
	for _, interval := range []string{"1ns", "0s", "-1s", "24h"} {
		_, err := load(t, "{collection_interval: "+interval+", policies: [{name: p, any_of: [{monitor: cpu_usage, threshold: 1, period: 10s, count: 8}]}]}")
		require.ErrorContains(t, err, "collection_interval")
		require.NotContains(t, err.Error(), "\n", interval)
	}
}

func TestConfigEffectiveHasEveryValue(t *testing.T) {
	cfg, err := load(t, "")
	require.NoError(t, err)
	m, err := configlog.Map(cfg)
	require.NoError(t, err)
	for _, key := range keysOf(reflect.TypeFor[Config]()) {
		require.Contains(t, m, key)
	}
	require.Equal(t, "32MiB", m["pre_trigger_memory"])
	require.Equal(t, "1m0s", m["min_age"])
	require.EqualValues(t, 10, m["budgets"].(map[string]any)["max_concurrent_units"])
	policy := m["policies"].([]any)[0].(map[string]any)
	require.Equal(t, "4h0m0s", policy["cooldown"])
	require.Equal(t, "30s", policy["any_of"].([]any)[0].(map[string]any)["average_over"])
}

func keysOf(of reflect.Type) (keys []string) {
	for i := range of.NumField() {
		switch key := of.Field(i).Tag.Get("mapstructure"); key {
		case "", "-":
		case ",squash":
			keys = append(keys, keysOf(of.Field(i).Type)...)
		default:
			keys = append(keys, key)
		}
	}
	return keys
}

// TestConfigSchemaHasEveryMonitor checks that the schema lists exactly the monitors that
// policies may name.
func TestConfigSchemaHasEveryMonitor(t *testing.T) {
	conf, err := confmaptest.LoadConf("config.schema.yaml")
	require.NoError(t, err)
	item := conf.ToStringMap()["$defs"].(map[string]any)["item"].(map[string]any)
	got := item["properties"].(map[string]any)["monitor"].(map[string]any)["enum"]
	var want []any
	for _, k := range monitor.Kinds() {
		if !k.Hidden {
			want = append(want, k.Name)
		}
	}
	for _, name := range requests.Monitors() {
		want = append(want, name)
	}
	require.ElementsMatch(t, want, got)
}

// TestConfigTakesEveryKey checks that the value of each key reaches its field.
func TestConfigTakesEveryKey(t *testing.T) {
	cfg, err := load(t, `
min_age: 0s
cooldown_by: service
storage: file_storage/cooldowns
pre_trigger: 20s
pre_trigger_memory: 64 MiB
policies:
  - name: web
    match: {k8s.namespace.name: "{prod,stage}", cgroup: /kubepods*}
    exclude: {service.name: canary-*}
    any_of: [{monitor: cpu_bottleneck, threshold: 95, average_over: 20s, release_below: 50}]
    dry_run: true
    baseline: {every: 2h}
  - {name: again, baseline: {duration: 5s}, any_of: [{monitor: thread_count, threshold: 500, period: 10s, count: 8}]}
  - {name: off, baseline: {}, match: {}, any_of: [{monitor: system_load, threshold: 8, average_over: 1m}]}
manual: {endpoint: /run/hotprofile.sock, transport: unix}
budgets: {max_concurrent_units: 0, max_triggers_per_hour: 60, max_triggers_per_service_per_hour: 4, max_bytes_per_hour: 256MiB}
`)
	require.NoError(t, err)
	require.Equal(t, "file_storage/cooldowns", cfg.Storage.String())
	require.Equal(t, "/run/hotprofile.sock", cfg.manual().HTTP.NetAddr.Endpoint)
	require.Equal(t, map[string]string{"k8s.namespace.name": "{prod,stage}", "cgroup": "/kubepods*"}, cfg.Policies[0].Match)
	require.Equal(t, map[string]string{"service.name": "canary-*"}, cfg.Policies[0].Exclude)
	require.Equal(t, BaselineConfig{Every: 2 * time.Hour, Duration: 10 * time.Second}, cfg.Policies[0].Baseline)
	require.Equal(t, BaselineConfig{Every: time.Hour, Duration: 5 * time.Second}, cfg.Policies[1].Baseline)
	require.Zero(t, cfg.Policies[2].Baseline)
	require.Equal(t, 30*time.Second, cfg.manualDuration())
	require.Equal(t, []string{"cpu_bottleneck", "cpu_host_share", "system_load", "thread_count"}, cfg.readings().Names, "with the guard of what is the same for all")
	require.Equal(t, map[string]float64{"cpu_bottleneck": 95, "system_load": 8, "thread_count": 500}, cfg.readings().Least)

	core := cfg.trigger(cfg.enabled())
	require.Zero(t, core.MinAge)
	require.True(t, core.CooldownByService)
	require.Equal(t, 20*time.Second, core.PreTrigger)
	require.Equal(t, budget.Limits{MaxTriggersPerHour: 60, MaxTriggersPerServicePerHour: 4, MaxBytesPerHour: 256 << 20}, core.Budgets)
	require.True(t, core.Policies[0].DryRun)
	require.Equal(t, 50.0, *core.Policies[0].Conditions[0].ReleaseBelow)
	require.Equal(t, trigger.Baseline{Every: 2 * time.Hour, Duration: 10 * time.Second}, core.Policies[0].Baseline)
	require.EqualValues(t, 64<<20, cfg.PreTriggerMemory)

	m, err := configlog.Map(cfg)
	require.NoError(t, err)
	require.Equal(t, "256MiB", m["budgets"].(map[string]any)["max_bytes_per_hour"])
	require.Equal(t, "file_storage/cooldowns", m["storage"])
}

// TestConfigReachesTheRouterAndTheSelectors checks the keys about profiles, which only the
// packages of the router and of the units test further.
func TestConfigReachesTheRouterAndTheSelectors(t *testing.T) {
	r := newRig(t, `
scope: process
unmatched: pass
keep_process_attributes: [process.pid]
resource_attributes: [hotprofile.trigger.id]
policies:
  - {name: cpu, match: {service.name: checkout}, exclude: {cgroup: /system.slice}, any_of: [{monitor: cpu_usage, threshold: 1}]}
  - {name: off, enabled: false, match: {service.name: cart}, any_of: [{monitor: cpu_usage, threshold: 1}]}
`)
	require.Equal(t, identify.ScopeProcess, r.p.router.Scope)
	require.True(t, r.p.router.PassUnmatched)
	require.Equal(t, []string{"hotprofile.trigger.id"}, r.p.router.OnResource)
	require.NotContains(t, r.p.router.Remove, "process.pid")
	require.Contains(t, r.p.router.Remove, "process.command")
	require.Equal(t, []units.PolicyGlobs{{
		Policy: "cpu", Match: map[string]string{"service.name": "checkout"}, Exclude: map[string]string{"cgroup": "/system.slice"},
	}}, r.p.cfg.globs())
}

func TestConfigSaysWhatReplacesKeysThatAreGone(t *testing.T) {
	for key, instead := range goneKeys {
		_, err := load(t, strconv.Quote(key)+": 1")
		require.ErrorContains(t, err, strings.ReplaceAll(key, "::", ".")+": this key is gone, remove it: "+instead)
	}
}

func TestConfigManualIsOffWithoutAnEndpoint(t *testing.T) {
	for _, yaml := range []string{"", "manual:", "manual: {}", "manual: {endpoint: ''}"} {
		cfg, err := load(t, yaml)
		require.NoError(t, err, yaml)
		require.Nil(t, cfg.manual(), yaml)
	}
}

func TestConfigHasAHundredPolicies(t *testing.T) {
	var b strings.Builder
	b.WriteString("policies:\n")
	for i := range 100 {
		fmt.Fprintf(&b, "  - {name: p%d, match: {service.name: s%d}, any_of: [{monitor: cpu_usage, threshold: %d, average_over: %ds}]}\n", i, i, i, i+1)
	}
	cfg, err := load(t, b.String())
	require.NoError(t, err)
	require.Len(t, cfg.Policies, 100)
}

// TestConfigScopesAndDefaults checks that the default policies are valid for both scopes.
func TestConfigScopesAndDefaults(t *testing.T) {
	for _, scope := range []string{"cgroup", "process"} {
		_, err := load(t, "scope: "+scope)
		require.NoError(t, err)
	}
}

// TestConfigSchemaHasEveryKey checks that the schema and the struct have the same keys.
func TestConfigSchemaHasEveryKey(t *testing.T) {
	conf, err := confmaptest.LoadConf("config.schema.yaml")
	require.NoError(t, err)
	schema := conf.ToStringMap()
	defs := schema["$defs"].(map[string]any)
	for _, c := range []struct {
		of     reflect.Type
		schema any
	}{
		{reflect.TypeFor[Config](), schema},
		{reflect.TypeFor[PolicyConfig](), defs["policy"]},
		{reflect.TypeFor[ItemConfig](), defs["item"]},
		{reflect.TypeFor[requests.URI](), defs["uri"]},
		{reflect.TypeFor[BaselineConfig](), defs["baseline"]},
		{reflect.TypeFor[budget.Limits](), defs["budgets"]},
	} {
		want, got := keysOf(c.of), []string(nil)
		for key := range c.schema.(map[string]any)["properties"].(map[string]any) {
			got = append(got, key)
		}
		require.ElementsMatch(t, want, got, c.of.Name())
	}
}

// TestReadmeNamesEveryKeyAndMonitor checks that the README mentions each key
// and each monitor.
func TestReadmeNamesEveryKeyAndMonitor(t *testing.T) {
	readme, err := os.ReadFile("README.md")
	require.NoError(t, err)
	for _, of := range []reflect.Type{
		reflect.TypeFor[Config](), reflect.TypeFor[PolicyConfig](), reflect.TypeFor[ItemConfig](),
		reflect.TypeFor[requests.URI](), reflect.TypeFor[BaselineConfig](), reflect.TypeFor[budget.Limits](),
	} {
		for _, key := range keysOf(of) {
			require.Contains(t, string(readme), "`"+key+"`", of.Name())
		}
	}
	for _, k := range monitor.Kinds() {
		require.Contains(t, string(readme), "`"+k.Name+"`")
	}
	for _, name := range requests.Monitors() {
		require.Contains(t, string(readme), "`"+name+"`")
	}
}

// TestReadmesExamplesAreValid loads the examples of the README without changes. At least
// one example must define a policy.
func TestReadmesExamplesAreValid(t *testing.T) {
	readme, err := os.ReadFile("README.md")
	require.NoError(t, err)
	examples := strings.Split(string(readme), "```yaml\nprocessors:\n  cpu_trigger:\n")[1:]
	require.GreaterOrEqual(t, len(examples), 2)
	own := 0
	for _, example := range examples {
		example, _, ok := strings.Cut(example, "```")
		require.True(t, ok)
		cfg, err := load(t, example)
		require.NoError(t, err)
		if strings.Contains(example, "policies:") {
			require.NotEmpty(t, cfg.Policies[0].Match)
			own++
		}
	}
	require.Positive(t, own)
}

// TestShippedConfigsAreValid checks the files in config/ as if no environment
// variable were set.
func TestShippedConfigsAreValid(t *testing.T) {
	files, err := filepath.Glob("../../config/*.yaml")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	fromEnv := regexp.MustCompile(`\$\{env:\w+(?::-([^}]*))?\}`)
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		var whole struct {
			Processors map[string]yaml.Node `yaml:"processors"`
		}
		require.NoError(t, yaml.Unmarshal(fromEnv.ReplaceAll(text, []byte("$1")), &whole), file)
		ours, ok := whole.Processors["cpu_trigger"]
		if !ok {
			continue
		}
		block, err := yaml.Marshal(&ours)
		require.NoError(t, err)
		// YAML treats a quoted default as text, but the collector treats it as a number.
		cfg, err := load(t, regexp.MustCompile(`"(\d+)"`).ReplaceAllString(string(block), "$1"))
		require.NoError(t, err, file)
		require.NotEmpty(t, cfg.enabled(), file)
	}
}

// TestExampleOfRequestsIsValid checks the first YAML example of docs/requests.md.
func TestExampleOfRequestsIsValid(t *testing.T) {
	page, err := os.ReadFile("../../docs/requests.md")
	require.NoError(t, err)
	_, example, ok := strings.Cut(string(page), "```yaml\n")
	require.True(t, ok)
	example, _, ok = strings.Cut(example, "```")
	require.True(t, ok)
	var whole struct {
		Processors map[string]yaml.Node `yaml:"processors"`
	}
	require.NoError(t, yaml.Unmarshal([]byte(example), &whole))
	ours := whole.Processors["cpu_trigger"]
	block, err := yaml.Marshal(&ours)
	require.NoError(t, err)
	cfg, err := load(t, string(block))
	require.NoError(t, err)
	require.Len(t, cfg.conditions(), 5)
}
