// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package web

import (
	"errors"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/component"
	"golang.org/x/net/html"

	"github.com/hotprofile/hotprofile/extension/consoleextension/internal/policyfile"
	"github.com/hotprofile/hotprofile/extension/consoleextension/internal/store"
	"github.com/hotprofile/hotprofile/extension/hotunitsextension"
	"github.com/hotprofile/hotprofile/internal/monitor"
)

func TestThePoliciesPage(t *testing.T) {
	page := getPage(t, newTestServer(t, Demo(testNow)), "/policies")
	rows := find(find(page, "div", with("id", "policies"))[0], "tr")
	require.Len(t, rows, 6)
	cells := func(row int) (texts []string) {
		for n := range rows[row].ChildNodes() {
			if n.Type == html.ElementNode {
				texts = append(texts, textOf(n))
			}
		}
		return texts
	}
	require.Equal(t, []string{
		"cpu 1 gate open 1 cooling down", "cpu_utilization over 80 %, 30s average", "7", "4 baseline 1", "–", "cooldown : 5 budget : 2 min_age : 1", "12 s ago",
	}, cells(1))
	require.Equal(t, "http_response_time over 500 ms or 750 ms, 1m average", cells(4)[1], "hosts differ")
	require.Equal(t, "1 dry run", cells(4)[4])
	changes := textOf(find(page, "div", with("id", "changes"))[0])
	require.Contains(t, changes, "3f2a9c10be77")
	require.Contains(t, changes, "/etc/hotprofile/policies.yaml")
	require.Empty(t, find(page, "textarea"))
	require.Contains(t, textOf(page), CheckoutHost+" : version 3f2a9c10be77")
	require.Equal(t, "opened by hand or by alert", cells(3)[1])
}

// TestTheVersionInForceIsThatOfTheCollectorsMetric covers collectors that read their
// policies at startup and therefore do not report them as a change.
func TestTheVersionInForceIsThatOfTheCollectorsMetric(t *testing.T) {
	point := func(version string, at time.Time) store.Metric {
		return store.Metric{Name: "otelcol_cpu_trigger.policies", At: at, Value: 2, Attributes: map[string]string{"version": version}}
	}
	changes := []store.PolicyChange{{Host: "a", Version: "old", At: testNow.Add(-time.Hour)}, {Host: "b", Version: "newest", At: testNow}}
	instances := []store.Instance{
		{Host: "a", Metrics: []store.Metric{point("earlier", testNow.Add(-time.Minute)), point("latest", testNow)}},
		{Host: "b", Metrics: []store.Metric{point("before", testNow.Add(-time.Minute))}},
		{Host: "c", Metrics: []store.Metric{point("configuration", testNow)}},
	}
	var found [][2]string
	for _, c := range versions(changes, instances) {
		found = append(found, [2]string{c.Host, c.Version})
	}
	require.Equal(t, [][2]string{{"a", "latest"}, {"b", "newest"}}, found)
}

// TestPoliciesThatMatchNoUnitAreShown checks that only current reports are shown. A
// report is outdated if the collector has restarted or its policies have changed since
// the report.
func TestPoliciesThatMatchNoUnitAreShown(t *testing.T) {
	said := func(policy, host string, at time.Duration) store.PolicyChange {
		return store.PolicyChange{Host: host, At: testNow.Add(at), Unmatched: policy, Why: "did you mean service.name?"}
	}
	p := policiesPage{Policies: []policyRow{
		{PolicySummary: store.PolicySummary{Name: "matches", Units: map[string]int{"watching": 1}}},
		{PolicySummary: store.PolicySummary{Name: "opened", Opened: map[string]int{"hot": 1}}},
	}}
	p.unmatched([]store.PolicyChange{
		said("new", "a", 0), said("matches", "a", 0), said("opened", "a", 0), said("of the last start", "c", 0),
		{Host: "b", At: testNow.Add(-time.Minute), Version: "abc"},
		said("of the last file", "b", -2*time.Minute),
	}, []store.Instance{{Host: "a", First: testNow.Add(-time.Minute)}, {Host: "c", First: testNow.Add(time.Second)}})
	got := map[string]string{}
	for _, row := range p.Policies {
		got[row.Name] = row.Unmatched
	}
	require.Equal(t, map[string]string{"matches": "", "opened": "did you mean service.name?", "new": "did you mean service.name?"}, got)
}

const policyText = "- name: cpu\n  any_of: [{monitor: cpu_utilization, threshold: 80}] # </textarea><script>alert(1)</script>\n"

