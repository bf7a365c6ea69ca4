// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package cputriggerprocessor

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/component/componentstatus"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/consumer/consumertest"
	"go.opentelemetry.io/collector/processor/processortest"
	"go.opentelemetry.io/otel/attribute"

	"github.com/hotprofile/hotprofile/extension/hotunitsextension"
	"github.com/hotprofile/hotprofile/internal/hostid"
	"github.com/hotprofile/hotprofile/internal/identify"
	"github.com/hotprofile/hotprofile/internal/monitor"
	"github.com/hotprofile/hotprofile/internal/trigger"
	"github.com/hotprofile/hotprofile/processor/cputriggerprocessor/internal/metadata"
)

// statusHost stores the last status that a component reported.
type statusHost struct {
	component.Host
	mu   sync.Mutex
	last *componentstatus.Event
}

func (h *statusHost) Report(e *componentstatus.Event) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.last = e
}

// status returns the error of the last status. It returns nil if there was no error.
func (h *statusHost) status() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.last == nil || h.last.Status() == componentstatus.StatusOK {
		return nil
	}
	return h.last.Err()
}

const (
	usagePolicy  = "- {name: usage, any_of: [{monitor: cpu_usage, threshold: 1, average_over: 5s}], duration: 10m, cooldown: 1h}\n"
	otherPolicy  = "- {name: other, any_of: [{monitor: cpu_utilization, threshold: 50, average_over: 5s}], duration: 10m, cooldown: 1h}\n"
	threadPolicy = "- {name: threads, any_of: [{monitor: thread_count, threshold: 5, average_over: 5s}], duration: 10m, cooldown: 1h}\n"
)

// reloading returns a rig whose policies come from a file, and the path of that file.
func reloading(t *testing.T, document string) (r *rig, host *statusHost, path string) {
	t.Helper()
	path = policyFile(t, document)
	r = newRig(t, fmt.Sprintf("{pre_trigger: 0s, min_age: 0s, policies_from: {file: %q}}", path))
	host = &statusHost{Host: componenttest.NewNopHost()}
	r.p.health = newHealth(host)
	var err error
	r.p.reloader, err = r.p.newReloader(t.Context(), host)
	require.NoError(t, err)
	require.NoError(t, r.p.reloader.first(t.Context()))
	return r, host, path
}

// reload replaces the file and makes the reloader read it.
func (r *rig) reload(path, document string) error {
	writePolicies(r.t, path, document)
	return r.p.reloader.read(r.t.Context())
}

