// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package web

import (
	"cmp"
	"context"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/hotprofile/hotprofile/extension/consoleextension/internal/store"
)

const (
	// silentAfter is the time without data after which a collector is shown as silent. By
	// default, collectors send their metrics once a minute.
	silentAfter = 3 * time.Minute
	// warningsShown is the maximum number of warnings that the page shows per collector.
	warningsShown = 30
	// instancesShown is the maximum number of collectors that the page shows.
	instancesShown = 200
)

// Own describes the collector in which the console runs. It does not contain the metrics
// of the collector.
type Own struct {
	Version string
	Started time.Time
	// CPUSeconds is the CPU time of the process. Memory is the memory of the Go runtime, in
	// bytes. Both are 0 if unknown.
	CPUSeconds float64
	Memory     int64
	// Components are the components with a status other than OK.
	Components []ComponentStatus
}

// ComponentStatus is the last status that a component reported.
type ComponentStatus struct {
	Component, Status, Error string
	Since                    time.Time
}

// healthPage contains the data for health.html.
type healthPage struct {
	Own       *Own
	Usage     store.Usage
	Full      float64 // in percent of MaxBytes
	Instances []instanceRow
	More      int  // number of instances that are not shown
	Partial   bool // a part of the store could not be read
}

// instanceRow describes one collector.
type instanceRow struct {
	store.Instance
	Silent   bool
	Over     bool          // a later run of the same collector has started
	Earlier  []instanceRow // earlier runs, newest first
	Uptime   time.Duration
	Sampling []statement
	Costs    []figure
	Losses   []lossRow
	Outcomes []outcomeRow
	Warnings []store.Log
	More     int // number of warnings that are not shown
}

// statement is a log message in which a component describes its work.
type statement struct {
	store.Log
	// Missing contains the fields about work that is missing, and the reason. Details
	// contains the other fields.
	Missing, Details map[string]string
}

// figure is one of the costs of a collector, such as its CPU usage.
type figure struct {
	What, Value, Hint string
}

// lossRow is one metric that counts losses.
type lossRow struct {
	store.Metric
	What string
}

// Where returns the attributes in the form key=value.
func (r lossRow) Where() string {
	var texts []string
	for _, key := range slices.Sorted(maps.Keys(r.Attributes)) {
		texts = append(texts, key+"="+r.Attributes[key])
	}
	return strings.Join(texts, " ")
}

// outcomeRow contains one component's counts by outcome.
type outcomeRow struct {
	What     string
	Outcomes map[string]int
}

// health serves the page about collectors.
func (s *Server) health(w http.ResponseWriter, r *http.Request) error {
	ctx, cancel := context.WithTimeout(r.Context(), partTimeout)
	defer cancel()
	instances, err := s.Store.Instances(ctx)
	p := healthPage{Usage: s.Store.Usage(), Partial: s.partial(r, err)}
	if p.Usage.MaxBytes > 0 {
		p.Full = 100 * float64(p.Usage.Bytes) / float64(p.Usage.MaxBytes)
	}
	if s.Own != nil {
		own := s.Own()
		p.Own = &own
	}
	now := s.Now()
	slices.SortStableFunc(instances, func(a, b store.Instance) int {
		return cmp.Or(strings.Compare(a.Host, b.Host), strings.Compare(a.Service, b.Service), b.Last.Compare(a.Last))
	})
	instances, p.More = first(instancesShown, instances)
	for _, i := range instances {
		row := newInstanceRow(i, now)
		if n := len(p.Instances); n > 0 && row.before(p.Instances[n-1].Instance) {
			row.Over = true
			p.Instances[n-1].Earlier = append(p.Instances[n-1].Earlier, row)
			continue
		}
		p.Instances = append(p.Instances, row)
	}
	return s.render(w, page{Template: "health", Title: "Health", Section: "/health", Data: p, Refresh: true})
}

