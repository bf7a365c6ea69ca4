// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package cputriggerprocessor

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/hotprofile/hotprofile/internal/cgroup"
	"github.com/hotprofile/hotprofile/internal/identify"
	"github.com/hotprofile/hotprofile/processor/cputriggerprocessor/internal/manual"
	"github.com/hotprofile/hotprofile/processor/cputriggerprocessor/internal/units"
	"github.com/hotprofile/hotprofile/test/identifytest"
)

// alert returns an alert as Alertmanager posts it. Labels have the form "name=value".
func alert(status, fingerprint string, startsAt time.Time, labels ...string) map[string]any {
	of := map[string]string{}
	for _, l := range labels {
		name, value, _ := strings.Cut(l, "=")
		of[name] = value
	}
	return map[string]any{"status": status, "fingerprint": fingerprint, "startsAt": startsAt, "labels": of}
}

// post posts alerts to the server of manual and returns the answers.
func (r *rig) post(alerts ...map[string]any) (answers []map[string]any) {
	r.t.Helper()
	if r.p.manual == nil {
		r.p.manual = r.p.newManual(r.p.cfg.manual(), nil)
	}
	return postAlerts(r.t, r.p.manual, alerts...)
}

func postAlerts(t *testing.T, to http.Handler, alerts ...map[string]any) (answers []map[string]any) {
	t.Helper()
	body, err := json.Marshal(map[string]any{"version": "4", "alerts": alerts})
	require.NoError(t, err)
	w := httptest.NewRecorder()
	to.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/v1/alerts", strings.NewReader(string(body))))
	require.Equal(t, http.StatusOK, w.Code, "%s", w.Body)
	var answer struct {
		Alerts []map[string]any `json:"alerts"`
	}
	require.NoError(t, json.Unmarshal(w.Body.Bytes(), &answer))
	return answer.Alerts
}

// withAlerts returns a configuration with one policy. Alerts also open gates, for 20 s.
func withAlerts(policy string) string {
	return onePolicy(policy, "manual: {endpoint: 'localhost:0', alerts: {duration: 20s}}, budgets: {max_concurrent_units: 0}")
}

// inPod returns a container with the attributes that k8s_attributes sets for a pod.
func inPod(id, pod, container string) part {
	p := inContainer(id)
	maps.Copy(p.attributes, map[string]any{"k8s.namespace.name": "shop", "k8s.pod.name": pod, "k8s.container.name": container, "service.name": "checkout"})
	return p
}

func (r *rig) addContainer(id string) {
	r.host.Groups[id] = cgroup.Group{ID: id, ContainerID: id, Cgroup: "/docker/" + id}
	r.watch(id)
}

func TestAnAlertOpensTheGateUnderItsName(t *testing.T) {
	r := newRig(t, withAlerts("duration: 40s, cooldown: 1h"))
	events := r.subscribe()
	fired := r.now.Add(-time.Minute)
	slow := func(status string) map[string]any {
		return alert(status, "f00d", fired, "alertname=CheckoutSlow", "container_id="+containerA[:12], "severity=page")
	}
	got := r.post(slow("firing"))
	require.Len(t, got, 1)
	require.Equal(t, "opened", got[0]["outcome"], got)
	require.Equal(t, containerA, got[0]["unit"])
	require.Equal(t, r.now.Add(20*time.Second).Format(time.RFC3339Nano), got[0]["until"])
	r.p.flush()
	opened := r.last("gate opened")
	require.Equal(t, "CheckoutSlow", opened["policy"])
	require.Equal(t, "CheckoutSlow", opened["monitor"])
	require.NotContains(t, opened, "value")
	require.NotContains(t, opened, "threshold")
	require.Equal(t, got[0]["trigger_id"], opened["trigger_id"])
	require.Equal(t, map[string]int64{"manual opened": 1}, r.triggers(), "its name is no series of the metric")

	require.NoError(t, r.send(batch(t, r.now.Add(time.Second), inContainer(containerA))))
	profile := allProfiles(r.received())[0]
	require.Equal(t, "CheckoutSlow", profile.resource["hotprofile.trigger.policy"])
	require.Equal(t, "alert", profile.resource["hotprofile.trigger.kind"])
	require.Equal(t, "CheckoutSlow", profile.attributes["hotprofile.trigger.monitor"])
	require.Equal(t, "alert", profile.attributes["hotprofile.trigger.window"])

	r.now = r.now.Add(5 * time.Second)
	again := r.post(slow("firing"))
	require.Equal(t, "already_open", again[0]["outcome"])
	require.Equal(t, got[0]["until"], again[0]["until"], "a repetition prolongs nothing")
	closed := r.post(slow("resolved"))
	require.Equal(t, "closed", closed[0]["outcome"])
	require.Equal(t, got[0]["trigger_id"], closed[0]["trigger_id"])
	r.p.flush()
	require.Equal(t, "alert resolved", r.last("gate closed")["why"])
	require.NoError(t, r.send(batch(t, r.now.Add(20*time.Second), inContainer(containerA))))
	require.Len(t, r.sink.AllProfiles(), 1, "the gate is shut")
	require.Equal(t, "already_opened", r.post(slow("firing"))[0]["outcome"])
	require.Equal(t, "not_open", r.post(slow("resolved"))[0]["outcome"])

	require.Equal(t, map[string]int64{"opened": 1, "already_open": 1, "already_opened": 1, "closed": 1, "not_open": 1}, r.metric("otelcol_cpu_trigger.alerts"))
	published := take(events)
	require.Equal(t, []string{"hotprofile.gate.opened", "hotprofile.gate.closed alert resolved"}, names(published))
	require.Equal(t, "alert", asMap(published[0].Attributes)["hotprofile.trigger.kind"])
	require.Equal(t, "CheckoutSlow", asMap(published[0].Attributes)["hotprofile.trigger.policy"])
}