func TestPoliciesChangeWhileGatesAreOpen(t *testing.T) {
	r, host, path := reloading(t, usagePolicy+otherPolicy)
	changed := r.last("policies changed")
	require.Equal(t, []any{"usage", "other"}, changed["added"])
	require.Equal(t, path, changed["from"])
	events := r.subscribe()
	r.watch(containerA, containerB)
	r.source.cores[containerA] = 1.9
	r.run(10 * time.Second)
	require.Len(t, r.log("gate opened"), 2)
	opened := r.log("gate opened")
	take(events)

	// A list with an invalid policy is refused as a whole. The old policies
	// stay in force.
	require.Error(t, r.reload(path, threadPolicy+"- {name: usage, any_of: [{monitor: cpu_usage}]}\n"))
	require.ErrorContains(t, host.status(), "line 2: policies[1].any_of[0].threshold")
	refused := r.last("policies refused")
	require.Contains(t, refused["error"], "line 2: ")
	r.run(5 * time.Second)
	require.Error(t, r.p.reloader.read(t.Context()), "and again")
	require.Len(t, r.log("policies refused"), 1)
	require.Empty(t, r.log("gate closed"))
	require.Empty(t, take(events))

	// The next valid list clears the status. Compared to the old list, one policy stays,
	// one policy is removed, and one policy is added.
	require.NoError(t, r.reload(path, threadPolicy+usagePolicy))
	require.NoError(t, host.status())
	require.NotEmpty(t, r.log("policies accepted again"))
	r.p.flush()
	require.Len(t, r.log("gate closed"), 1)
	closed := r.last("gate closed")
	require.Equal(t, "policy removed", closed["why"])
	require.Equal(t, "other", closed["policy"])
	changed = r.last("policies changed")
	require.Equal(t, []any{"threads"}, changed["added"])
	require.Equal(t, []any{"other"}, changed["removed"])
	require.Empty(t, changed["changed"])
	published := take(events)
	require.ElementsMatch(t, []string{"hotprofile.policies.changed", "hotprofile.gate.closed policy removed"}, names(published))
	for _, e := range published {
		if e.Name == "hotprofile.policies.changed" {
			require.Equal(t, "policies changed: 1 added, 1 removed, 0 changed", e.Body)
			require.Equal(t, []attribute.KeyValue{attribute.String("host.name", hostid.Best(hostid.Names("/")))}, e.Resource)
			require.Equal(t, map[string]any{
				"hotprofile.policies.version": hotunitsextension.PolicyVersion([]byte(threadPolicy + usagePolicy)), "hotprofile.policies.from": path,
				"hotprofile.policies.added": []string{"threads"}, "hotprofile.policies.removed": []string{"other"},
			}, asMap(e.Attributes))
		}
	}
	require.Equal(t, map[string]int64{hotunitsextension.PolicyVersion([]byte(threadPolicy + usagePolicy)): 2}, r.metric("otelcol_cpu_trigger.policies"))
	require.Equal(t, map[string]int64{"changed": 2, "refused": 2}, r.metric("otelcol_cpu_trigger.policies.reads"))

	// The monitors change with the policies. The gate of the remaining policy stays open.
	r.source.set(containerA, monitor.ThreadCount, 9)
	r.run(10 * time.Second)
	require.Equal(t, []string{monitor.CPUUsage, monitor.ThreadCount}, r.c.Monitors.Names)
	require.Equal(t, map[string]float64{monitor.CPUUsage: 1, monitor.ThreadCount: 5}, r.source.least)
	require.Len(t, r.log("gate opened"), 3)
	require.Equal(t, "threads", r.last("gate opened")["policy"])
	openings := r.decision(containerA).Openings(nil)
	require.Len(t, openings, 2)
	require.Equal(t, "usage", openings[1].Policy)
	require.Contains(t, []any{opened[0].ContextMap()["trigger_id"], opened[1].ContextMap()["trigger_id"]}, openings[1].ID)

	// Writing the same list again is not a change, even with a comment or in
	// another order.
	for _, same := range []string{threadPolicy + usagePolicy, "# ours\n" + threadPolicy + usagePolicy, usagePolicy + threadPolicy} {
		require.NoError(t, r.reload(path, same))
	}
	require.Len(t, r.log("policies changed"), 2)

	// A disabled policy is removed.
	require.NoError(t, r.reload(path, "- {name: threads, enabled: false, any_of: [{monitor: thread_count, threshold: 5}]}\n"+usagePolicy))
	r.p.flush()
	require.Equal(t, "threads", r.last("gate closed")["policy"])
	require.Equal(t, []any{"threads"}, r.last("policies changed")["removed"])
}

// TestUnchangedReadingsGoOn changes another policy while a window fills. The change must
// not remove readings from the window.
func TestUnchangedReadingsGoOn(t *testing.T) {
	r, _, path := reloading(t, "- {name: long, any_of: [{monitor: cpu_usage, threshold: 1, average_over: 30s}]}\n")
	r.watch(containerA)
	r.source.cores[containerA] = 1.9
	r.run(20 * time.Second)
	require.NoError(t, r.reload(path, threadPolicy+"- {name: long, any_of: [{monitor: cpu_usage, threshold: 1, average_over: 30s}]}\n"))
	took := r.runUntil("gate opened", time.Minute)
	require.LessOrEqual(t, took, 15*time.Second, "the 20 seconds before count")
}

// TestPoliciesThatNeedSpansComeLater covers a reload that adds policies that need spans.
// A single warning must be logged if no traces or metrics pipeline exists.
func TestPoliciesThatNeedSpansComeLater(t *testing.T) {
	r, _, path := reloading(t, usagePolicy)
	signals := r.p.cfg.instance.signals
	signals["profiles"] = true
	slow := "- {name: slow, any_of: [{monitor: http_response_time, threshold: 500, average_over: 5s}]}\n"
	require.NoError(t, r.reload(path, usagePolicy+slow))
	require.Len(t, r.log("policies need spans or metrics, and no traces or metrics pipeline has this component"), 1)
	signals["traces"] = true
	require.NoError(t, r.reload(path, slow))
	require.Len(t, r.log("policies need spans or metrics, and no traces or metrics pipeline has this component"), 1)
	require.ErrorContains(t, r.reload(path, "- {name: slow, any_of: [{monitor: http_response_time, percentile: 101, threshold: 500}]}\n"), "percentile")
}