func newInstanceRow(of store.Instance, now time.Time) instanceRow {
	row := instanceRow{Instance: of, Silent: now.Sub(of.Last) > silentAfter}
	row.Sampling = statements(of.Logs)
	row.Costs, row.Uptime = costs(of.Metrics)
	row.Losses, row.Outcomes = losses(of.Metrics)
	for _, l := range of.Logs {
		if l.IsWarning() {
			row.Warnings = append(row.Warnings, l)
		}
	}
	row.Warnings, row.More = first(warningsShown, row.Warnings)
	return row
}

// before reports whether i is an earlier run of the collector that later describes. Each
// run has its own ID.
func (i *instanceRow) before(later store.Instance) bool {
	return i.Host != "" && i.Host == later.Host && i.Service == later.Service && i.Last.Before(later.First)
}

// starts lists the startup messages of the samplers and of cpu_trigger. These messages
// describe the capabilities and limitations of the components on this host.
var starts = []string{"sampling started", "off-CPU sampling started", "allocation sampling started", "cgroup mode"}

// missing lists the log fields of startup messages that describe the limitations of a
// component and their causes.
var missing = []string{"not_sampled", "not_shown", "why", "limited"}

// statements returns the newest startup message of each kind from each component.
func statements(logs []store.Log) (found []statement) {
	seen := map[[2]string]bool{}
	for _, l := range logs { // newest first
		key := [2]string{l.Component, l.Body}
		if !slices.Contains(starts, l.Body) || seen[key] {
			continue
		}
		seen[key] = true
		s := statement{Log: l, Missing: map[string]string{}, Details: map[string]string{}}
		for name, value := range l.Attributes {
			switch {
			case value == "" || value == "[]" || strings.HasPrefix(name, "code.") || strings.HasPrefix(name, "otelcol."):
			case slices.Contains(missing, name):
				s.Missing[name] = readable(value)
			default:
				s.Details[name] = readable(value)
			}
		}
		found = append(found, s)
	}
	slices.SortFunc(found, func(a, b statement) int {
		return cmp.Or(cmp.Compare(slices.Index(starts, a.Body), slices.Index(starts, b.Body)), strings.Compare(a.Component, b.Component))
	})
	return found
}

// readable converts a JSON list of strings to text without brackets and quotes.
func readable(value string) string {
	if rest, ok := strings.CutPrefix(value, `["`); ok && strings.HasSuffix(rest, `"]`) {
		return strings.ReplaceAll(strings.TrimSuffix(rest, `"]`), `","`, ", ")
	}
	return value
}

// nameOf returns the name of a metric without the prefix otelcol_. Only the collector's
// own telemetry uses this prefix.
func nameOf(m store.Metric) string { return strings.TrimPrefix(m.Name, "otelcol_") }

// costs returns the costs of a collector, and its uptime.
func costs(metrics []store.Metric) (found []figure, uptime time.Duration) {
	byName := map[string]store.Metric{}
	for _, m := range slices.Backward(metrics) { // the first metric of a name is kept
		byName[nameOf(m)] = m
	}
	add := func(what, name, hint string, value func(store.Metric) string) {
		if m, ok := byName[name]; ok {
			found = append(found, figure{what, value(m), hint})
		}
	}
	cores := func(m store.Metric) string { return number(100*m.PerSecond) + " % of a core" }
	size := func(m store.Metric) string { return formatBytes(int64(m.Value)) }
	add("CPU", "process_cpu_seconds", "of the whole collector", cores)
	add("CPU of sampling", "cpu_profiler.cpu.time", "reading samples and resolving names", cores)
	add("Memory", "process_memory_rss", "resident, of the whole collector", size)
	add("Go heap", "process_runtime_heap_alloc_bytes", "", size)
	add("Flight recorder", "cpu_trigger.recorder.size", "profiles from before a trigger", size)
	add("Files to write", "pprof.memory", "profiles that are not on disk yet", size)
	add("Frequency", "cpu_profiler.frequency", "of on-CPU samples", func(m store.Metric) string { return number(m.Value) + " Hz" })
	return found, time.Duration(byName["process_uptime"].Value * float64(time.Second))
}