func TestLabelsFindUnitsByTheResourceOfTheirProfiles(t *testing.T) {
	r := newRig(t, withAlerts(""))
	id := func(n int) string { return strings.Repeat(strconv.Itoa(n), 64) }
	for n := range 10 {
		r.addContainer(id(n))
	}
	r.post() // starts the server, which then begins to store resources
	one := func(labels ...string) map[string]any {
		t.Helper()
		got := r.post(alert("firing", strings.Join(labels, "+")[:8]+strconv.Itoa(len(r.log("gate opened"))), r.now, labels...))
		require.NotEmpty(t, got)
		return got[0]
	}
	require.Equal(t, "unknown_unit", one("pod=checkout-1")["outcome"], "no profile named it yet")
	var parts []part
	for n := range 3 {
		parts = append(parts, inPod(id(n), fmt.Sprint("checkout-", n/2), []string{"app", "sidecar"}[n%2]))
	}
	for n := range 7 {
		parts = append(parts, inPod(id(n+3), fmt.Sprint("cart-", n), "app"))
	}
	for _, p := range parts[3:] {
		p.attributes["service.name"] = "cart"
	}
	parts[9].attributes["service.name"] = "checkout"
	require.NoError(t, r.send(batch(t, r.now, parts...)))

	require.Equal(t, id(1), one("namespace=shop", "pod=checkout-0", "container=sidecar")["unit"])
	require.Equal(t, "unknown_unit", one("namespace=other", "pod=checkout-0", "container=sidecar")["outcome"])
	require.Equal(t, "unknown_unit", one("namespace=shop")["outcome"], "a namespace is no unit")
	require.Equal(t, "ambiguous", one("namespace=shop", "container=app")["outcome"])
	both := r.post(alert("firing", "both", r.now, "namespace=shop", "pod=checkout-0"))
	require.Len(t, both, 2, "both containers of the pod")
	require.Equal(t, []any{id(0), id(1)}, []any{both[0]["unit"], both[1]["unit"]})
	all := r.post(alert("firing", "all", r.now, "service_name=checkout"))
	require.Len(t, all, 4)
	resolved := r.post(alert("resolved", "all", r.now, "service_name=checkout"))
	require.Len(t, resolved, 4)
	require.Equal(t, "closed", resolved[3]["outcome"])
	require.Equal(t, []any{"alert"}, resolved[0]["still_open"], "that of the pod's alert")
}

func TestAlertsFindProcesses(t *testing.T) {
	r := newRig(t, withAlerts(""))
	firing := func(since time.Time, labels ...string) map[string]any {
		return r.post(alert("firing", fmt.Sprintf("%d-%d", len(labels), since.Unix()), since, append(labels, "alertname=A")...))[0]
	}
	require.Equal(t, service, firing(r.now, "instance=here:9256", "pid=100")["unit"])
	for _, tc := range []struct {
		since  time.Time
		labels []string
		why    string
	}{
		{r.now, []string{"pid=100"}, "by an instance"},
		{r.now, []string{"instance=there:9256", "pid=100"}, "by an instance"},
		{r.now, []string{"instance=localhost:9256", "pid=100"}, "localhost is not"},
		{r.now, []string{"instance=127.0.0.1:9256", "pid=100"}, "localhost is not"},
		{r.now, []string{"instance=here", "pid=4242"}, "no process here has that pid"},
		{r.now, []string{"instance=here", "pid=x"}, "no number"},
		{r.now.Add(-time.Hour), []string{"instance=here", "pid=100"}, "started after the alert"},
	} {
		got := firing(tc.since, tc.labels...)
		require.Equal(t, "unknown_unit", got["outcome"])
		require.Contains(t, got["why"], tc.why)
	}
	addrs, err := net.InterfaceAddrs()
	require.NoError(t, err)
	for _, a := range addrs {
		if ip := a.(*net.IPNet).IP; !ip.IsLoopback() {
			require.Equal(t, containerA, firing(r.now, "instance="+net.JoinHostPort(ip.String(), "9256"), "pid=200", "n="+ip.String())["unit"])
			break
		}
	}
}