// TestPoliciesThatSelectByAttributes checks that a reload keeps the known
// attributes of units.
func TestPoliciesThatSelectByAttributes(t *testing.T) {
	const named = "- {name: named, match: {service.name: checkout}, any_of: [{monitor: cpu_usage, threshold: 1, average_over: 5s}], duration: 10s, cooldown: 0s}\n"
	r, _, path := reloading(t, named)
	p := inContainer(containerA)
	p.attributes["service.name"] = "checkout"
	require.NoError(t, r.send(batch(t, r.now, p)))
	require.NoError(t, r.reload(path, threadPolicy+named))
	r.source.cores[containerA] = 1.9
	r.runUntil("gate opened", time.Minute)

	// A changed match takes effect at the unit's next profile.
	const renamed = "- {name: named, match: {service.name: check*}, any_of: [{monitor: cpu_usage, threshold: 1, average_over: 5s}], duration: 10s, cooldown: 0s}\n"
	require.NoError(t, r.reload(path, renamed))
	r.run(time.Minute)
	require.Len(t, r.log("gate opened"), 1)
	require.NoError(t, r.send(batch(t, r.now, p)))
	r.run(10 * time.Second)
	require.Len(t, r.log("gate opened"), 2)

	// The policies of this document apply to every unit. After the next reload, the policies
	// apply only to matching units again.
	require.NoError(t, r.reload(path, usagePolicy))
	r.run(10 * time.Second)
	require.Equal(t, "usage", r.last("gate opened")["policy"])
	require.NoError(t, r.reload(path, renamed))
	r.run(10 * time.Second)
	require.Empty(t, r.decision(containerA).Openings(nil))
}

// TestTypesOfAnOpenGateStay checks that an open gate keeps passing the profile types that
// its policy had when the gate opened.
func TestTypesOfAnOpenGateStay(t *testing.T) {
	const typed = "- {name: usage, any_of: [{monitor: cpu_usage, threshold: 1, average_over: 5s}], profile_types: [%s], duration: 10m}\n"
	r, _, path := reloading(t, fmt.Sprintf(typed, "off_cpu"))
	r.fire(containerA)
	require.NoError(t, r.reload(path, fmt.Sprintf(typed, "cpu")))
	require.Equal(t, []any{"usage"}, r.last("policies changed")["changed"])
	r.run(10 * time.Second)
	require.NoError(t, r.send(batch(t, r.now, inContainer(containerA))))
	require.Equal(t, int64(6), r.samples()["filtered"])
}

func TestAPolicyFileThatGoesAway(t *testing.T) {
	r, host, path := reloading(t, usagePolicy)
	require.NoError(t, os.Remove(path))
	for range 3 {
		require.ErrorIs(t, r.p.reloader.read(t.Context()), os.ErrNotExist)
	}
	require.ErrorContains(t, host.status(), "cannot be read")
	require.Len(t, r.log("cannot read policies"), 1)
	require.NoError(t, r.reload(path, usagePolicy))
	require.NoError(t, host.status())
	require.EqualValues(t, 3, r.last("policies read again")["failed"])
	require.Equal(t, map[string]int64{"changed": 1, "unchanged": 1, "failed": 3}, r.metric("otelcol_cpu_trigger.policies.reads"))

	// Another fault of the processor stays in the status.
	r.p.health.set(storageFault, fmt.Errorf("no storage"))
	require.Error(t, r.reload(path, ""))
	require.ErrorContains(t, host.status(), "empty")
	require.NoError(t, r.reload(path, usagePolicy))
	require.EqualError(t, host.status(), "no storage")
}