// edited returns pages for a policy file, and the path of the file. edit allows
// the pages to write the file.
func edited(t *testing.T, edit bool) (h http.Handler, path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "policies.yaml")
	require.NoError(t, os.WriteFile(path, []byte(policyText), 0o600))
	readers := func() []hotunitsextension.PolicyFile {
		version := hotunitsextension.PolicyVersion([]byte(policyText))
		return []hotunitsextension.PolicyFile{{Reader: component.MustNewID("cpu_trigger"), Version: func() string { return version }, Check: func(document []byte) error {
			if strings.Contains(string(document), "anyof") {
				return errors.Join(errors.New("line 2: policies[0]: unknown keys: anyof"), errors.New("line 3: <b>"))
			}
			return nil
		}, Doubts: func(document []byte) (all []string) {
			if strings.Contains(string(document), "0.8") {
				all = append(all, "did you mean 80?")
			}
			return all
		}}}
	}
	return newTestServer(t, Demo(testNow), withToken, func(o *Options) { o.Policies = policyfile.New(path, edit, readers) }), path
}

func requireFile(t *testing.T, path, want string) {
	t.Helper()
	got, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, want, string(got))
}

// editor returns the fields of the editor's form as a browser would send them.
func editor(t *testing.T, page *html.Node) url.Values {
	t.Helper()
	form := find(page, "form", with("action", "/policies#file"))
	require.Len(t, form, 1)
	values := url.Values{}
	for _, input := range find(form[0], "input") {
		values.Set(attributeOf(input, "name"), attributeOf(input, "value"))
	}
	area := find(form[0], "textarea")
	require.Len(t, area, 1)
	text := ""
	if area[0].FirstChild != nil {
		text = area[0].FirstChild.Data
	}
	values.Set("text", strings.ReplaceAll(text, "\n", "\r\n"))
	return values
}

// TestTheFaultsOfTheFileAreShown covers a file that another program has written. The page
// must show faults and probable mistakes before the user presses a button. The table must
// also contain a policy without units.
func TestTheFaultsOfTheFileAreShown(t *testing.T) {
	h, path := edited(t, true)
	require.NoError(t, os.WriteFile(path, []byte("- name: fresh\n  any_of: [{monitor: cpu_utilization, threshold: 0.8}]\n"), 0o600))
	page := getPage(t, h, "/policies")
	require.Contains(t, textOf(page), "Probably a mistake: did you mean 80?")
	require.NotContains(t, textOf(page), "It is refused")
	require.Contains(t, textOf(find(page, "div", with("id", "policies"))[0]), "fresh")
	require.NoError(t, os.WriteFile(path, []byte("- name: a\n  anyof: []\n"), 0o600))
	require.Contains(t, textOf(getPage(t, h, "/policies")), "It is refused, and the policies before stay in force: line 2: policies[0]: unknown keys: anyof")
}

func TestThePolicyFileIsEdited(t *testing.T) {
	h, path := edited(t, true)
	page := getPage(t, h, "/policies")
	require.Empty(t, find(page, "script", func(n *html.Node) bool { return attributeOf(n, "src") == "" }))
	require.Contains(t, textOf(page), "cpu_trigger: in force")
	form := editor(t, page)
	require.Equal(t, strings.ReplaceAll(policyText, "\n", "\r\n"), form.Get("text"))

	form.Set("do", "save")
	form.Set("text", "- name: cpu\r\n  anyof: []\r\n")
	w := post(t, h, "/policies", form)
	require.Equal(t, http.StatusUnprocessableEntity, w.Code)
	answer := parse(t, w.Body)
	require.Contains(t, textOf(answer), "line 2: policies[0]: unknown keys: anyof")
	require.Contains(t, textOf(answer), "line 3: <b>")
	require.Equal(t, form.Get("text"), editor(t, answer).Get("text"), "nothing of it is lost")
	requireFile(t, path, policyText)

	form.Set("do", "check")
	form.Set("text", "- name: mem\r\n")
	w = post(t, h, "/policies", form)
	require.Equal(t, http.StatusOK, w.Code)
	require.Contains(t, w.Body.String(), "The text is valid. It is not saved yet.")
	requireFile(t, path, policyText)

	form.Set("do", "save")
	w = post(t, h, "/policies", form)
	require.Equal(t, http.StatusSeeOther, w.Code, w.Body)
	requireFile(t, path, "- name: mem\n")
	requireFile(t, path+".previous", policyText)
	to, _, _ := strings.Cut(w.Header().Get("Location"), "#")
	page = getPage(t, h, to)
	require.Contains(t, textOf(page), "Saved.")
	require.Contains(t, textOf(page), "is in force, and this one is not")

	// If another user has saved the file since it was read, neither version may be lost.
	form.Set("text", "- name: mine\r\n")
	w = post(t, h, "/policies", form)
	require.Equal(t, http.StatusConflict, w.Code)
	requireFile(t, path, "- name: mem\n")
	answer = parse(t, w.Body)
	require.Equal(t, "- name: mem\n", find(answer, "pre")[0].FirstChild.Data)
	again := editor(t, answer)
	require.Equal(t, "- name: mine\r\n", again.Get("text"))
	again.Set("do", "save")
	require.Equal(t, http.StatusSeeOther, post(t, h, "/policies", again).Code)
	requireFile(t, path, "- name: mine\n")
}