func TestAnAlertForAUnitThatIsGoneAndAfterShutdown(t *testing.T) {
	r := newRig(t, withAlerts(""))
	firing := alert("firing", "f00d", r.now, "alertname=A", "container_id="+containerA)
	require.Equal(t, "opened", r.post(firing)[0]["outcome"])
	r.p.units.Remove(r.unit(containerA), r.now)
	r.p.flush()
	require.Equal(t, "unit gone", r.last("gate closed")["why"])
	require.Equal(t, "not_open", r.post(alert("resolved", "f00d", r.now))[0]["outcome"])
	delete(r.host.Groups, containerA)
	require.Equal(t, "unknown_unit", r.post(firing)[0]["outcome"])

	r.p.closed.Store(true)
	_, _, err := (&gates{p: r.p}).Open(identify.Identity{Name: "x"}, struct{ Key, Name string }{"k", "n"}, time.Second)
	require.ErrorContains(t, err, "shut down")
	r.p.closed.Store(false)
}

// TestARepetitionOpensTheGateOfAUnitThatCameBack covers a service that restarts with a
// cgroup of the same name. The unit's gate closed because the unit was gone, and not
// because the opening had reached its planned end. A repetition of the alert therefore
// opens the gate again, even after the planned end.
func TestARepetitionOpensTheGateOfAUnitThatCameBack(t *testing.T) {
	r := newRig(t, onePolicy("", "manual: {endpoint: 'localhost:0', alerts: {duration: 20s}}, budgets: {max_triggers_per_hour: 4}"))
	firing := alert("firing", "f00d", r.now, "alertname=A", "container_id="+containerA)
	post := func() map[string]any {
		t.Helper()
		return r.post(firing)[0]
	}
	restart := func() {
		t.Helper()
		r.p.units.Remove(r.unit(containerA), r.now)
		r.watch(containerA)
	}
	open := func() bool {
		r.sink.Reset()
		require.NoError(t, r.send(batch(t, r.now, inContainer(containerA))))
		return len(r.sink.AllProfiles()) == 1
	}
	r.watch(containerA)
	first := post()
	require.Equal(t, "opened", first["outcome"], first)

	r.now = r.now.Add(2 * time.Second)
	restart()
	second := post()
	require.Equal(t, "opened", second["outcome"], second)
	require.NotEqual(t, first["trigger_id"], second["trigger_id"])
	require.Equal(t, r.now.Add(20*time.Second).Format(time.RFC3339Nano), second["until"])
	r.now = r.now.Add(time.Second)
	require.True(t, open())
	require.Equal(t, "already_open", post()["outcome"])

	restart()
	r.now = r.now.Add(time.Hour / 2)
	require.Equal(t, "opened", post()["outcome"], "the unit went before the time was over")
	r.run(21 * time.Second)
	require.Equal(t, "already_opened", post()["outcome"], "its time was over")
	restart()
	require.Equal(t, "already_opened", post()["outcome"], "the unit went afterwards")

	resolved := alert("resolved", "f00d", r.now)
	again := alert("firing", "f00d", r.now, "alertname=A", "container_id="+containerA)
	require.Equal(t, "opened", r.post(again)[0]["outcome"], "it fires anew")
	restart()
	require.Equal(t, "over_budget", r.post(again)[0]["outcome"])
	require.Equal(t, "not_open", r.post(resolved)[0]["outcome"])
	r.now = r.now.Add(2 * time.Hour)
	require.Equal(t, "already_opened", r.post(again)[0]["outcome"], "a repetition that comes late")
}

// BenchmarkAlerts handles a request with 1,000 alerts about pods. None of the pods is
// among the 10,000 units of this host.
func BenchmarkAlerts(b *testing.B) {
	p, _ := manyUnits(b, units.Max, createDefaultConfig())
	p.router.Host = identifytest.NewHost()
	p.keepResources()
	for i := range units.Max {
		name := fmt.Sprintf("/s%05d", i)
		claim := identify.ClaimOf(attributeMap(b, map[string]any{"k8s.namespace.name": "shop", "k8s.pod.name": fmt.Sprint("pod-", i), "k8s.container.name": "app", "service.name": "checkout"}))
		require.Empty(b, p.units.Admit(identify.Identity{Name: name, Group: cgroup.Group{ID: name, Cgroup: name}}, claim, "", epoch, nil))
	}
	var alerts []map[string]any
	for i := range 1000 {
		alerts = append(alerts, alert("firing", strconv.Itoa(i), epoch, "alertname=A", "namespace=shop", "container=app", fmt.Sprint("pod=other-", i)))
	}
	body, err := json.Marshal(map[string]any{"version": "4", "alerts": alerts})
	require.NoError(b, err)
	cfg := manual.DefaultConfig()
	server := p.newManual(&cfg, nil)
	b.ReportAllocs()
	for b.Loop() {
		w := httptest.NewRecorder()
		server.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/v1/alerts", bytes.NewReader(body)))
		require.Equal(b, http.StatusOK, w.Code)
	}
}
