// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package policyfile

import (
	"testing"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
)

const document = `# Policies of the shop.

- name: cpu # the first one
  # Seldom.
  match: {service.name: "shop", k8s.namespace.name: prod}
  any_of:
    - {monitor: cpu_utilization, threshold: 80, average_over: 30s} # of its limit
    - monitor: memory_events
      events: [oom_kill]
  cooldown: 4h
  dry_run: true
  # inside

# Of everything else.
- name: rest
  any_of: [{monitor: cpu_usage, threshold: 2}]
`

func TestPoliciesOfADocument(t *testing.T) {
	found, err := Policies([]byte(document))
	require.NoError(t, err)
	require.Equal(t, []Policy{
		{Name: "cpu", Key: "service.name", Glob: "shop", Monitor: "cpu_utilization", Threshold: "80", AverageOver: "30s", Cooldown: "4h", MoreMatch: 1, MoreConditions: 1},
		{Name: "rest", Monitor: "cpu_usage", Threshold: "2"},
	}, found)
	for text, fault := range map[string]string{
		"":                            "",
		"[]":                          "",
		"[{name: a}, {name: b}]":      "edit the text",
		"name: a":                     "not a list",
		"- a":                         "line 1 is not a policy",
		"- name: [":                   "yaml",
		"- name: a\n  match: [1]\n- ": "line 3 is not a policy",
	} {
		_, err := Policies([]byte(text))
		if fault == "" {
			require.NoError(t, err, text)
		} else {
			require.ErrorContains(t, err, fault, text)
		}
	}
}

func TestOnlyTheLinesOfThePolicyChange(t *testing.T) {
	found, err := Policies([]byte(document))
	require.NoError(t, err)
	p := found[0]
	p.Threshold, p.Cooldown, p.Duration, p.Glob = "70", "", "1m", "shop-*"
	got, err := Put([]byte(document), "cpu", p)
	require.NoError(t, err)
	require.Equal(t, `# Policies of the shop.

- name: cpu # the first one
  # Seldom.
  match: {service.name: shop-*, k8s.namespace.name: prod}
  any_of:
    - {monitor: cpu_utilization, threshold: 70, average_over: 30s} # of its limit
    - monitor: memory_events
      events: [oom_kill]
  dry_run: true
  # inside

  duration: 1m

# Of everything else.
- name: rest
  any_of: [{monitor: cpu_usage, threshold: 2}]
`, string(got))

	p = found[1]
	p.Name, p.Key, p.Glob, p.Threshold = "others", "cgroup", "/system.slice/*", "1.5"
	got, err = Put([]byte(document), "rest", p)
	require.NoError(t, err)
	require.Equal(t, document[:len(document)-len("- name: rest\n  any_of: [{monitor: cpu_usage, threshold: 2}]\n")]+`- name: others
  any_of: [{monitor: cpu_usage, threshold: 1.5}]
  match: {cgroup: /system.slice/*}
`, string(got))

	same, err := Put([]byte(document), "rest", found[1])
	require.NoError(t, err)
	require.Equal(t, document, string(same))
	_, err = Put([]byte(document), "gone", p)
	require.ErrorContains(t, err, `no policy "gone"`)
}

func TestANewPolicyIsAdded(t *testing.T) {
	p := Policy{Name: "80", Key: "service.name", Glob: "12", Monitor: "cpu_usage", Threshold: "1", AverageOver: "10s"}
	const added = "- name: \"80\"\n  match: {service.name: \"12\"}\n  any_of: [{monitor: cpu_usage, threshold: 1, average_over: 10s}]\n"
	for before, after := range map[string]string{
		"":                 added,
		"[]\n":             added,
		"# none yet\n":     "# none yet\n" + added,
		"- name: a":        "- name: a\n" + added,
		"- name: a\n":      "- name: a\n" + added,
		"  - name: a\n":    "  - name: a\n  - name: \"80\"\n    match: {service.name: \"12\"}\n    any_of: [{monitor: cpu_usage, threshold: 1, average_over: 10s}]\n",
		"-\n  name: a\n\n": "-\n  name: a\n\n" + added,
	} {
		got, err := Put([]byte(before), "", p)
		require.NoError(t, err, before)
		require.Equal(t, after, string(got), before)
		all, err := Policies(got)
		require.NoError(t, err)
		require.Equal(t, p, all[len(all)-1])
	}
}

func TestPartsThatAPolicyLacksAreAddedAndRemoved(t *testing.T) {
	got, err := Put([]byte("- name: a\n"), "a", Policy{Name: "a", Key: "k", Glob: "v", Monitor: "m", Threshold: "1"})
	require.NoError(t, err)
	require.Equal(t, "- name: a\n  match: {k: v}\n  any_of: [{monitor: m, threshold: 1}]\n", string(got))
	got, err = Put(got, "a", Policy{Name: "a"})
	require.NoError(t, err)
	require.Equal(t, "- name: a\n", string(got))

	shared := "- &a\n  name: a\n  any_of: [&c {monitor: m, threshold: 1}]\n- name: b\n  any_of: [*c]\n"
	_, err = Put([]byte(shared), "b", Policy{Name: "b", Monitor: "m", Threshold: "2"})
	require.ErrorContains(t, err, "edit the text", "it uses a part of another policy")
}

// FuzzPut puts a policy into an arbitrary text. The result must contain this policy and
// all other policies, or Put must return an error.
func FuzzPut(f *testing.F) {
	f.Add(document, "cpu", "70")
	f.Add("  - name: a\n    any_of: [{}]\n", "a", "1")
	f.Fuzz(func(t *testing.T, text, name, threshold string) {
		before, err := Policies([]byte(text))
		if err != nil {
			return
		}
		p := Policy{Name: name, Monitor: "cpu_usage", Threshold: threshold}
		got, err := Put([]byte(text), name, p)
		if err != nil {
			return
		}
		after, err := Policies(got)
		if err != nil {
			t.Skip("a text that only its own comments or anchors make a list")
		}
		if name != "" {
			require.Len(t, after, len(before))
		}
		var root yaml.Node
		require.NoError(t, yaml.Unmarshal(got, &root))
	})
}