func TestThePolicyFileIsOnlyShownUnlessEditIsSet(t *testing.T) {
	h, path := edited(t, false)
	page := getPage(t, h, "/policies")
	require.Empty(t, find(page, "textarea"))
	require.Equal(t, policyText, find(page, "pre")[0].FirstChild.Data)
	require.Contains(t, textOf(page), "edit is not set")
	w := post(t, h, "/policies", url.Values{"token": {testToken}, "do": {"save"}, "version": {hotunitsextension.PolicyVersion([]byte(policyText))}, "text": {"- name: a"}})
	require.Equal(t, http.StatusForbidden, w.Code)
	requireFile(t, path, policyText)
}

func TestAPolicyFileThatIsTooLargeIsRefused(t *testing.T) {
	h, path := edited(t, true)
	form := url.Values{"token": {testToken}, "do": {"save"}, "version": {hotunitsextension.PolicyVersion([]byte(policyText))}}
	form.Set("text", strings.Repeat("é", maxPolicyForm/6))
	require.Equal(t, http.StatusRequestEntityTooLarge, post(t, h, "/policies", form).Code)
	requireFile(t, path, policyText)

	require.NoError(t, os.Remove(path))
	require.Contains(t, textOf(getPage(t, h, "/policies")), "It cannot be read")
}

func TestThePoliciesPageOfAnEmptyStore(t *testing.T) {
	m := &Memory{UsageNow: store.Usage{MaxAge: 1}}
	require.Contains(t, textOf(getPage(t, newTestServer(t, m), "/policies")), "No policy is known yet")
}

// fields returns the form of a policy. buttons maps the label of
// each button to its value.
func fields(t *testing.T, page *html.Node) (form url.Values, buttons map[string]string) {
	t.Helper()
	set := find(page, "fieldset", with("id", "policy"))
	require.Len(t, set, 1)
	form, buttons = url.Values{}, map[string]string{}
	for _, input := range find(set[0], "input") {
		form.Set(attributeOf(input, "name"), attributeOf(input, "value"))
		if id := attributeOf(input, "id"); id != "" {
			require.Len(t, find(page, "label", with("for", id)), 1, id)
		}
	}
	for _, option := range find(set[0], "option", func(n *html.Node) bool { return n.Parent.Data == "select" }) {
		if _, selected := attributes(option)["selected"]; selected || form.Get("policy_monitor") == "" {
			form.Set("policy_monitor", attributeOf(option, "value"))
		}
	}
	for _, b := range find(set[0], "button") {
		buttons[textOf(b)] = attributeOf(b, "value")
	}
	return form, buttons
}

func attributes(n *html.Node) map[string]string {
	all := map[string]string{}
	for _, a := range n.Attr {
		all[a.Key] = a.Val
	}
	return all
}

