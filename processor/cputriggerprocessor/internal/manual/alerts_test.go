// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package manual

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/hotprofile/hotprofile/internal/identify"
	"github.com/hotprofile/hotprofile/internal/otlpprofiles/attr"
	"github.com/hotprofile/hotprofile/internal/trigger"
	"github.com/hotprofile/hotprofile/internal/trigger/budget"
)

// alertRig handles alerts with its own decision engine.
type alertRig struct {
	*Alerts
	t      *testing.T
	engine *trigger.Engine
	time   time.Time
	units  map[string][]string // unit names, by the identifier in the alert
	named  []Named
	counts map[Outcome]int
	log    *observer.ObservedLogs
	refuse error
}

var alertsStart = time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)

func newAlertRig(t *testing.T, cfg AlertsConfig, limits budget.Limits) *alertRig {
	engine, err := trigger.New(trigger.Config{CollectionInterval: time.Second, Budgets: limits})
	require.NoError(t, err)
	r := &alertRig{t: t, engine: engine, time: alertsStart, units: map[string][]string{}, counts: map[Outcome]int{}}
	core, log := observer.New(zap.DebugLevel)
	r.log = log
	r.Alerts = NewAlerts(cfg, 30*time.Second, func() Gates { return r }, func(o Outcome) { r.counts[o]++ }, func() time.Time { return r.time }, zap.New(core))
	return r
}

func (r *alertRig) Find(n Named) (found []identify.Identity, why string) {
	r.named = append(r.named, n)
	by := n.ContainerID + n.Cgroup + n.PID + n.Attributes[attr.PodName] + n.Attributes[attr.ServiceName]
	for _, name := range r.units[by] {
		found = append(found, identify.Identity{Name: name})
	}
	return found, "it is not here"
}

func (r *alertRig) Open(unit identify.Identity, a trigger.Alert, d time.Duration) (Opened, bool, error) {
	if r.refuse != nil {
		return Opened{}, false, r.refuse
	}
	o, opened, err := r.engine.Decision(unit.Name).OpenGate(a, d, r.time)
	if err != nil {
		return Opened{}, false, err
	}
	return Opened{TriggerID: o.ID + " " + o.Policy, Unit: o.Unit, Until: o.Until(), LostUnit: o.LostUnit}, opened, nil
}

func (r *alertRig) Close(unit, key string) (Closed, error) {
	u, ok := r.engine.Lookup(unit)
	if !ok {
		return Closed{}, ErrNotOpen
	}
	o := u.CloseGate(key, r.time)
	if o == nil {
		return Closed{}, ErrNotOpen
	}
	return Closed{TriggerID: o.ID, Unit: o.Unit, Closed: o.ClosedAt, StillOpen: []string{"cpu"}}, nil
}

type labels map[string]string

// message returns the body of a webhook with one alert.
func message(status, fingerprint string, startsAt time.Time, of labels) string {
	text, _ := json.Marshal(map[string]any{"version": "4", "alerts": []any{map[string]any{
		"status": status, "fingerprint": fingerprint, "startsAt": startsAt, "labels": of,
	}}})
	return string(text)
}

// post handles a message and returns the answers as "outcome unit id".
func (r *alertRig) post(body string) (out []string) {
	r.t.Helper()
	for _, a := range r.answers(body) {
		out = append(out, strings.TrimSpace(fmt.Sprint(a.Outcome, " ", a.Unit, " ", a.TriggerID)))
	}
	return out
}

func (r *alertRig) answers(body string) []alertAnswer {
	r.t.Helper()
	alerts, _, err := decodeAlerts([]byte(body))
	require.NoError(r.t, err)
	answers, err := r.handle(r.t.Context(), alerts)
	require.NoError(r.t, err)
	return answers
}

