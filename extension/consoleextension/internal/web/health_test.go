// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package web

import (
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/hotprofile/hotprofile/extension/consoleextension/internal/store"
)

// collector returns a collector with its own metrics and logs.
func collector() store.Instance {
	at := testNow.Add(-10 * time.Second)
	point := func(name string, value, perSecond float64, attributes ...string) store.Metric {
		m := store.Metric{Name: "otelcol_" + name, At: at, Value: value, PerSecond: perSecond, Attributes: map[string]string{}}
		for i := 0; i < len(attributes); i += 2 {
			m.Attributes[attributes[i]] = attributes[i+1]
		}
		return m
	}
	return store.Instance{
		ID: "8f14e45f", Host: "node-7", Service: "otelcol-hotprofile", Version: "0.1.0", First: at.Add(-time.Hour), Last: at,
		Metrics: []store.Metric{
			point("process_cpu_seconds", 120, 0.0123), point("process_memory_rss", 90<<20, 0), point("process_uptime", 3600, 1),
			point("cpu_profiler.samples", 1000, 1, "sampler", "on_cpu", "outcome", "exported"),
			point("cpu_profiler.samples", 5, 0, "sampler", "off_cpu", "outcome", "exported"),
			point("cpu_profiler.samples", 7, 0, "sampler", "on_cpu", "outcome", "buffer_full"),
			point("cpu_profiler.samples.lost", 41, 0.5), point("cpu_profiler.periods.skipped", 0, 0),
			point("cpu_trigger.units.refused", 2, 0, "reason", "claimed"),
		},
		Logs: []store.Log{
			{At: at, Severity: "warn", Body: "samples lost", Component: "cpu_profiler", Attributes: map[string]string{"lost": "<b>41</b>"}},
			{At: at.Add(-time.Minute), Severity: "info", Body: "sampling started", Component: "cpu_profiler", Attributes: map[string]string{
				"what": "own processes", "rights": `["own processes"]`, "not_sampled": `["the whole host","kernel stacks"]`, "not_shown": "[]", "why": "no CAP_PERFMON", "code.line.number": "38",
			}},
			{At: at.Add(-time.Hour), Severity: "info", Body: "sampling started", Component: "cpu_profiler", Attributes: map[string]string{"what": "an older start"}},
			{At: at.Add(-time.Hour), Severity: "info", Body: "cgroup mode", Component: "cpu_trigger", Attributes: map[string]string{"mode": "v2"}},
		},
	}
}

func TestTheHealthPage(t *testing.T) {
	m := &Memory{
		AllInstances: []store.Instance{collector()},
		UsageNow:     store.Usage{Bytes: 30 << 20, MaxBytes: 300 << 20, MaxAge: 48 * time.Hour, Dropped: map[string]int64{"openings": 3, "units": 0}},
	}
	page := getPage(t, newTestServer(t, m, func(o *Options) {
		o.Own = func() Own {
			return Own{Version: "0.2.0", Started: testNow.Add(-time.Minute), Memory: 64 << 20, Components: []ComponentStatus{
				{Component: "cpu_trigger", Status: "recoverable error", Error: "policies cannot be read", Since: testNow},
			}}
		}
	}), "/health")
	here := textOf(find(page, "div", with("id", "here"))[0])
	require.Contains(t, here, "30 MiB of 300 MiB 10 % full")
	require.Contains(t, here, "openings 3")
	require.NotContains(t, here, "units 0")
	require.Contains(t, here, "cpu_trigger recoverable error")

	node := textOf(find(page, "div", with("id", "live-8f14e45f"))[0])
	require.Contains(t, node, "up 1 h")
	require.Contains(t, node, "CPU 1.23 % of a core")
	require.Contains(t, node, "Memory 90 MiB")
	require.Contains(t, node, "not_sampled : the whole host, kernel stacks")
	require.Contains(t, node, "why : no CAP_PERFMON")
	require.NotContains(t, node, "an older start")
	require.NotContains(t, node, "code.line.number")
	require.Contains(t, node, "samples lost in the kernel 41 0.5")
	require.Contains(t, node, "units not watched reason=claimed 2 0")
	require.NotContains(t, node, "periods skipped", "there are none")
	require.Contains(t, node, "samples of the receiver 1,012 buffer full 7, exported 1,005")
	require.Contains(t, node, "lost : <b>41</b>", "as text")
	require.Contains(t, node, "heard 10 s ago")
}

func TestACollectorThatIsSilentIsMarked(t *testing.T) {
	i := collector()
	i.Last = testNow.Add(-time.Hour)
	page := getPage(t, newTestServer(t, &Memory{AllInstances: []store.Instance{i}}), "/health")
	require.Contains(t, textOf(page), "last heard 1 h ago")
}

func TestEarlierRunsOfACollectorAreWithIt(t *testing.T) {
	now, before, other := collector(), collector(), collector()
	before.ID, before.First, before.Last = "earlier", now.First.Add(-2*time.Hour), now.First.Add(-time.Hour)
	other.ID = "other" // on the same host at the same time
	page := getPage(t, newTestServer(t, &Memory{AllInstances: []store.Instance{before, now, other}}), "/health")
	require.Contains(t, textOf(page), "2 collectors send their own metrics and logs here")
	require.Len(t, find(page, "details"), 1)
	require.Contains(t, textOf(find(page, "details")[0]), "An earlier run, last heard 2 h ago")
}

func TestTheHealthPageSaysHowToTurnItOn(t *testing.T) {
	page := getPage(t, newTestServer(t, &Memory{}), "/health")
	require.Contains(t, textOf(page), "No collector sends its own metrics and logs here yet")
	require.Contains(t, find(page, "pre")[0].FirstChild.Data, "periodic:")
}

// TestPagesShowWhatHidesOthers covers an ID with control characters and bidirectional
// formatting characters. Templates do not escape these characters in attribute values.
func TestPagesShowWhatHidesOthers(t *testing.T) {
	m := &Memory{AllInstances: []store.Instance{collector()}}
	m.AllInstances[0].ID = "\x1b[31m\u202egpj.exe"
	w := get(t, newTestServer(t, m), "/health")
	require.Equal(t, http.StatusOK, w.Code)
	require.False(t, strings.ContainsAny(w.Body.String(), "\x1b\u202e"))
	require.Contains(t, w.Body.String(), `\x1b[31m\u202egpj.exe`)
}

// TestPagesWithoutTheStoreShowTheRest checks that pages that need only a part of the store
// do not fail with it.
func TestPagesWithoutTheStoreShowTheRest(t *testing.T) {
	m := &Memory{AllInstances: []store.Instance{collector()}}
	server := newTestServer(t, m)
	for _, path := range []string{"/health", "/policies"} {
		require.NotContains(t, get(t, server, path).Body.String(), "does not show everything")
	}
	m.Err = errors.New("the disk does not answer")
	for _, path := range []string{"/health", "/policies"} {
		require.Contains(t, get(t, server, path).Body.String(), "The store did not answer: this page does not show everything.")
	}
}
