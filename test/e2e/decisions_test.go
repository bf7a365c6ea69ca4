// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// gated starts a collector with the given settings of cpu_trigger. The settings are YAML
// that is already indented for its position in the configuration.
func gated(t *testing.T, w *wire, metrics int, trigger string, extensions ...string) *collector {
	t.Helper()
	return pipeline{
		extensions: extensions, receiver: "{export_interval: 1s}", trigger: trigger, exporters: []string{w.exporter()},
	}.start(t, metrics)
}

func of(unit string) func(logLine) bool {
	return func(l logLine) bool { return l.str("unit") == unit }
}

// TestARestartDoesNotTriggerAgainInsideTheCooldown kills the
// collector and starts it again while the program is still hot.
func TestARestartDoesNotTriggerAgainInsideTheCooldown(t *testing.T) {
	t.Parallel()
	hot := newCgroup(t, "hot")
	hot.SetQuota(t, cores)
	hot.RaiseWeight(t)
	w := startWire(t)
	policy := fmt.Sprintf(`
    storage: file_storage
    policies:
      - name: cpu
        match: {cgroup: %q}
        any_of: [{monitor: cpu_utilization, threshold: 80, average_over: 3s}]
        duration: 2s
        cooldown: 1h`, hot.Path)
	dir := filepath.Join(t.TempDir(), "storage")
	storage := fmt.Sprintf("file_storage: {directory: %q, create_directory: true, timeout: 30s}", dir)
	first := gated(t, w, freePort(t), policy, storage)
	startLoad(t, hot.Command(loadBinary), hotService)
	first.wait(startTimeout, "gate opened", of(hot.Path))
	first.wait(startTimeout, "gate closed", of(hot.Path))
	// Wait until the collector has saved the cooldown,
	// because a killed collector cannot save it.
	require.Eventually(t, func() bool { return holds(t, dir, hot.Path) }, startTimeout, 10*time.Millisecond)
	require.NoError(t, first.cmd.Process.Signal(syscall.SIGKILL))
	<-first.ended

	second := gated(t, w, freePort(t), policy, storage)
	// The new collector sees that the program is hot, but it knows the cooldown.
	second.wait(startTimeout, "gate not opened", func(l logLine) bool {
		return l.str("unit") == hot.Path && strings.Contains(l.str("why"), "cooling down")
	})
	time.Sleep(3 * time.Second)
	for _, l := range second.lines("gate opened") {
		require.NotEqual(t, hot.Path, l.str("unit"), "%v", l)
	}
}

// holds reports whether a file in a directory contains a text.
func holds(t *testing.T, dir, text string) bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*"))
	require.NoError(t, err)
	return slices.ContainsFunc(files, func(file string) bool {
		content, err := os.ReadFile(file)
		return err == nil && bytes.Contains(content, []byte(text))
	})
}