func TestAnAlertOpensOnceForEachTimeThatItFires(t *testing.T) {
	r := newAlertRig(t, AlertsConfig{}, budget.Limits{})
	r.units["checkout-0"] = []string{"a"}
	of := labels{"alertname": "Slow", "pod": "checkout-0", "severity": "page"}
	first := alertsStart.Add(-time.Minute)

	require.Equal(t, []string{"opened a 1 Slow"}, r.post(message("firing", "f1", first, of)))
	r.time = r.time.Add(10 * time.Second)
	require.Equal(t, []string{"already_open a 1 Slow"}, r.post(message("firing", "f1", first, of)))
	require.Equal(t, alertsStart.Add(30*time.Second), *r.answers(message("firing", "f1", first, of))[0].Until, "it is not prolonged")
	require.Equal(t, []string{"already_open a 1 Slow"}, r.post(message("firing", "f1", first.Add(-time.Second), of)), "another Prometheus saw it earlier")
	r.time = r.time.Add(5 * time.Minute)
	require.Equal(t, []string{"already_opened a 1 Slow"}, r.post(message("firing", "f1", first, of)), "its time is over")
	require.Equal(t, []string{"not_open"}, r.post(message("resolved", "f1", first, of)))

	again := r.time
	require.Equal(t, []string{"opened a 2 Slow"}, r.post(message("firing", "f1", again, of)), "it fires anew")
	require.Equal(t, []string{"opened a 3 Slow"}, r.post(message("firing", "f2", again, of)), "an alert of other labels")
	require.Equal(t, []string{"closed a 2"}, r.post(message("resolved", "f1", again, of)))
	require.Equal(t, []string{"not_open"}, r.post(message("resolved", "f1", again, of)))
	require.Equal(t, []string{"already_opened a 2 Slow"}, r.post(message("firing", "f1", again, of)), "a repetition that comes late")
	require.Equal(t, []string{"already_open a 3 Slow"}, r.post(message("firing", "f2", again, of)), "the other one's gate stays open")
	require.Equal(t, []string{"not_open"}, r.post(message("resolved", "nobody", again, of)))
	require.Equal(t, map[Outcome]int{alertOpened: 3, alertAlreadyOpen: 4, alertAlreadyOpened: 2, alertNotOpen: 3, alertClosed: 1}, r.counts)

	r.units["checkout-0"] = []string{"b"} // the container has restarted
	require.Equal(t, []string{"opened b 4 Slow"}, r.post(message("firing", "f2", again, of)))
	require.Equal(t, []string{"closed a 3", "closed b 4"}, r.post(message("resolved", "f2", again, of)))
}

func TestWhatLabelsName(t *testing.T) {
	for name, tc := range map[string]struct {
		labels  labels
		mapping map[string]string
		want    Named
		outcome Outcome
		why     string
	}{
		"a container's id":                       {labels{"container_id": "4f1c0c6b8a2e", "pod": "p"}, nil, Named{ContainerID: "4f1c0c6b8a2e", Attributes: labels{attr.PodName: "p"}}, "", ""},
		"a container's id of kube-state-metrics": {labels{"container_id": "containerd://4f1c0c6b8a2e"}, nil, Named{ContainerID: "4f1c0c6b8a2e", Attributes: labels{}}, "", ""},
		"a pod's container": {
			labels{"namespace": "shop", "pod": "checkout-0", "container": "app", "instance": "10.0.0.9:8080", "job": "kubelet"},
			nil,
			Named{Host: "10.0.0.9:8080", Attributes: labels{attr.NamespaceName: "shop", attr.PodName: "checkout-0", attr.ContainerName: "app"}},
			"", "",
		},
		"a service":        {labels{"service_name": "checkout", "service_namespace": "shop"}, nil, Named{Attributes: labels{attr.ServiceName: "checkout", attr.ServiceNamespace: "shop"}}, "", ""},
		"a process":        {labels{"instance": "node1:9256", "pid": "4711"}, nil, Named{PID: "4711", Host: "node1:9256", Attributes: labels{}}, "", ""},
		"a cgroup":         {labels{"id": "/kubepods/x"}, labels{"id": cgroupLabel}, Named{Cgroup: "/kubepods/x", Attributes: labels{}}, "", ""},
		"own labels":       {labels{"pod": "p", "team": "blue"}, labels{"team": "team.name"}, Named{Attributes: labels{"team.name": "blue"}}, "", ""},
		"only a namespace": {labels{"namespace": "shop", "instance": "node1"}, nil, Named{}, alertUnknownUnit, "no label that names a unit: there are container, container_id, instance, namespace, pid, pod, service_name, service_namespace"},
		"nothing known":    {labels{"severity": "page"}, nil, Named{}, alertUnknownUnit, "no label that names a unit"},
		"two that differ":  {labels{"pod": "kube-state-metrics-0", "exported_pod": "p"}, labels{"pod": attr.PodName, "exported_pod": attr.PodName}, Named{}, alertAmbiguous, "exported_pod and pod, which both are k8s.pod.name, differ"},
		"two that agree":   {labels{"pod": "p", "exported_pod": "p"}, labels{"pod": attr.PodName, "exported_pod": attr.PodName}, Named{Attributes: labels{attr.PodName: "p"}}, "", ""},
		"an empty label":   {labels{"pod": "p", "container": ""}, nil, Named{Attributes: labels{attr.PodName: "p"}}, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			r := newAlertRig(t, AlertsConfig{Labels: tc.mapping}, budget.Limits{})
			got, outcome, why := r.Alerts.named(alert{Labels: tc.labels})
			require.Equal(t, tc.outcome, outcome)
			require.Contains(t, why, tc.why)
			require.Equal(t, tc.want, got)
		})
	}
}

