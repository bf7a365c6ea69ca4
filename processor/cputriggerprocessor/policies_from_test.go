// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package cputriggerprocessor

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/confmap"
	"go.yaml.in/yaml/v3"
)

// loaded returns the default configuration with the policies of a document.
func loaded(t testing.TB, document string) (*Config, error) {
	t.Helper()
	return createDefaultConfig().withPolicies([]byte(document))
}

func TestPoliciesOfADocumentAreThoseOfAConfiguration(t *testing.T) {
	const list = `
- name: shop
  match: {k8s.namespace.name: shop, service.name: "{cart,checkout}*"}
  exclude: {cgroup: /kubepods/besteffort}
  any_of:
    - {monitor: cpu_utilization, threshold: 80, release_below: 40}
    - {monitor: cpu_usage, threshold: 4, period: 10s, count: 8}
  profile_types: [cpu]
  duration: 1m
  cooldown: 0s
  baseline: {every: 6h}
- enabled: false
  dry_run: true
  any_of: [{monitor: cpu_throttling, threshold: 10}]
`
	want, err := load(t, "policies:\n"+strings.ReplaceAll(list, "\n", "\n  "))
	require.NoError(t, err)
	got, err := loaded(t, list)
	require.NoError(t, err)
	require.Equal(t, want, got)
	require.Equal(t, "policy-2", got.Policies[1].Name)

	got, err = loaded(t, `
- &base
  name: a
  any_of: &conditions [{monitor: cpu_usage, threshold: 1}]
- {<<: *base, name: b, cooldown: 1h}
- {name: c, any_of: *conditions}
`)
	require.NoError(t, err, "anchors, aliases and merges are YAML's")
	require.Len(t, got.Policies, 3)
	require.Equal(t, time.Hour, got.Policies[1].Cooldown)
	require.Equal(t, got.Policies[0].AnyOf, got.Policies[2].AnyOf)

	got, err = loaded(t, "- {name: '${env:HOME}', any_of: [{monitor: cpu_usage, threshold: 1}]}")
	require.NoError(t, err)
	require.Equal(t, "${env:HOME}", got.Policies[0].Name, "variables are not expanded")
}

func TestRefusedPoliciesNameTheLine(t *testing.T) {
	const good = "- {name: good, any_of: [{monitor: cpu_usage, threshold: 1}]}\n"
	many := func(n int, item string) string { return strings.Repeat(item, n) }
	bomb := "- name: bomb\n  match:\n    a: &a [x,x,x,x,x,x,x,x,x,x]\n"
	for c := 'b'; c <= 'i'; c++ {
		bomb += fmt.Sprintf("    %c: &%c [%s]\n", c, c, strings.TrimSuffix(strings.Repeat(fmt.Sprintf("*%c,", c-1), 10), ","))
	}
	for name, c := range map[string]struct {
		document string
		want     []string
	}{
		"empty":               {"", []string{"empty", "enabled: false"}},
		"only a comment":      {"# nothing\n", []string{"empty"}},
		"null":                {"null\n", []string{"line 1: ", "list of policies"}},
		"empty list":          {"[]\n", []string{"line 1: ", "at least one policy"}},
		"with the key":        {"policies:\n- name: a\n", []string{"line 1: ", "without that key"}},
		"text":                {"policies\n", []string{"line 1: ", "list of policies"}},
		"no YAML":             {good + "- {name: [}\n", []string{"line "}},
		"tabs":                {good + "- name: a\n\tany_of: []\n", []string{"line "}},
		"two documents":       {good + "---\n" + good, []string{"one YAML document"}},
		"not a policy":        {good + "- cpu\n", []string{"line 2: policies[1]: must be a policy"}},
		"a number for a key":  {good + "- {1: 2}\n", []string{"line 2: policies[1]"}},
		"unknown key":         {good + "- name: a\n  any_of: [{monitor: cpu_usage, threshold: 1}]\n  cool_down: 1h\n", []string{`line 4: policies[1].cool_down: unknown key of "a": did you mean "cooldown"?`}},
		"unknown deep key":    {good + "- name: a\n  any_of:\n    - monitor: cpu_usage\n      treshold: 1\n", []string{`line 5: policies[1].any_of[0].treshold: unknown key of "a": did you mean "threshold"?`}},
		"a wrong type":        {good + "- name: a\n  any_of:\n    - monitor: cpu_usage\n      threshold: high\n", []string{"line 5: policies[1].any_of[0].threshold: expected type 'float64'"}},
		"a wrong duration":    {good + "- name: a\n  any_of: [{monitor: cpu_usage, threshold: 1}]\n  duration: 30 s\n", []string{"line 4: policies[1].duration", "unknown unit"}},
		"an unknown monitor":  {good + "- name: a\n  any_of:\n    - {monitor: cpu_usage, threshold: 1}\n    - {monitor: cpu, threshold: 1}\n", []string{"line 5: policies[1].any_of[1].monitor", "cpu_utilization"}},
		"no threshold":        {good + "- name: a\n  any_of:\n    - {monitor: cpu_usage, threshold: 1}\n    - {monitor: cpu_usage}\n", []string{"line 5: policies[1].any_of[1].threshold: must be set"}},
		"no conditions":       {good + "- name: a\n", []string{"line 2: policies[1].any_of: must have"}},
		"an equal name":       {good + good, []string{"line 2: policies[1].name"}},
		"a bad glob":          {good + "- name: a\n  match:\n    k8s.namespace.name: '[a'\n  any_of: [{monitor: cpu_usage, threshold: 1}]\n", []string{"line 4: policies[1].match.k8s.namespace.name"}},
		"a fault of an alias": {"- &a {any_of: [{monitor: cpu_usage}]}\n- *a\n", []string{"line 1: policies[0].any_of[0].threshold", "policies[1].any_of[0].threshold"}},
		"several faults":      {"- name: a\n  any_of: []\n- name: b\n  duration: 25h\n  any_of: [{monitor: cpu_usage, threshold: 1}]\n", []string{"line 2: policies[0].any_of", "line 4: policies[1].duration"}},
		"very many faults":    {many(100, "- {any_of: []}\n"), []string{"and 90 more"}},
		"too many policies":   {many(100_000, "- {}\n"), []string{"line 101: it has 100000 policies, and at most 100 are allowed"}},
		"too many conditions": {"- any_of:\n" + many(201, "  - {monitor: cpu_usage, threshold: 1}\n"), []string{"line 1: policies[0]", "200 conditions"}},
		"an alias bomb":       {bomb, []string{"more than 20000 keys and values, with aliases expanded"}},
		"an alias of itself":  {"- &a {match: *a}\n", []string{"line 1: it is more than 16 levels deep"}},
		"very deep":           {"- " + many(200_000, "["), []string{"depth"}},
		"many brackets":       {"- " + many(5000, "[") + many(5000, "]"), []string{"line 1: it is more than 16 levels deep"}},
		"very deep keys":      {"- {'" + many(300, "a::") + "': 1}", []string{"line 1: neither :: nor an alias is allowed in a key"}},
		"no text":             {"\x00\xff\xfe", []string{"yaml"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := loaded(t, c.document)
			require.Error(t, err)
			for _, want := range c.want {
				require.ErrorContains(t, err, want)
			}
			require.Less(t, len(err.Error()), 10_000)
		})
	}
}

