// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package cputriggerprocessor

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/confmap"
	"go.opentelemetry.io/collector/confmap/confmaptest"
	"go.yaml.in/yaml/v3"
)

// load reads a configuration as the collector does: unmarshal, then validate.
func load(t *testing.T, text string) (*Config, error) {
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
	require.Len(t, cfg.Policies, 1)
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
	require.Equal(t, 10*time.Minute, cfg.UnitTTL)
	require.Equal(t, UnmatchedDrop, cfg.Unmatched)

	null, err := load(t, "policies:")
	require.NoError(t, err)
	require.Equal(t, cfg.Policies, null.Policies)
}

func TestConfigPoliciesReplaceTheDefaultOne(t *testing.T) {
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
	require.Equal(t, []string{"cpu_usage"}, cfg.monitors(), "a disabled policy's monitor is not read")
}

func TestConfigFaultsNameTheKeyAndWhatIsAllowed(t *testing.T) {
	item := func(s string) string { return "policies: [{name: p, any_of: [{" + s + "}]}]" }
	for name, c := range map[string]struct {
		yaml string
		want []string
	}{
		"unknown key":             {"tresold: 1", []string{"tresold"}},
		"unknown key of a policy": {"policies: [{name: p, treshold: 1}]", []string{"treshold"}},
		"unknown key of an item":  {item("monitor: cpu_usage, threshold: 1, average_over: 5s, release: 1"), []string{"release"}},
		"later keys are not accepted": {
			"pre_trigger: 10s", []string{"pre_trigger"},
		},
		"both windows":             {item("monitor: cpu_usage, threshold: 1, average_over: 5s, period: 5s, count: 2"), []string{"policies[0].any_of[0]", "average_over", "period"}},
		"neither window":           {item("monitor: cpu_usage, threshold: 1"), []string{"policies[0].any_of[0]", "average_over", "period with count"}},
		"count above the readings": {item("monitor: cpu_usage, threshold: 1, period: 5s, count: 6"), []string{"policies[0].any_of[0].count", "6", "1 to 5"}},
		"count without period":     {item("monitor: cpu_usage, threshold: 1, count: 2"), []string{"policies[0].any_of[0].period"}},
		"negative count":           {item("monitor: cpu_usage, threshold: 1, period: 5s, count: -1"), []string{"policies[0].any_of[0].count"}},
		"window below a second":    {item("monitor: cpu_usage, threshold: 1, average_over: 900ms"), []string{"policies[0].any_of[0].average_over", "1s", "tick"}},
		"negative window":          {item("monitor: cpu_usage, threshold: 1, average_over: -5s"), []string{"policies[0].any_of[0].average_over", "1s"}},
		"negative threshold":       {item("monitor: cpu_usage, threshold: -1, average_over: 5s"), []string{"policies[0].any_of[0].threshold", "0 or more"}},
		"missing threshold":        {item("monitor: cpu_usage, average_over: 5s"), []string{"policies[0].any_of[0].threshold", "must be set"}},
		"threshold no number":      {item("monitor: cpu_usage, threshold: .nan, average_over: 5s"), []string{"policies[0].any_of[0].threshold"}},
		"unknown monitor":          {item("monitor: cpu, threshold: 1, average_over: 5s"), []string{"policies[0].any_of[0].monitor", "cpu_usage", "cpu_utilization"}},
		"missing monitor":          {item("threshold: 1, average_over: 5s"), []string{"policies[0].any_of[0].monitor"}},
		"no item":                  {"policies: [{name: p}]", []string{"policies[0].any_of"}},
		"no policy":                {"policies: []", []string{"policies: must have at least one"}},
		"negative duration":        {"policies: [{name: p, duration: -1s, any_of: [{monitor: cpu_usage, threshold: 1, average_over: 5s}]}]", []string{"policies[0].duration"}},
		"absurd duration":          {"policies: [{name: p, duration: 1000h, any_of: [{monitor: cpu_usage, threshold: 1, average_over: 5s}]}]", []string{"policies[0].duration", "at most"}},
		"negative cooldown":        {"policies: [{name: p, cooldown: -1s, any_of: [{monitor: cpu_usage, threshold: 1, average_over: 5s}]}]", []string{"policies[0].cooldown"}},
		"absurd cooldown":          {"policies: [{name: p, cooldown: 1000h, any_of: [{monitor: cpu_usage, threshold: 1, average_over: 5s}]}]", []string{"policies[0].cooldown", "at most"}},
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
		"history too short":            {"history: 10s", []string{"history", "30s"}},
		"history negative":             {"history: -10s", []string{"history"}},
		"unit_ttl zero":                {"unit_ttl: 0s", []string{"unit_ttl", "1s"}},
		"unknown scope":                {"scope: pod", []string{"scope", "cgroup, process"}},
		"unknown unmatched":            {"unmatched: keep", []string{"unmatched", "drop, pass"}},
		"relative root_path":           {"root_path: host", []string{"root_path", "absolute"}},
		"glob that does not parse":     {"debug_units: ['ok*', '[a-']", []string{"debug_units[1]", "[a-"}},
		"no duration at all":           {"unit_ttl: soon", []string{"unit_ttl"}},
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
unit_ttl: -1s
debug_units: ['[']
policies:
  - {name: a, duration: -1s, any_of: [{monitor: nope, threshold: -2, average_over: 5s, count: 3}]}
  - {name: a, profile_types: [x], any_of: []}
`)
	require.Error(t, err)
	for _, key := range []string{
		"scope:", "unit_ttl:", "debug_units[0]:", "policies[0].duration:", "policies[0].any_of[0].monitor:",
		"policies[0].any_of[0].threshold:", "policies[0].any_of[0]:", "policies[1].name:", "policies[1].profile_types[0]:", "policies[1].any_of:",
	} {
		require.Contains(t, err.Error(), key)
	}
}

// TestConfigFaultIsSaidOnce: what is wrong only because of another fault is not
// said beside it.
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
	m, err := cfg.effective()
	require.NoError(t, err)
	for key := range strings.FieldsSeq("root_path scope collection_interval evaluation_interval history unmatched unit_ttl policies debug_units") {
		require.Contains(t, m, key)
	}
	require.Equal(t, "30s", m["history"])
	policy := m["policies"].([]any)[0].(map[string]any)
	require.Equal(t, "4h0m0s", policy["cooldown"])
	require.Equal(t, "30s", policy["any_of"].([]any)[0].(map[string]any)["average_over"])
}

// TestConfigSchemaHasEveryKey: the schema and the struct have the same keys.
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
	} {
		var want, got []string
		for i := range c.of.NumField() {
			if key := c.of.Field(i).Tag.Get("mapstructure"); key != "" {
				want = append(want, key)
			}
		}
		for key := range c.schema.(map[string]any)["properties"].(map[string]any) {
			got = append(got, key)
		}
		require.ElementsMatch(t, want, got, c.of.Name())
	}
}