func TestWhyAnAlertOpensNoGate(t *testing.T) {
	r := newAlertRig(t, AlertsConfig{Duration: time.Minute}, budget.Limits{MaxConcurrentUnits: 2})
	for _, pod := range []string{"p", "q"} {
		r.units[pod] = []string{"unit of " + pod}
	}
	for i := range 9 {
		r.units["replicas"] = append(r.units["replicas"], strconv.Itoa(i))
	}
	firing := func(key, pod string) string { return message("firing", key, alertsStart, labels{"pod": pod}) }
	require.Equal(t, []string{"opened unit of p 1 alert"}, r.post(firing("f1", "p")), "without a name")
	over := r.answers(firing("f2", "q"))
	require.Equal(t, alertOverBudget, over[0].Outcome)
	require.Equal(t, budget.MaxConcurrentUnits, over[0].Budget)
	require.Equal(t, []string{"unknown_unit"}, r.post(firing("f3", "elsewhere")))
	require.Equal(t, []string{"ambiguous"}, r.post(firing("f4", "replicas")))
	for i := range 7 {
		require.Len(t, r.post(firing(fmt.Sprint("more", i), "p")), 1)
	}
	require.Equal(t, []string{"too_many unit of p"}, r.post(firing("f5", "p")))
	r.time = r.time.Add(2 * time.Minute)
	r.engine.Evaluate(r.time)
	require.Equal(t, []string{"opened unit of q 9 alert"}, r.post(firing("f2", "q")), "a repetition opens what there was no room for")

	infos := r.log.FilterMessage("alerts opened no gates").All()
	require.Len(t, infos, 3, "over budget, ambiguous, too many")
	require.Equal(t, "f2", infos[0].ContextMap()["fingerprint"])
	require.Len(t, r.log.FilterMessage("alert names no unit").All(), 1)

	r.refuse = ErrShutdown
	alerts, _, err := decodeAlerts([]byte(firing("f6", "p")))
	require.NoError(t, err)
	_, err = r.handle(t.Context(), alerts)
	require.ErrorIs(t, err, ErrShutdown)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = r.handle(ctx, alerts)
	require.ErrorIs(t, err, context.Canceled)
}

func TestAMalformedAlertDoesNotAffectTheOthers(t *testing.T) {
	r := newAlertRig(t, AlertsConfig{}, budget.Limits{})
	r.units["p"] = []string{"a"}
	got := r.answers(`{"version": "4", "alerts": [
		{"status": "firing", "labels": {"pod": "p"}, "startsAt": "2026-05-01T12:00:00Z", "fingerprint": ""},
		{"status": "pending", "labels": {"pod": "p"}, "startsAt": "2026-05-01T12:00:00Z", "fingerprint": "f1"},
		{"status": "firing", "labels": {"pod": 7}, "startsAt": "2026-05-01T12:00:00Z", "fingerprint": "f1"},
		{"status": "firing", "labels": {"pod": "p"}, "startsAt": "yesterday", "fingerprint": "f1"},
		{"status": "firing", "labels": {"pod": "p"}, "startsAt": "2026-05-01T12:00:00Z", "fingerprint": "two words"},
		17, null,
		{"status": "firing", "labels": {"pod": "p"}, "startsAt": "2026-05-01T12:00:00Z", "fingerprint": "f1"}]}`)
	require.Len(t, got, 8)
	for i, why := range []string{"fingerprint: must be set", `status: "pending" is not one of firing, resolved`, "labels", "yesterday", "fingerprint: must be printable", "decode", "fingerprint"} {
		require.Equal(t, alertMalformed, got[i].Outcome, i)
		require.Contains(t, got[i].Why, why)
	}
	require.Equal(t, alertOpened, got[7].Outcome)
}

