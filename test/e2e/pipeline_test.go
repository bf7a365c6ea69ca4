// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// pipeline holds the settings that differ between tests, for a
// collector that gates its samples.
type pipeline struct {
	extensions []string      // each with a name, a colon and its settings
	receiver   string        // the settings of cpu_profiler
	evaluation time.Duration // the evaluation interval of cpu_trigger; 0 means half a second
	trigger    string        // the other settings of cpu_trigger, with the indentation of their place
	exporters  []string      // in the form of extensions
	env        []string      // added to the environment of the tests
}

// start starts the collector and waits until it is ready. metrics is the port on which
// the collector serves its own metrics.
func (p pipeline) start(t *testing.T, metrics int) *collector {
	t.Helper()
	names := func(blocks []string) string {
		var all []string
		for _, b := range blocks {
			name, _, _ := strings.Cut(b, ":")
			all = append(all, name)
		}
		return strings.Join(all, ", ")
	}
	if p.evaluation == 0 {
		p.evaluation = time.Second / 2
	}
	c := startCollector(t, "collector", fmt.Sprintf(`
extensions:
  %s
receivers:
  cpu_profiler: %s
processors:
  cpu_trigger:
    evaluation_interval: %v
    min_age: 0
%s
exporters:
  %s
service:
  extensions: [%s]
  telemetry:
    logs: {encoding: json, level: debug, sampling: {enabled: false}}
    metrics: {readers: [{pull: {exporter: {prometheus: {host: 127.0.0.1, port: %d}}}}]}
  pipelines:
    profiles: {receivers: [cpu_profiler], processors: [cpu_trigger], exporters: [%s]}
`, strings.Join(p.extensions, "\n  "), p.receiver, p.evaluation, p.trigger, strings.Join(p.exporters, "\n  "),
		names(p.extensions), metrics, names(p.exporters)), p.env...)
	c.wait(startTimeout, "Everything is ready. Begin running and processing data.", nil)
	return c
}

// onceAbove returns a trigger that opens the gate of each cgroup of this test once. A
// gate opens when its cgroup has used more than threshold percent of its CPU for three
// seconds. It stays open for duration. Samples from before the trigger are not kept.
func onceAbove(t *testing.T, threshold float64, duration time.Duration) string {
	return fmt.Sprintf(`
    pre_trigger: 0
    policies:
      - name: cpu
        match: {cgroup: %q}
        any_of: [{monitor: cpu_utilization, threshold: %g, average_over: 3s}]
        duration: %v
        cooldown: 1h`, ofThisTest(t), threshold, duration)
}
