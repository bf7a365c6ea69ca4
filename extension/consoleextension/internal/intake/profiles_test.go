// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package intake

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/hotprofile/hotprofile/extension/consoleextension/internal/store"
)

func TestOpeningOfAttributes(t *testing.T) {
	attributes := map[string]string{
		"hotprofile.unit":              "0a1b",
		"hotprofile.trigger.id":        "5f0e9a4e6a3b1c22",
		"hotprofile.trigger.policy":    "cpu,memory",
		"hotprofile.trigger.monitor":   "cpu_utilization",
		"hotprofile.trigger.value":     "93.5",
		"hotprofile.trigger.threshold": "80",
		"hotprofile.trigger.window":    "30s average",
		"hotprofile.trigger.time":      "2026-05-28T20:26:42.5Z",
		"hotprofile.trigger.until":     "2026-05-28T20:27:12.5Z",
		"hotprofile.trigger.phase":     "before",
	}
	at := time.Date(2026, 5, 28, 20, 26, 42, 500_000_000, time.UTC)
	want := store.Opening{
		ID: "5f0e9a4e6a3b1c22", Unit: store.Unit{Host: "node-1", Name: "0a1b", Resource: map[string]string{"service.name": "checkout"}},
		Policy: "cpu", Kind: "hot", Monitor: "cpu_utilization", Window: "30s average", Value: 93.5, Threshold: 80,
		Triggered: at, Until: at.Add(30 * time.Second),
	}
	r := resource{host: "node-1", kept: want.Unit.Resource}
	require.Equal(t, want, openingOf(attributes, r))

	r.policy, r.kind = "a,b", "alert"
	want.Policy, want.Kind = "a,b", "alert"
	require.Equal(t, want, openingOf(attributes, r), "the resource has them as they are")

	r.policy, r.kind = "", ""
	for _, tc := range []struct{ key, value, kind string }{
		{"hotprofile.trigger.phase", "baseline", "baseline"},
		{"hotprofile.trigger.window", "manual", "manual"},
		{"hotprofile.trigger.window", "alert", "alert"},
	} {
		attributes[tc.key] = tc.value
		require.Equal(t, tc.kind, openingOf(attributes, r).Kind)
	}
	for _, bad := range []string{"NaN", "-Inf", "1e999", "x", ""} {
		attributes["hotprofile.trigger.value"] = bad
		require.Zero(t, openingOf(attributes, r).Value, bad)
	}
	for _, bad := range []string{"0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z", "now", ""} {
		attributes["hotprofile.trigger.time"] = bad
		require.Zero(t, openingOf(attributes, r).Triggered, bad)
	}
}