func TestNamesOfAlertsAreClaims(t *testing.T) {
	r := newAlertRig(t, AlertsConfig{}, budget.Limits{})
	for name, want := range map[string]string{
		"": "alert", "Slow": "Slow", "a,b": "a_b", "line\nbreak\x00": "line_break_", "bad\xff": "bad_", "überlast": "überlast",
		strings.Repeat("ü", 100): strings.Repeat("ü", 64), strings.Repeat("x", 127) + "ü": strings.Repeat("x", 127),
	} {
		one := alert{Labels: labels{"alertname": name}}
		require.Equal(t, want, one.name(), name)
	}
	for i := range maxNames {
		one := alert{Labels: labels{"alertname": fmt.Sprint("A", i)}}
		require.Equal(t, one.name(), r.policyOf(one))
	}
	require.Equal(t, otherAlert, r.policyOf(alert{Labels: labels{"alertname": "B"}}), "a bound on policies")
	require.Equal(t, "A7", r.policyOf(alert{Labels: labels{"alertname": "A7"}}))
}

func TestWhatIsRememberedOfAlertsIsBounded(t *testing.T) {
	r := newAlertRig(t, AlertsConfig{}, budget.Limits{})
	r.units["kept"], r.units["p"] = []string{"kept"}, []string{"a"}
	require.Equal(t, []string{"opened kept 1 alert"}, r.post(message("firing", "kept", alertsStart, labels{"pod": "kept"})))
	for i := range 3 * maxOpened {
		r.time = r.time.Add(31 * time.Second)
		if i%500 == 0 { // the alert is repeated
			require.Equal(t, []string{"already_opened kept 1 alert"}, r.post(message("firing", "kept", alertsStart, labels{"pod": "kept"})))
		}
		r.engine.Evaluate(r.time)
		require.Len(t, r.post(message("firing", strconv.Itoa(i), alertsStart, labels{"pod": "p"})), 1)
		require.LessOrEqual(t, r.opened.Len(), maxOpened)
	}
	// This pod's container restarts again and again.
	for i := range 200 {
		r.time = r.time.Add(31 * time.Second)
		r.units["p"] = []string{fmt.Sprint("restart ", i)}
		r.engine.Evaluate(r.time)
		require.Equal(t, alertOpened, r.answers(message("firing", "loop", alertsStart, labels{"pod": "p"}))[0].Outcome)
	}
	require.LessOrEqual(t, r.opened.Len(), maxOpened)

	var many []string
	for range maxAlerts + 7 {
		many = append(many, "{}")
	}
	alerts, beyond, err := decodeAlerts([]byte(`{"version":"4","alerts":[` + strings.Join(many, ",") + `]}`))
	require.NoError(t, err)
	require.Len(t, alerts, maxAlerts)
	require.Equal(t, 7, beyond)
}

// TestPayloadsOfAlertmanager handles messages that were recorded from Alertmanager.
func TestPayloadsOfAlertmanager(t *testing.T) {
	r := newAlertRig(t, AlertsConfig{}, budget.Limits{})
	r.units["checkout-7d4b9c6f5-x2x8z"] = []string{"checkout"}
	post := func(file string) []alertAnswer {
		body, err := os.ReadFile("testdata/" + file)
		require.NoError(t, err)
		r.time = time.Now()
		return r.answers(string(body))
	}
	fired := post("alertmanager_firing.json")
	require.Len(t, fired, 2)
	require.Equal(t, []Outcome{alertOpened, alertUnknownUnit}, []Outcome{fired[0].Outcome, fired[1].Outcome})
	require.Equal(t, "CheckoutSlow", fired[0].Alert)
	require.Equal(t, "checkout", fired[0].Unit)
	require.Contains(t, fired[0].TriggerID, "CheckoutSlow")
	repeated := post("alertmanager_repeated.json")
	require.Equal(t, alertAlreadyOpen, repeated[0].Outcome)
	require.Equal(t, fired[0].Fingerprint, repeated[0].Fingerprint)
	require.Equal(t, alertClosed, post("alertmanager_resolved.json")[0].Outcome)
	require.Equal(t, []Named{
		{Since: r.named[0].Since, Host: "10.244.1.17:8080", Attributes: labels{attr.NamespaceName: "shop", attr.PodName: "checkout-7d4b9c6f5-x2x8z", attr.ContainerName: "app"}},
	}, r.named[:1])
	require.False(t, r.named[0].Since.IsZero())

	require.Equal(t, alertUnknownUnit, post("documentation_example.json")[0].Outcome, "it names no unit")
}