// TestTheStartWithPoliciesFromAFile checks that the start fails if the policy file is
// missing or invalid and the configuration contains no policies. If the configuration
// contains policies, the processor starts without the file and reads it later.
func TestTheStartWithPoliciesFromAFile(t *testing.T) {
	start := func(text string) (*cpuTrigger, *statusHost, error) {
		cfg, err := load(t, text)
		require.NoError(t, err)
		cfg.RootPath = t.TempDir() // has no control groups
		p, err := newProcessorAt(processortest.NewNopSettings(metadata.Type), cfg, consumertest.NewNop(), time.Now, &evenly{})
		require.NoError(t, err)
		p.reloadEvery = 5 * time.Millisecond
		t.Cleanup(func() { require.NoError(t, p.Shutdown(t.Context())) })
		host := &statusHost{Host: componenttest.NewNopHost()}
		return p, host, p.Start(t.Context(), host)
	}
	missing := filepath.Join(t.TempDir(), "policies.yaml")
	_, _, err := start(fmt.Sprintf("policies_from: {file: %q}", missing))
	require.ErrorContains(t, err, "policies_from.file: ")
	require.ErrorContains(t, err, missing)
	require.ErrorContains(t, err, "set policies too")
	_, _, err = start(fmt.Sprintf("policies_from: {file: %q}", policyFile(t, "- {name: a}")))
	require.ErrorContains(t, err, "line 1: policies[0].any_of")

	p, host, err := start(fmt.Sprintf("{policies_from: {file: %q}, policies: [{name: first, any_of: [{monitor: cpu_usage, threshold: 1}]}]}", missing))
	require.NoError(t, err)
	require.ErrorContains(t, host.status(), missing)
	writePolicies(t, missing, usagePolicy)
	require.Eventually(t, func() bool { return p.inForce.Load().cfg.Policies[0].Name == "usage" }, 30*time.Second, 10*time.Millisecond)
	require.Eventually(t, func() bool { return !errorContains(host.status(), missing) }, 30*time.Second, 10*time.Millisecond)
	require.Error(t, host.status(), "there are no control groups")
}

func errorContains(err error, text string) bool {
	return err != nil && len(text) > 0 && strings.Contains(err.Error(), text)
}

// TestPoliciesFromAServerComeLater starts the processor before the server answers. The
// cooldowns of the previous run are kept until their policy arrives.
func TestPoliciesFromAServerComeLater(t *testing.T) {
	var up atomic.Bool
	var conditional atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case !up.Load():
			w.WriteHeader(http.StatusServiceUnavailable)
		case r.Header.Get("If-None-Match") == `"1"`:
			conditional.Add(1)
			w.WriteHeader(http.StatusNotModified)
		default:
			w.Header().Set("ETag", `"1"`)
			_, _ = io.WriteString(w, usagePolicy)
		}
	}))
	defer server.Close()
	cfg, err := load(t, fmt.Sprintf("{policies_from: {http: {endpoint: %q}}}", server.URL))
	require.NoError(t, err)
	cfg.RootPath = t.TempDir()
	now := time.Now()
	p, err := newProcessorAt(processortest.NewNopSettings(metadata.Type), cfg, consumertest.NewNop(), func() time.Time { return now }, &evenly{})
	require.NoError(t, err)
	p.reloadEvery = 5 * time.Millisecond
	p.units.Restore(trigger.Snapshot{Taken: now, Units: []trigger.Cooldown{{Name: containerA, Policy: "usage", Until: now.Add(30 * time.Minute)}}}, now)
	host := &statusHost{Host: componenttest.NewNopHost()}
	require.NoError(t, p.Start(t.Context(), host))
	require.Eventually(t, func() bool { return errorContains(host.status(), "503") }, 30*time.Second, time.Millisecond)
	require.Empty(t, p.inForce.Load().cfg.Policies)
	require.Len(t, p.units.Snapshot(now).Units, 1)
	up.Store(true)
	require.Eventually(t, func() bool { return len(p.inForce.Load().cfg.Policies) == 1 && conditional.Load() > 0 }, 30*time.Second, time.Millisecond)
	require.NoError(t, p.Shutdown(t.Context()))
	snapshot := p.units.Snapshot(now)
	require.Equal(t, []trigger.Cooldown{{Name: containerA, Policy: "usage", Until: now.Add(30 * time.Minute).Round(0).UTC()}}, snapshot.Units)
}

// bearer is a client authenticator like the extension bearertokenauth.
type bearer struct {
	component.Component
	token string
}