// FuzzPolicies decodes an arbitrary document. The document must be refused, or its
// policies must equal the policies of a configuration with the same list.
func FuzzPolicies(f *testing.F) {
	f.Add([]byte("- {name: a, any_of: [{monitor: cpu_usage, threshold: 1}]}"))
	f.Add([]byte("- &a\n  name: b\n  match: {cgroup: /x, k8s.pod.name: '*'}\n  any_of:\n  - monitor: memory_events\n    threshold: 0\n    period: 10s\n    count: 1\n- {<<: *a, name: c}\n"))
	f.Add([]byte("policies: []"))
	f.Add([]byte("- {1: 2, any_of: {a: b}}\n- *x\n---\n"))
	f.Fuzz(func(t *testing.T, document []byte) {
		cfg, err := createDefaultConfig().withPolicies(document)
		if err != nil {
			require.NotEmpty(t, err.Error())
			return
		}
		require.NoError(t, cfg.Validate())
		var list any
		require.NoError(t, yaml.Unmarshal(document, &list))
		want := createDefaultConfig()
		require.NoError(t, confmap.NewFromStringMap(map[string]any{"policies": list}).Unmarshal(want))
		require.Equal(t, want.Policies, cfg.Policies)
	})
}

func TestPoliciesFromIsChecked(t *testing.T) {
	for name, c := range map[string]struct {
		text string
		want string // empty if the text is valid
	}{
		"file":            {"policies_from: {file: /etc/policies.yaml}", ""},
		"http":            {"policies_from: {http: {endpoint: 'https://policies.example.com/node.yaml?of=a'}}", ""},
		"neither":         {"policies_from: {file: ''}", "set file or http"},
		"empty":           {"policies_from: {}", "set file or http"},
		"both":            {"policies_from: {file: a, http: {endpoint: 'http://a'}}", "not both"},
		"no endpoint":     {"policies_from: {http: {timeout: 1s}}", "policies_from.http.endpoint"},
		"no host":         {"policies_from: {http: {endpoint: 'http:///a'}}", "policies_from.http.endpoint"},
		"with a password": {"policies_from: {http: {endpoint: 'http://a:secret@b'}}", "use auth"},
		"no timeout":      {"policies_from: {http: {endpoint: 'http://a', timeout: 0s}}", "policies_from.http.timeout"},
		"interval":        {"policies_from: {file: a, interval: 30s}", "policies_from.interval: this key is gone, remove it: policies are read every 10 seconds"},
		"unknown key":     {"policies_from: {path: a}", "path"},
		"unknown of http": {"policies_from: {http: {endpoint: 'http://a', url: b}}", "url"},
		"without a list":  {"policies: []", "at least one"},
	} {
		t.Run(name, func(t *testing.T) {
			cfg, err := load(t, c.text)
			if c.want != "" {
				require.ErrorContains(t, err, c.want)
				require.NotContains(t, err.Error(), "secret")
				return
			}
			require.NoError(t, err)
			require.Empty(t, cfg.Policies, "there are no default ones")
		})
	}
	cfg, err := load(t, "{policies_from: {http: {endpoint: 'http://a'}}, policies: [{any_of: [{monitor: cpu_usage, threshold: 1}]}]}")
	require.NoError(t, err)
	require.Len(t, cfg.Policies, 1)
	require.Equal(t, 10*time.Second, cfg.PoliciesFrom.HTTP.Get().Timeout)
}

// policyFile creates a file with policies in a new directory.
func policyFile(t *testing.T, document string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "policies.yaml")
	writePolicies(t, path, document)
	return path
}

// writePolicies replaces a file by renaming another file.
func writePolicies(t *testing.T, path, document string) {
	t.Helper()
	require.NoError(t, os.WriteFile(path+".new", []byte(document), 0o600))
	require.NoError(t, os.Rename(path+".new", path))
}