func TestAlertsOverHTTP(t *testing.T) {
	r := newServerRig(t, nil).run(t, componenttest.NewNopHost())
	body := message("firing", "f1", alertsStart, labels{"alertname": "Slow", "container_id": "4f1c0c6b8a2e"})
	status, head, answer := r.do(t, http.MethodPost, "/v1/alerts", body, "Content-Type", "application/json")
	require.Equal(t, http.StatusOK, status, answer)
	require.Equal(t, "no-store", head.Get("Cache-Control"))
	require.Equal(t, map[string]any{"alerts": []any{map[string]any{
		"fingerprint": "f1", "alert": "Slow", "outcome": "opened", "unit": "4f1c0c6b8a2e", "trigger_id": "1 Slow", "until": "2026-05-01T12:00:30Z",
	}}}, answer)
	status, _, answer = r.do(t, http.MethodPost, "/v1/alerts", message("resolved", "f1", alertsStart, nil), "Content-Type", "application/json")
	require.Equal(t, http.StatusOK, status)
	require.Equal(t, map[string]any{"alerts": []any{map[string]any{
		"fingerprint": "f1", "alert": "alert", "outcome": "closed", "unit": "4f1c0c6b8a2e", "trigger_id": "1", "closed": "2026-05-01T12:00:00Z", "still_open": []any{"cpu"},
	}}}, answer)
	for name, tc := range map[string]struct {
		method, body string
		header       []string
		status       int
		says         string
	}{
		"no alerts":        {http.MethodPost, `{"version": "4"}`, nil, 200, ""},
		"another method":   {http.MethodGet, "", nil, 405, "use POST /v1/alerts"},
		"another version":  {http.MethodPost, `{"version": "3", "alerts": []}`, nil, 400, `version: "3" must be "4"`},
		"no JSON":          {http.MethodPost, "unit=4711", nil, 400, "what the webhook of Alertmanager posts"},
		"nothing":          {http.MethodPost, "", nil, 400, "what the webhook of Alertmanager posts"},
		"a list":           {http.MethodPost, "[]", nil, 400, "what the webhook of Alertmanager posts"},
		"too large":        {http.MethodPost, `{"version": "4", "alerts": ["` + strings.Repeat("x", maxAlertsBody) + `"]}`, nil, 413, "set max_alerts of the webhook"},
		"a website":        {http.MethodPost, body, []string{"Origin", "https://evil.example", "Sec-Fetch-Site", "cross-site"}, 403, "another origin"},
		"a name for here":  {http.MethodPost, body, []string{"Host", "evil.example"}, 403, "must be localhost"},
		"a resolved other": {http.MethodPost, message("resolved", "f9", alertsStart, nil), nil, 200, ""},
	} {
		t.Run(name, func(t *testing.T) {
			r.base = "http://localhost"
			if len(tc.header) > 0 && tc.header[0] == "Host" {
				r.base = "http://" + tc.header[1]
			}
			status, _, answer := r.do(t, tc.method, "/v1/alerts", tc.body, append(tc.header, "Content-Type", "application/json")...)
			require.Equal(t, tc.status, status, answer)
			if tc.says != "" {
				require.Contains(t, answer["error"], tc.says)
			}
		})
	}
	require.Empty(t, r.fired)
}