// lossesByName describes metrics in which every point is a loss.
var lossesByName = map[string]string{
	"cpu_profiler.samples.lost":               "samples lost in the kernel",
	"cpu_profiler.periods.skipped":            "sampling periods skipped",
	"cpu_profiler.limits.hit":                 "bounds that were hit",
	"cpu_trigger.units.refused":               "units not watched",
	"cpu_trigger.forgotten":                   "cooldowns and openings forgotten at a bound",
	"hot_units.events.dropped":                "events dropped",
	"hot_units.readings.cut":                  "readings left out",
	"hot_units.units.cut":                     "hot units left out",
	"pprof.files.failed":                      "files not written",
	"pprof.files.removed":                     "old files removed",
	"console.store.dropped":                   "gave way in the store of a console",
	"console.refused":                         "requests to a console refused",
	"cpu_trigger.manual.refused":              "requests to manual refused",
	"cpu_profiler.records.lost":               "records lost in the kernel",
	"receiver_refused_profile_samples":        "profile samples refused by the next component",
	"receiver_refused_log_records":            "log records refused by the next component",
	"receiver_refused_metric_points":          "metric points refused by the next component",
	"exporter_send_failed_log_records":        "log records not sent",
	"exporter_send_failed_metric_points":      "metric points not sent",
	"exporter_send_failed_profile_samples":    "profile samples not sent",
	"exporter_enqueue_failed_log_records":     "log records without room in the queue",
	"exporter_enqueue_failed_metric_points":   "metric points without room in the queue",
	"exporter_enqueue_failed_profile_samples": "profile samples without room in the queue",
}

// outcomesByName describes the metrics that count by outcome.
var outcomesByName = []struct{ name, what string }{
	{"cpu_profiler.samples", "samples of the receiver"},
	{"cpu_profiler.stacks", "stacks"},
	{"cpu_profiler.symbols", "names"},
	{"cpu_profiler.pprof.pulls", "pulled profiles"},
	{"cpu_trigger.samples", "samples at the gates"},
	{"cpu_trigger.triggers", "triggers"},
	{"cpu_trigger.readings", "readings"},
	{"cpu_trigger.items", "spans and metric points"},
	{"cpu_trigger.alerts", "alerts"},
	{"cpu_trigger.policies.reads", "reads of policies"},
	{"pprof.samples", "samples for files"},
	{"console.items", "items for a console"},
}

// losses returns one row for each metric that counts losses, and one row for each metric
// that counts by outcome.
func losses(metrics []store.Metric) (lost []lossRow, outcomes []outcomeRow) {
	byOutcome := map[string]map[string]int{}
	for _, m := range metrics {
		name := nameOf(m)
		if outcome, ok := m.Attributes["outcome"]; ok {
			if byOutcome[name] == nil {
				byOutcome[name] = map[string]int{}
			}
			byOutcome[name][strings.ReplaceAll(outcome, "_", " ")] += int(m.Value)
		}
		if what, ok := lossesByName[name]; ok && m.Value > 0 {
			lost = append(lost, lossRow{m, what})
		}
	}
	slices.SortStableFunc(lost, func(a, b lossRow) int {
		return cmp.Or(cmp.Compare(b.PerSecond, a.PerSecond), strings.Compare(a.What, b.What), strings.Compare(a.Where(), b.Where()))
	})
	for _, o := range outcomesByName {
		if counts := byOutcome[o.name]; counts != nil {
			maps.DeleteFunc(counts, func(_ string, n int) bool { return n <= 0 })
			outcomes = append(outcomes, outcomeRow{o.what, counts})
		}
	}
	return lost, outcomes
}