func (b bearer) RoundTripper(base http.RoundTripper) (http.RoundTripper, error) {
	return roundTripper(func(r *http.Request) (*http.Response, error) {
		r = r.Clone(r.Context())
		r.Header.Set("Authorization", "Bearer "+b.token)
		return base.RoundTrip(r)
	}), nil
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// TestPoliciesFromAServerWithAnAuthenticator checks that each request contains the
// credentials, even if the server answers it with 304.
func TestPoliciesFromAServerWithAnAuthenticator(t *testing.T) {
	unchanged := 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.Header.Get("Authorization") != "Bearer open sesame":
			w.WriteHeader(http.StatusUnauthorized)
		case r.Header.Get("If-None-Match") == `"1"`:
			unchanged++
			w.WriteHeader(http.StatusNotModified)
		default:
			w.Header().Set("ETag", `"1"`)
			_, _ = io.WriteString(w, usagePolicy)
		}
	}))
	defer server.Close()
	id := component.MustNewID("bearertokenauth")
	for name, tc := range map[string]struct {
		auth       string
		extensions hostWith
		missing    string // error of the start
		status     string // empty if the policies are read
	}{
		"with the token":        {", auth: {authenticator: bearertokenauth}", hostWith{id: bearer{token: "open sesame"}}, "", ""},
		"with another token":    {", auth: {authenticator: bearertokenauth}", hostWith{id: bearer{token: "please"}}, "", "401"},
		"without one":           {"", hostWith{id: bearer{token: "open sesame"}}, "", "401"},
		"without the extension": {", auth: {authenticator: bearertokenauth}", hostWith{}, "bearertokenauth", ""},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, fmt.Sprintf("{policies_from: {http: {endpoint: %q%s}}}", server.URL, tc.auth))
			host := &statusHost{Host: tc.extensions}
			r.p.health = newHealth(host)
			var err error
			r.p.reloader, err = r.p.newReloader(t.Context(), host)
			if tc.missing != "" {
				require.ErrorContains(t, err, "policies_from.http: ")
				require.ErrorContains(t, err, tc.missing)
				return
			}
			require.NoError(t, err)
			if tc.status != "" {
				require.ErrorContains(t, r.p.reloader.read(t.Context()), tc.status)
				require.ErrorContains(t, host.status(), tc.status)
				require.Empty(t, r.p.inForce.Load().cfg.Policies)
				require.Equal(t, map[string]int64{"failed": 1}, r.metric("otelcol_cpu_trigger.policies.reads"))
				return
			}
			require.NoError(t, r.p.reloader.read(t.Context()))
			require.NoError(t, r.p.reloader.read(t.Context()))
			require.NoError(t, host.status())
			require.Len(t, r.p.inForce.Load().cfg.Policies, 1)
			require.Equal(t, map[string]int64{"changed": 1, "unchanged": 1}, r.metric("otelcol_cpu_trigger.policies.reads"))
			require.Equal(t, 1, unchanged)
		})
	}
}

// TestPoliciesChangeUnderLoad replaces policies while profiles pass, units come and go,
// monitors are read and gates are opened manually.
func TestPoliciesChangeUnderLoad(t *testing.T) {
	cfg, err := load(t, "{pre_trigger: 1s, min_age: 0s, policies_from: {file: none}, policies: [{name: usage, any_of: [{monitor: cpu_usage, threshold: 0, average_over: 1s}]}]}")
	require.NoError(t, err)
	now := time.Now
	p, err := newProcessorAt(processortest.NewNopSettings(metadata.Type), cfg, consumertest.NewNop(), now, &evenly{})
	require.NoError(t, err)
	p.health = newHealth(componenttest.NewNopHost())
	p.reloader, err = p.newReloader(t.Context(), componenttest.NewNopHost())
	require.NoError(t, err)
	r := newRig(t, "")
	p.router.Host = r.host
	p.collector = p.newCollector(nil, idleSource{})
	p.collector.UserTimes = r.c.UserTimes
	stop := make(chan struct{})
	var all sync.WaitGroup
	forever := func(call func()) {
		all.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					call()
				}
			}
		})
	}
	named := inContainer(containerA)
	named.attributes["service.name"] = "checkout"
	forever(func() { _ = p.ConsumeProfiles(t.Context(), batch(t, now(), named)) })
	forever(func() { p.collector.Collect() })
	forever(func() { p.evaluate() })
	forever(func() {
		id := identify.Identity{Name: containerB, Group: r.host.Groups[containerB]}
		p.units.Add(id, now())
		_, _, _ = p.units.OpenGate(id, trigger.Alert{}, time.Second, now())
		p.units.Expire(now().Add(time.Hour), now())
	})
	const selecting = "- {name: usage, match: {service.name: '*'}, profile_types: [cpu], any_of: [{monitor: cpu_utilization, threshold: 0, average_over: 1s}]}\n"
	documents := []string{usagePolicy, threadPolicy + usagePolicy, selecting, selecting + otherPolicy, "broken"}
	for n := range 200 {
		next, err := p.inForce.Load().cfg.withPolicies([]byte(documents[n%len(documents)]))
		if err == nil {
			require.NoError(t, p.setPolicies(next, fmt.Sprint(n)))
		}
	}
	close(stop)
	all.Wait()
	require.NoError(t, p.Shutdown(t.Context()))
}