func TestRequestsWithAlertsAreBounded(t *testing.T) {
	r := newAlertRig(t, AlertsConfig{}, budget.Limits{})
	for range maxReading {
		r.reading <- struct{}{}
	}
	w := httptest.NewRecorder()
	_, err := r.answerTo(w, httptest.NewRequest(http.MethodPost, alertsPath, strings.NewReader("{}")))
	var refused *refusal
	require.ErrorAs(t, err, &refused)
	require.Equal(t, http.StatusServiceUnavailable, refused.status, "Alertmanager tries again")
	require.Equal(t, "1", w.Header().Get("Retry-After"))
	<-r.reading
	_, err = r.answerTo(w, httptest.NewRequest(http.MethodPost, alertsPath, strings.NewReader(`{"version": "4"}`)))
	require.NoError(t, err)
	require.Len(t, r.reading, maxReading-1)
}

func TestConfigOfAlerts(t *testing.T) {
	for name, tc := range map[string]struct {
		cfg  AlertsConfig
		says string
	}{
		"nothing":               {AlertsConfig{}, ""},
		"all":                   {AlertsConfig{Duration: time.Minute, Labels: labels{"pod": attr.PodName, "namespace": attr.NamespaceName}}, ""},
		"a short duration":      {AlertsConfig{Duration: time.Millisecond}, "manual.alerts.duration: 1ms is not between 1s and 24h"},
		"a long duration":       {AlertsConfig{Duration: 25 * time.Hour}, "manual.alerts.duration"},
		"a label of nothing":    {AlertsConfig{Labels: labels{"pod": ""}}, `manual.alerts.labels: "pod": ""`},
		"only broad attributes": {AlertsConfig{Labels: labels{"namespace": attr.NamespaceName, "instance": attr.HostName}}, "manual.alerts.labels: must have one that names a unit"},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := DefaultConfig()
			cfg.HTTP.NetAddr.Endpoint = "localhost:4041"
			cfg.Alerts = tc.cfg
			err := Validate(&cfg)
			if tc.says == "" {
				require.NoError(t, err)
			} else {
				require.ErrorContains(t, err, tc.says)
			}
		})
	}
	many := AlertsConfig{Labels: labels{}}
	for i := range maxLabels + 1 {
		many.Labels[strconv.Itoa(i)] = attr.PodName
	}
	cfg := DefaultConfig()
	cfg.HTTP.NetAddr.Endpoint, cfg.Alerts = "localhost:4041", many
	require.ErrorContains(t, Validate(&cfg), "at most 32")
	cfg = DefaultConfig()
	cfg.Alerts.Duration = time.Minute
	require.ErrorContains(t, Validate(&cfg), "manual.endpoint: must be set")
}

func FuzzAlerts(f *testing.F) {
	for _, file := range []string{"alertmanager_firing", "alertmanager_repeated", "alertmanager_resolved", "documentation_example"} {
		body, err := os.ReadFile("testdata/" + file + ".json")
		require.NoError(f, err)
		f.Add(body)
	}
	f.Add([]byte(message("firing", "f", alertsStart, labels{"pod": "p", "alertname": "a,b"})))
	f.Add([]byte(`{"version":"4","alerts":[{},null,7,{"fingerprint":"\u0000"}]}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		r := newAlertRig(t, AlertsConfig{}, budget.Limits{MaxConcurrentUnits: 2})
		r.units["p"], r.units[""] = []string{"a", "b"}, []string{"c"}
		w := httptest.NewRecorder()
		m := NewServer(DefaultConfig().HTTP, time.Minute, nil, r.Alerts, nil, zap.NewNop())
		for range 2 {
			w = httptest.NewRecorder()
			m.ServeHTTP(w, httptest.NewRequest(http.MethodPost, alertsPath, strings.NewReader(string(body))))
			require.True(t, json.Valid(w.Body.Bytes()), "%s", w.Body)
		}
		if w.Code == http.StatusBadRequest || w.Code == http.StatusRequestEntityTooLarge {
			require.Empty(t, r.counts)
			return
		}
		require.Equal(t, http.StatusOK, w.Code, "%s", w.Body)
		var answer alertsAnswer
		require.NoError(t, json.Unmarshal(w.Body.Bytes(), &answer))
		for _, a := range answer.Alerts {
			require.LessOrEqual(t, len(a.Alert), maxName)
			require.NotContains(t, a.Alert, ",")
			require.LessOrEqual(t, len(a.Fingerprint), maxFingerprint)
			require.NotEqual(t, alertOpened, a.Outcome, "a repetition opens nothing")
			require.Less(t, len(a.Why), 1024)
		}
	})
}