func TestAPolicyIsEditedByItsForm(t *testing.T) {
	h, path := edited(t, true)
	page := getPage(t, h, "/policies")
	send := func(change map[string]string, do string) (*html.Node, int) {
		t.Helper()
		form := editor(t, page)
		one, buttons := fields(t, page)
		for k, v := range one {
			form[k] = v
		}
		for k, v := range change {
			form.Set(k, v)
		}
		if b, ok := buttons[do]; ok {
			do = b
		}
		form.Set("do", do)
		w := post(t, h, "/policies", form)
		return parse(t, w.Body), w.Code
	}
	require.Contains(t, textOf(page), "A new policy")

	var code int
	page, code = send(nil, "cpu")
	require.Equal(t, http.StatusOK, code)
	one, _ := fields(t, page)
	require.Equal(t, "cpu", one.Get("policy_name"))
	require.Equal(t, "80", one.Get("policy_threshold"))
	require.Equal(t, "cpu_utilization", one.Get("policy_monitor"))

	// An error is shown next to its field. The contents of the form and the text remain.
	wrong, code := send(map[string]string{
		"policy_threshold": "much", "policy_duration": "30", "policy_key": "service.name", "policy_glob": "", "policy_name": "",
	}, "put")
	require.Equal(t, http.StatusUnprocessableEntity, code)
	for field, fault := range map[string]string{
		"threshold": "a number", "duration": "has a unit", "glob": "an attribute and its value", "name": "has a name",
	} {
		require.Contains(t, textOf(find(wrong, "span", with("id", "fault_"+field))[0]), fault)
		require.Equal(t, "fault_"+field, attributeOf(find(wrong, "input", with("id", "policy_"+field))[0], "aria-describedby"))
	}
	kept, _ := fields(t, wrong)
	require.Equal(t, "much", kept.Get("policy_threshold"))
	require.Equal(t, editor(t, page).Get("text"), editor(t, wrong).Get("text"))

	page, code = send(map[string]string{"policy_threshold": "70", "policy_key": "service.name", "policy_glob": "checkout*", "policy_duration": "1m"}, "put")
	require.Equal(t, http.StatusOK, code)
	require.Contains(t, textOf(page), "The text is valid. It is not saved yet.")
	require.Contains(t, textOf(page), "1 unit matches now")
	const changed = "- name: cpu\n  any_of: [{monitor: cpu_utilization, threshold: 70}] # </textarea><script>alert(1)</script>\n" +
		"  match: {service.name: checkout*}\n  duration: 1m\n"
	require.Equal(t, changed, strings.ReplaceAll(editor(t, page).Get("text"), "\r\n", "\n"))
	requireFile(t, path, policyText)

	page, _ = send(nil, "a new policy")
	page, code = send(map[string]string{"policy_name": "cpu", "policy_threshold": "3", "policy_monitor": "cpu_usage"}, "put")
	require.Equal(t, http.StatusUnprocessableEntity, code)
	require.Contains(t, textOf(page), "Another policy has this name.")
	page, code = send(map[string]string{"policy_name": "cores"}, "put")
	require.Equal(t, http.StatusOK, code)
	require.Equal(t, changed+"- name: cores\n  any_of: [{monitor: cpu_usage, threshold: 3}]\n", strings.ReplaceAll(editor(t, page).Get("text"), "\r\n", "\n"))
	_, code = send(nil, "save")
	require.Equal(t, http.StatusSeeOther, code)
	requireFile(t, path, changed+"- name: cores\n  any_of: [{monitor: cpu_usage, threshold: 3}]\n")
}

func TestTheFormOffersTheMonitorsThatThereAre(t *testing.T) {
	var all []string
	for _, k := range monitor.Kinds() {
		if !k.Hidden && k.Name != monitor.MemoryEvents { // this monitor needs the events
			all = append(all, k.Name)
		}
	}
	require.ElementsMatch(t, all, formMonitors)
	for _, name := range all {
		_, listed := monitorUnits[name]
		require.True(t, listed || unitOf(name) != "", "format.go has no unit of %s", name)
	}
}

func TestUnitsThatMatchAreCounted(t *testing.T) {
	unit := func(name string, age time.Duration, resource map[string]string) store.UnitSummary {
		return store.UnitSummary{Unit: store.Unit{Name: name, Resource: resource, Last: testNow.Add(-age)}}
	}
	units := []store.UnitSummary{
		unit("/system.slice/a.service", 0, nil),
		unit(strings.Repeat("ab", 32), 0, map[string]string{"service.name": "checkout"}),
		unit("/b", 0, map[string]string{"service.name": "unknown_service:python3"}),
		unit("gone", time.Hour, map[string]string{"service.name": "checkout"}),
	}
	for _, tt := range [][3]string{
		{"", "", "3 units match"},
		{"service.name", "check*", "1 unit matches"},
		{"service.name", "cart", "0 units match"},
		{"service.name", "unknown_service:*", "0 units match"},
		{"cgroup", "/system.slice/*", "1 unit matches"},
		{"container.id", "abababababab", "1 unit matches"},
		{"k8s.pod.name", "a", "No unit that the console knows has k8s.pod.name"},
		{"service.name", "[", ""},
	} {
		require.Regexp(t, "^"+tt[2], matching(units, tt[0], tt[1], testNow), tt)
	}
}