// TestByHand opens the gate of a cool unit over TCP and over a Unix socket.
func TestByHand(t *testing.T) {
	t.Parallel()
	cool := newCgroup(t, "cool")
	cool.SetQuota(t, cores)
	cool.RaiseWeight(t)
	for name, server := range map[string]struct{ yaml, network, address string }{
		"TCP":         {network: "tcp", address: fmt.Sprintf("localhost:%d", freePort(t))},
		"Unix socket": {yaml: "transport: unix, ", network: "unix", address: filepath.Join(t.TempDir(), "trigger.sock")},
	} {
		t.Run(name, func(t *testing.T) {
			w := startWire(t)
			c := gated(t, w, freePort(t), fmt.Sprintf(`
    manual: {%sendpoint: %q}
    policies: # nothing opens by itself, whatever is hot on this host
      - {name: cpu, match: {cgroup: /no/such}, any_of: [{monitor: cpu_utilization, threshold: 80, average_over: 30s}]}`, server.yaml, server.address))
			startLoad(t, cool.Command(loadBinary, "-duty", "0.2"), coolService)
			client := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				return (&net.Dialer{}).DialContext(ctx, server.network, server.address)
			}}}
			post := func(unit string) (int, map[string]any) {
				resp, err := client.Post("http://localhost/v1/trigger?duration=3s&unit="+url.QueryEscape(unit), "", nil)
				require.NoError(t, err)
				defer resp.Body.Close()
				var answer map[string]any
				_ = json.NewDecoder(resp.Body).Decode(&answer) // some responses are not JSON
				return resp.StatusCode, answer
			}
			status, _ := post("/no/such/cgroup")
			require.Equal(t, http.StatusNotFound, status)
			var answer map[string]any
			require.Eventually(t, func() bool { // until the collector knows the cgroup
				status, answer = post(cool.Path)
				return status == http.StatusOK
			}, startTimeout, 100*time.Millisecond, "%v", answer)
			c.wait(startTimeout, "gate opened", func(l logLine) bool { return l.str("unit") == cool.Path && l.str("monitor") == "manual" })
			c.wait(startTimeout, "gate closed", of(cool.Path))
			c.stop() // the exporters flush their queues first
			events := 0
			for _, p := range flatten(w.received()) {
				require.Equal(t, cool.Path, p.str("hotprofile.unit"))
				require.Equal(t, "manual", p.str("hotprofile.trigger.monitor"))
				require.Equal(t, answer["trigger_id"], p.str("hotprofile.trigger.id"))
				events += p.events()
			}
			require.Positive(t, events)
		})
	}
}

// TestBudgetsAndDryRuns runs three hot units. Only one unit at a time may be profiled.
// The third unit's policy is a dry run, so no profiles of the third unit may be exported.
func TestBudgetsAndDryRuns(t *testing.T) {
	t.Parallel()
	w, metrics := startWire(t), freePort(t)
	var units []string
	var commands []func()
	for i := range 3 {
		cg := newCgroup(t, fmt.Sprintf("hot%d", i))
		cg.SetQuota(t, 0.2)
		cg.RaiseWeight(t)
		units = append(units, cg.Path)
		commands = append(commands, func() { startLoad(t, cg.Command(loadBinary), fmt.Sprintf("%s-%d", hotService, i)) })
	}
	c := gated(t, w, metrics, fmt.Sprintf(`
    budgets: {max_concurrent_units: 1}
    policies:
      - name: cpu
        match: {cgroup: %q}
        exclude: {service.name: "%s-2"}
        any_of: [{monitor: cpu_utilization, threshold: 50, average_over: 3s}]
        duration: 6s
        cooldown: 1h
      - name: trial
        match: {cgroup: %q, service.name: "%s-2"}
        any_of: [{monitor: cpu_usage, threshold: 0.1, average_over: 3s}]
        duration: 4s
        cooldown: 1h
        dry_run: true`, ofThisTest(t), hotService, ofThisTest(t), hotService))
	for _, start := range commands {
		start()
	}
	for _, unit := range units {
		c.wait(startTimeout, "gate closed", of(unit))
	}
	require.Positive(t, scrape(t, metrics, "otelcol_cpu_trigger_triggers", `outcome="over_budget"`))
	require.Positive(t, scrape(t, metrics, "otelcol_cpu_trigger_triggers", `outcome="dry_run"`))
	require.Positive(t, scrape(t, metrics, "otelcol_cpu_trigger_samples", `outcome="dry_run"`))
	checkAccounts(t, metrics)
	c.stop()
	over := c.lines("gate not opened")
	named := 0
	for _, l := range over {
		if strings.Contains(fmt.Sprint(l), "max_concurrent_units") {
			named++
		}
	}
	require.Positive(t, named, "no log line names the budget")
	passed := map[string]int{}
	for _, p := range flatten(w.received()) {
		passed[p.str("hotprofile.unit")] += p.events()
	}
	t.Logf("emitted: %v", passed)
	require.Positive(t, passed[units[0]])
	require.Positive(t, passed[units[1]])
	require.Zero(t, passed[units[2]], "a dry run let something out")
}
