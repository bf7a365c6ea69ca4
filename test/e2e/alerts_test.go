// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestAlertsOpenAndCloseGates posts alerts about a cool program, as Alertmanager does.
// The alerts name the program by its cgroup and by the service of its profiles.
func TestAlertsOpenAndCloseGates(t *testing.T) {
	t.Parallel()
	const service = "alerted-service"
	cool := newCgroup(t, "alerted")
	cool.SetQuota(t, cores)
	cool.RaiseWeight(t)
	w, metrics, port := startWire(t), freePort(t), freePort(t)
	c := gated(t, w, metrics, fmt.Sprintf(`
    manual:
      endpoint: localhost:%d
      alerts: {duration: 10m, labels: {id: cgroup, service_name: service.name}}
    policies: # nothing opens by itself, whatever is hot on this host
      - {name: cpu, match: {cgroup: /no/such}, any_of: [{monitor: cpu_utilization, threshold: 80, average_over: 30s}]}`, port))
	startLoad(t, cool.Command(loadBinary, "-duty", "0.2"), service)
	fired := time.Now()
	post := func(status, fingerprint string, labels map[string]string) map[string]any {
		body, err := json.Marshal(map[string]any{"version": "4", "status": status, "receiver": "hotprofile", "alerts": []any{map[string]any{
			"status": status, "fingerprint": fingerprint, "startsAt": fired, "labels": labels,
		}}})
		require.NoError(t, err)
		resp, err := http.Post(fmt.Sprintf("http://localhost:%d/v1/alerts", port), "application/json", bytes.NewReader(body))
		require.NoError(t, err)
		defer resp.Body.Close()
		require.Equal(t, http.StatusOK, resp.StatusCode)
		var answer struct {
			Alerts []map[string]any `json:"alerts"`
		}
		require.NoError(t, json.NewDecoder(resp.Body).Decode(&answer))
		require.Len(t, answer.Alerts, 1, answer)
		return answer.Alerts[0]
	}
	slow := map[string]string{"alertname": "CheckoutSlow", "id": cool.Path}
	failing := map[string]string{"alertname": "CheckoutFails", "service_name": service}
	require.Equal(t, "unknown_unit", post("firing", "f0", map[string]string{"alertname": "Elsewhere", "id": "/no/such/cgroup"})["outcome"])
	var opened map[string]any
	require.Eventually(t, func() bool { // until the collector knows the cgroup
		opened = post("firing", "f1", slow)
		return opened["outcome"] == "opened"
	}, startTimeout, 100*time.Millisecond, "%v", opened)
	require.Equal(t, cool.Path, opened["unit"])
	c.wait(startTimeout, "gate opened", func(l logLine) bool {
		return l.str("unit") == cool.Path && l.str("policy") == "CheckoutSlow" && l.str("monitor") == "CheckoutSlow"
	})
	again := post("firing", "f1", slow)
	require.Equal(t, "already_open", again["outcome"])
	require.Equal(t, opened["until"], again["until"], "a repetition prolongs nothing")
	require.Equal(t, opened["trigger_id"], again["trigger_id"])

	// The second alert needs a profile, because a profile names the service.
	var second map[string]any
	require.Eventually(t, func() bool {
		second = post("firing", "f2", failing)
		return second["outcome"] == "opened"
	}, startTimeout, 100*time.Millisecond, "%v", second)
	require.Equal(t, cool.Path, second["unit"])
	var of map[string]bool
	require.Eventually(t, func() bool {
		of = map[string]bool{}
		for _, p := range flatten(w.received()) {
			of[p.str("hotprofile.trigger.policy")] = true
		}
		return of["CheckoutSlow,CheckoutFails"]
	}, startTimeout, 100*time.Millisecond, "profiles of both alerts leave")

	closed := post("resolved", "f1", slow)
	require.Equal(t, "closed", closed["outcome"])
	require.Equal(t, []any{"CheckoutFails"}, closed["still_open"])
	l := c.wait(startTimeout, "gate closed", func(l logLine) bool { return l.str("policy") == "CheckoutSlow" })
	require.Equal(t, "alert resolved", l.str("why"))
	require.Equal(t, "closed", post("resolved", "f2", failing)["outcome"])
	c.wait(startTimeout, "gate closed", func(l logLine) bool { return l.str("policy") == "CheckoutFails" })
	require.Equal(t, "already_opened", post("firing", "f1", slow)["outcome"], "the same firing once more")
	require.Equal(t, "not_open", post("resolved", "f1", slow)["outcome"])
	for outcome, n := range map[string]float64{"opened": 2, "already_open": 1, "closed": 2, "already_opened": 1, "not_open": 1} {
		require.GreaterOrEqual(t, scrape(t, metrics, "otelcol_cpu_trigger_alerts", fmt.Sprintf("outcome=%q", outcome)), n, outcome)
	}
	checkAccounts(t, metrics)
	c.stop()
	require.Len(t, c.lines("gate opened"), 2)
	events := 0
	for _, p := range flatten(w.received()) {
		require.Equal(t, cool.Path, p.str("hotprofile.unit"))
		require.Equal(t, "alert", p.resource["hotprofile.trigger.kind"])
		require.Contains(t, []string{"CheckoutSlow", "CheckoutFails"}, p.str("hotprofile.trigger.monitor"))
		require.Contains(t, []string{opened["trigger_id"].(string), second["trigger_id"].(string)}, p.str("hotprofile.trigger.id"))
		events += p.events()
	}
	require.Positive(t, events)
}
