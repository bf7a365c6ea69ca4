// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package web

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/pprof/profile"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/html"

	"github.com/hotprofile/hotprofile/extension/consoleextension/internal/flame"
	"github.com/hotprofile/hotprofile/extension/consoleextension/internal/store"
)

const hotURL = "/openings/" + HotOpening

func class(name string) func(*html.Node) bool {
	return func(n *html.Node) bool {
		for _, c := range strings.Fields(attributeOf(n, "class")) {
			if c == name {
				return true
			}
		}
		return false
	}
}

// one returns the element that find returns. The test fails if find does not return
// exactly one element.
func one(t testing.TB, n *html.Node, tag string, is ...func(*html.Node) bool) *html.Node {
	t.Helper()
	found := find(n, tag, is...)
	require.Len(t, found, 1, tag)
	return found[0]
}

// tableRows returns the texts of a table's cells.
func tableRows(table *html.Node) (out [][]string) {
	for _, tr := range find(table, "tr") {
		var cells []string
		for _, cell := range find(tr, "*", func(n *html.Node) bool { return n.Data == "td" || n.Data == "th" }) {
			cells = append(cells, textOf(cell))
		}
		out = append(out, cells)
	}
	return out
}

func TestOpeningPage(t *testing.T) {
	h := newTestServer(t, Demo(testNow), func(o *Options) { o.TraceURL = "https://traces.example/{trace_id}?span={span_id}" })
	page := getPage(t, h, hotURL)
	assert.Equal(t, "Policy cpu opened the gate of checkout at 2026-01-02 14:39:05 UTC , because cpu_utilization was 97.2 % "+
		", over the threshold of 80 % ( 30s average ). It closed after 30 s: the duration of its policy . "+
		"shop/checkout-5d9f8b7c6-jq4kz · node-1.example · 1.41 MiB of profiles · trace of the request · traces of the slowest requests: trace trace",
		textOf(one(t, page, "p", class("why"))))
	var traces []string
	for _, link := range find(page, "a", with("rel", "noopener noreferrer")) {
		traces = append(traces, attributeOf(link, "href"))
	}
	assert.Equal(t, []string{
		"https://traces.example/4bf92f3577b34da6a3ce929d0e0e4736?span=00f067aa0ba902b7",
		"https://traces.example/0af7651916cd43dd8448eb211c80319c?span=", "https://traces.example/4bf92f3577b34da6a3ce929d0e0e4736?span=",
		"https://traces.example/0af7651916cd43dd8448eb211c80319c?span=",
	}, traces)
	assert.Equal(t, [][]string{
		{"Took", "Route", "Time"},
		{"812 ms", "/cart/{id} failed", "CPU 604 ms waiting for disk 25 ms waiting for lock 110 ms unknown 73.4 ms"},
		{"400 ms", "<b>", "CPU 900 ms"},
	}, tableRows(one(t, page, "section", class("requests"))))

	tabs := one(t, page, "nav", with("aria-label", "Profiles"))
	assert.Equal(t, "CPU Waiting Allocated memory Goroutines, pulled from the program", textOf(tabs))
	assert.Equal(t, "before the trigger 16.7 % 7.72 s at the trigger 33.3 % 15.4 s after the trigger 50 % 23.2 s",
		strings.ReplaceAll(textOf(one(t, page, "ul", with("aria-label", "By phase"))), "50.0", "50"))

	// 41 of 75 samples are in sha256.block, compared with 8 of 42 in the baseline.
	table := tableRows(one(t, page, "table", class("functions")))
	assert.Equal(t, []string{"Function", "Self ↓", "Self, difference", "Total", "Total, difference"}, table[0])
	assert.Equal(t, []string{
		"crypto/sha256.block /src/crypto/sha256.go:20", "54.7 % 25.3 s", "+35.6 was 19.0 %", "54.7 % 25.3 s", "+35.6 was 19.0 %",
	}, table[1])
	assert.Contains(t, textOf(one(t, page, "p", class("total"))),
		"46.4 s of CPU time (1.16 cores over 40 s); in the baseline of 2026-01-02 14:14:05 UTC 1.3 s")

	assert.Equal(t, "Hottest: crypto/sha256.block 54.7 % , runtime.scanobject 16.0 % , reflect.Value.Field 12.0 % . "+
		"Grown since the baseline: crypto/sha256.block +35.6 points.", textOf(one(t, page, "p", class("short"))))

	goroutines := getPage(t, h, hotURL+"?type=goroutine&against=none")
	assert.Equal(t, "4,500 goroutines.", textOf(one(t, goroutines, "p", class("total"))))
	assert.Contains(t, textOf(one(t, goroutines, "ul", with("aria-label", "By phase"))), "before the trigger 16.7 % 750 at the trigger")

	// Without a comparison, the table has fewer columns.
	page = getPage(t, h, hotURL+"?against=none&sort=total")
	table = tableRows(one(t, page, "table", class("functions")))
	assert.Equal(t, []string{"Function", "Self", "Total ↓"}, table[0])
	assert.Equal(t, "main.main /src/main.go:25", table[1][0])

	// The URL contains the phase, the thread, the search and the function.
	page = getPage(t, h, hotURL+"?type=alloc_space&phase=after&thread=gc&q=SCAN&function=runtime.scanobject&view=callers")
	flameGraph := one(t, page, "section", class("flame"))
	assert.Equal(t, "runtime.scanobject", attributeOf(flameGraph, "data-function"))
	assert.Equal(t, "callers", attributeOf(flameGraph, "data-shown"))
	assert.Equal(t, hotURL+"/flame.json?phase=after&thread=gc&type=alloc_space", attributeOf(flameGraph, "data-flame"))
	assert.Contains(t, textOf(one(t, page, "p", class("total"))), "240 MiB of memory that was allocated, after the trigger, thread gc")
	table = tableRows(one(t, page, "table", class("functions")))
	assert.Len(t, table, 2)
	assert.Equal(t, "75.0 % 180 MiB", table[1][1])
	assert.Len(t, find(page, "tr", class("current")), 2, "the thread and the function")
}

func TestOpeningsWithoutProfiles(t *testing.T) {
	m := Demo(testNow)
	h := newTestServer(t, m)
	for id, want := range map[string]string{
		"d00d000000000003":  "The gate of checkout was opened by hand at 2026-01-02 10:04:05 UTC . It closed after 30 s: the duration for gates that are opened by hand .",
		"0ff0000000000004":  "It is not known when it closed: the event did not arrive.",
		"recommend00000001": "Nothing was exported: no profiles arrived .",
	} {
		assert.Contains(t, textOf(getPage(t, h, "/openings/"+id)), want, id)
		for _, file := range []string{"flame.json", "profile.pb.gz"} {
			assert.Equal(t, http.StatusNotFound, get(t, h, "/openings/"+id+"/"+file).Code)
		}
		assert.Equal(t, http.StatusOK, get(t, h, "/openings/"+id+"/report.html").Code)
	}

	// If another policy holds the gate open at the same time, the profiles
	// belong to the other opening.
	both, err := m.Opening(t.Context(), HotOpening)
	require.NoError(t, err)
	both.ID, both.Policy, both.Profiles, both.Triggered = "second", "throttled", nil, both.Triggered.Add(5*time.Second)
	m.AllOpenings = append(m.AllOpenings, both)
	first := one(t, getPage(t, h, "/openings/second"), "main")
	assert.Contains(t, textOf(first), "Its samples are in the opening by cpu , 2026-01-02 14:39:05 UTC , which had the gate open already.")
	assert.NotContains(t, textOf(first), "no longer kept")
	one(t, first, "a", with("href", hotURL))

	assert.Contains(t, textOf(getPage(t, h, "/openings/77aa31c0de5f0001")), "It is open , until 2026-01-02 15:04:23 UTC .")
	assert.Contains(t, textOf(getPage(t, h, "/openings/"+BaselineOpening)), "A baseline of checkout , a time that was not hot, to compare with")
}

// TestAlert checks the page of an opening that was caused by an alert. The page must name
// the alert and must not name a policy.
func TestAlert(t *testing.T) {
	m := Demo(testNow)
	o := hot("a1e7700000000001", m.AllUnits[0].Unit, testNow.Add(-time.Hour), 0)
	o.Kind, o.Policy, o.Monitor, o.Window, o.Threshold = "alert", "HighLatency", "HighLatency", "alert", 0
	o.Closed, o.Why = o.Until, "duration"
	m.AllOpenings = append(m.AllOpenings, o)
	page := textOf(one(t, getPage(t, newTestServer(t, m), "/openings/"+o.ID), "p", class("why")))
	assert.True(t, strings.HasPrefix(page, "The alert HighLatency opened the gate of checkout at 2026-01-02 14:04:05 UTC . It closed after 30 s: the duration for alerts ."), page)
}

// TestIncompleteStacks checks that the page shows the number of incomplete stacks. The
// page must also show the time after which all stacks are complete.
func TestIncompleteStacks(t *testing.T) {
	m := Demo(testNow)
	i := slices.IndexFunc(m.AllOpenings, func(o store.Opening) bool { return o.ID == HotOpening })
	info := &m.AllOpenings[i].Profiles[0]
	numbers := func() string {
		return textOf(one(t, getPage(t, newTestServer(t, m), hotURL), "p", class("total")))
	}
	assert.NotContains(t, numbers(), "incomplete")
	info.Incomplete, info.LastIncomplete = 7, info.Start.Add(3*time.Second)
	assert.Contains(t, numbers(), "7 of 18 stacks are incomplete; after 2026-01-02 14:38:58 UTC all are whole.")
	info.LastIncomplete = info.End.Add(-time.Millisecond)
	assert.Contains(t, numbers(), "7 of 18 stacks are incomplete, up to the end.")
}

func TestOpeningErrors(t *testing.T) {
	h := newTestServer(t, Demo(testNow))
	for url, status := range map[string]int{
		"/openings/nothing":               http.StatusNotFound,
		"/openings/nothing/flame.json":    http.StatusNotFound,
		"/openings/nothing/profile.pb.gz": http.StatusNotFound,
		"/openings/nothing/report.html":   http.StatusNotFound,
		hotURL + "?type=nothing":          http.StatusNotFound,
		hotURL + "?against=nothing":       http.StatusNotFound,
		// This opening belongs to another unit.
		hotURL + "?against=recommend00000001": http.StatusNotFound,
	} {
		assert.Equal(t, status, get(t, h, url).Code, url)
	}
}

// TestComparesWithBaseline checks that the page uses the newest baseline before the
// opening. Baselines of the same policy are preferred.
func TestComparesWithBaseline(t *testing.T) {
	m := Demo(testNow)
	original, err := m.Opening(t.Context(), BaselineOpening)
	require.NoError(t, err)
	add := func(id, policy string, before time.Duration) {
		o := original
		o.ID, o.Policy, o.Triggered = id, policy, original.Triggered.Add(-before)
		m.AllOpenings = append(m.AllOpenings, o)
		m.AllProfiles[id] = m.AllProfiles[BaselineOpening]
	}
	against := func(query string) string {
		page := getPage(t, newTestServer(t, m), hotURL+query)
		chosen := find(page, "option", func(n *html.Node) bool {
			for _, a := range n.Attr {
				if a.Key == "selected" {
					return true
				}
			}
			return false
		})
		require.Len(t, chosen, 1)
		return attributeOf(chosen[0], "value")
	}
	add("later", "cpu", -time.Hour) // after the opening
	add("other", "throttled", -time.Minute)
	assert.Equal(t, BaselineOpening, against(""))
	add("newer", "cpu", -2*time.Minute)
	assert.Equal(t, "newer", against(""))
	for i, o := range m.AllOpenings {
		if o.Kind == "baseline" && o.Policy == "cpu" {
			m.AllOpenings[i].Policy = "memory"
		}
	}
	assert.Equal(t, "newer", against(""), "of its unit")
	assert.Equal(t, "later", against("?against=later"))
	assert.Equal(t, "none", against("?against=none"))
	assert.Equal(t, "before", against("?against=before"))
	assert.Equal(t, "77aa31c0de5f0001", against("?against=77aa31c0de5f0001"))

	for i := range m.AllOpenings {
		if m.AllOpenings[i].Kind == "baseline" {
			m.AllOpenings[i].Profiles = nil
		}
	}
	assert.Equal(t, "none", against(""))
	assert.Contains(t, textOf(getPage(t, newTestServer(t, m), hotURL)), "The baselines of this unit have no profile of this type.")
	m.AllOpenings = m.AllOpenings[:2]
	assert.Contains(t, textOf(getPage(t, newTestServer(t, m), hotURL)), "This unit has no baseline from before")
}

func TestFlameJSON(t *testing.T) {
	h := newTestServer(t, Demo(testNow))
	read := func(query string) (tree struct {
		Unit       string
		Names      []string
		Function   []int
		Total      []int64
		TotalThere []int64 `json:"total_there"`
	},
	) {
		w := get(t, h, hotURL+"/flame.json"+query)
		require.Equal(t, http.StatusOK, w.Code, "%s", w.Body)
		require.Equal(t, "application/json", w.Header().Get("Content-Type"))
		require.NoError(t, json.Unmarshal(w.Body.Bytes(), &tree))
		return tree
	}
	tree := read("")
	assert.Equal(t, "nanoseconds", tree.Unit)
	assert.EqualValues(t, 75*60*10_300_000, tree.Total[0])
	assert.EqualValues(t, 42*3*10_300_000, tree.TotalThere[0])
	assert.Contains(t, tree.Names, "crypto/sha256.block")
	tree = read("?type=alloc_space&phase=before&against=none")
	assert.EqualValues(t, 75*10*524_288, tree.Total[0])
	assert.Empty(t, tree.TotalThere)
	tree = read("?against=before&phase=after")
	assert.EqualValues(t, 3*tree.TotalThere[0], tree.Total[0])
	tree = read("?thread=nobody")
	assert.Equal(t, []int64{0}, tree.Total)
}

func TestProfileFile(t *testing.T) {
	m := Demo(testNow)
	h := newTestServer(t, m)
	w := get(t, h, hotURL+"/profile.pb.gz?type=off_cpu")
	require.Equal(t, http.StatusOK, w.Code)
	assert.Equal(t, `attachment; filename="checkout_20260102T143905Z_cpu_off_cpu.pb.gz"`, w.Header().Get("Content-Disposition"))
	assert.Equal(t, "application/octet-stream", w.Header().Get("Content-Type"))
	got, err := profile.Parse(w.Body)
	require.NoError(t, err)
	assert.Equal(t, "off_cpu", got.SampleType[0].Type)
	assert.Len(t, got.Sample, 18)
}

// TestCommands runs the commands that the page shows.
func TestCommands(t *testing.T) {
	h := newTestServer(t, Demo(testNow))
	server := httptest.NewServer(h)
	defer server.Close()
	for query, want := range map[string]string{
		"?against=none":                  "crypto/sha256.block",
		"?against=none&phase=after":      "Active filters:",
		"?against=none&thread=gc":        "Active filters:",
		"?type=alloc_space&against=none": "2250MB",
		"":                               "crypto/sha256.block",
	} {
		response, err := server.Client().Get(server.URL + hotURL + query)
		require.NoError(t, err)
		page := parse(t, response.Body)
		require.NoError(t, response.Body.Close())
		command := textOf(one(t, page, "code", with("id", "command")))
		require.True(t, strings.HasPrefix(command, "go tool pprof -http=: "), command)
		run := exec.Command("sh", "-c", strings.Replace(command, "-http=:", "-top -symbolize=none", 1))
		run.Env = append(os.Environ(), "PPROF_TMPDIR="+t.TempDir())
		out, err := run.CombinedOutput()
		require.NoError(t, err, "%s: %s", command, out)
		assert.Contains(t, string(out), want, command)
	}
}

// TestReport checks that the report needs no other files. The content security policy of
// the report must not allow other files.
func TestReport(t *testing.T) {
	h := newTestServer(t, Demo(testNow))
	w := get(t, h, hotURL+"/report.html")
	require.Equal(t, http.StatusOK, w.Code)
	assert.Equal(t, `attachment; filename="checkout_20260102T143905Z_cpu_report.html"`, w.Header().Get("Content-Disposition"))
	assert.Less(t, w.Body.Len(), reportBytes)
	page := parse(t, w.Body)
	policy := attributeOf(one(t, page, "meta", with("http-equiv", "Content-Security-Policy")), "content")
	assert.True(t, strings.HasPrefix(policy, "default-src 'none'; base-uri 'none'; form-action 'none'; script-src 'sha256-"), policy)
	assert.NotContains(t, policy, "unsafe")
	trees := 0
	for _, n := range find(page, "*") {
		for _, a := range n.Attr {
			assert.NotEqual(t, "style", a.Key)
			assert.NotEqual(t, "src", a.Key)
			assert.False(t, strings.HasPrefix(a.Key, "on"), a.Key)
			if a.Key == "href" && !strings.HasPrefix(a.Val, "#") {
				assert.Equal(t, "http://example.com"+hotURL, a.Val, "the page itself")
			}
		}
		if n.Data != "script" && n.Data != "style" {
			continue
		}
		if attributeOf(n, "type") == "application/json" {
			assert.True(t, json.Valid([]byte(n.FirstChild.Data)))
			trees++
			continue
		}
		sum := sha256.Sum256([]byte(n.FirstChild.Data))
		assert.Contains(t, policy, "'sha256-"+base64.StdEncoding.EncodeToString(sum[:])+"'")
	}
	assert.Equal(t, 4, trees)
	assert.Len(t, find(page, "table", class("functions")), 4)
	ids := map[string]bool{}
	for _, n := range find(page, "*", func(n *html.Node) bool { return attributeOf(n, "id") != "" }) {
		assert.False(t, ids[attributeOf(n, "id")], "id %s twice", attributeOf(n, "id"))
		ids[attributeOf(n, "id")] = true
	}
}

// TestReportIsBounded checks that the report lists the profiles that do not fit.
func TestReportIsBounded(t *testing.T) {
	m := Demo(testNow)
	i := 1 // index of the hot opening
	require.Equal(t, HotOpening, m.AllOpenings[i].ID)
	p := &profile.Profile{SampleType: []*profile.ValueType{{Type: "x", Unit: "count"}}}
	for j := range 900 {
		f := &profile.Function{ID: uint64(j + 1), Name: fmt.Sprint(j) + strings.Repeat("<", 400), Filename: strings.Repeat("&", 400)}
		l := &profile.Location{ID: f.ID, Line: []profile.Line{{Function: f}}}
		p.Function, p.Location = append(p.Function, f), append(p.Location, l)
		p.Sample = append(p.Sample, &profile.Sample{Location: []*profile.Location{l}, Value: []int64{1}})
	}
	m.AllOpenings[i].Profiles = nil
	for j := range 6 {
		key := store.ProfileKey{Type: fmt.Sprintf("type_%02d", j)}
		m.AllOpenings[i].Profiles = append(m.AllOpenings[i].Profiles, store.ProfileInfo{ProfileKey: key, Unit: "count"})
		m.AllProfiles[HotOpening][key] = p
	}
	w := get(t, newTestServer(t, m), hotURL+"/report.html")
	require.Equal(t, http.StatusOK, w.Code)
	assert.Less(t, w.Body.Len(), 2*reportBytes)
	assert.Contains(t, w.Body.String(), "Not in this file, for lack of room or because it is lost: ")
	assert.Contains(t, w.Body.String(), "type 05.")
}

func TestTraceURL(t *testing.T) {
	const trace, span = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
	link := "https://grafana.example/explore?trace={trace_id}#{span_id}"
	assert.Equal(t, "https://grafana.example/explore?trace="+trace+"#"+span, traceURL(link, strings.ToUpper(trace), span))
	for _, ids := range [][2]string{
		{"", ""},
		{trace, ""},
		{trace, "javascript:"},
		{"../../etc/passwd", span},
		{strings.Repeat("0", 32), span},
		{trace + "00", span},
	} {
		assert.Empty(t, traceURL(link, ids[0], ids[1]), ids)
	}
	assert.Equal(t, "http://localhost/"+trace, traceURL("http://localhost/{trace_id}", trace, ""))
	assert.Empty(t, traceURL("", trace, span))

	assert.True(t, IsTraceURL(link))
	for _, bad := range []string{"javascript:alert({trace_id})", "data:text/html,{trace_id}", "//host/{trace_id}", "traces/{trace_id}", "https://host/{trace}", "https://ho st/{trace_id}", "https://me@host/{trace_id}"} {
		assert.False(t, IsTraceURL(bad), bad)
	}
}

func TestShortKey(t *testing.T) {
	keys := []store.ProfileKey{
		{Type: "cpu", Scope: "a"},
		{Type: "cpu", Scope: "b"},
		{Type: "cpu", Origin: "pprof", Scope: "a"},
		{Type: "goroutine", Origin: "pprof", Scope: "a", Moment: 1},
		{Type: "goroutine", Origin: "pprof", Scope: "a", Moment: 2},
		{Type: "wall", Scope: "a"},
	}
	var o store.Opening
	for _, key := range keys {
		o.Profiles = append(o.Profiles, store.ProfileInfo{ProfileKey: key})
	}
	for i, want := range []store.ProfileKey{
		{Type: "cpu"},
		{Type: "cpu", Scope: "b"},
		{Type: "cpu", Origin: "pprof"},
		{Type: "goroutine"},
		keys[4],
		{Type: "wall"},
	} {
		short := shortKey(o, keys[i])
		assert.Equal(t, want, short)
		found, err := findProfile(o, parseOpeningQuery(openingQuery{Profile: short}.values()).Profile)
		require.NoError(t, err)
		assert.Equal(t, keys[i], found.ProfileKey)
	}
}

// damagedStore cannot read the CPU profile of one opening.
type damagedStore struct {
	*Memory
	opening string
	err     error
}

func (s damagedStore) Profile(ctx context.Context, opening string, of store.ProfileKey) (*profile.Profile, error) {
	if opening == s.opening && of.Type == "cpu" {
		return nil, s.err
	}
	return s.Memory.Profile(ctx, opening, of)
}

func TestLostProfiles(t *testing.T) {
	for err, why := range map[error]string{store.ErrDamaged: "its files are damaged", store.ErrNotFound: "it is no longer kept"} {
		s := damagedStore{Demo(testNow), HotOpening, err}
		h := newTestServer(t, s.Memory, func(o *Options) { o.Store = s })
		page := getPage(t, h, hotURL)
		assert.Contains(t, textOf(page), "This profile cannot be shown: "+why+".")
		one(t, page, "nav", with("aria-label", "Profiles"))
		one(t, page, "p", class("why"))
		assert.NotEmpty(t, find(getPage(t, h, hotURL+"?type=off_cpu"), "section", class("flame")))
		assert.Equal(t, http.StatusNotFound, get(t, h, hotURL+"/flame.json").Code)
		assert.Equal(t, http.StatusNotFound, get(t, h, hotURL+"/profile.pb.gz").Code)
		assert.Contains(t, textOf(parse(t, get(t, h, hotURL+"/report.html").Body)), "Not in this file, for lack of room or because it is lost: CPU.")

		// If the other profile is damaged, the page shows an error message for it. The rest of
		// the page is still shown.
		s.opening = BaselineOpening
		page = getPage(t, newTestServer(t, s.Memory, func(o *Options) { o.Store = s }), hotURL)
		assert.Contains(t, textOf(page), "The other profile cannot be compared with: "+why+".")
		assert.NotEmpty(t, find(page, "section", class("flame")))
	}
	s := damagedStore{Demo(testNow), HotOpening, fmt.Errorf("no such device")}
	w := get(t, newTestServer(t, s.Memory, func(o *Options) { o.Store = s }), hotURL)
	assert.Equal(t, http.StatusInternalServerError, w.Code)
}

func TestFileName(t *testing.T) {
	o := store.Opening{Unit: store.Unit{Name: "x\"\r\n../../etc/ü;" + strings.Repeat("y", 1<<20)}, Policy: "a b", Triggered: testNow}
	o.Unit.Resource = map[string]string{"service.name": o.Unit.Name}
	name := fileName(o, "cpu")
	assert.Regexp(t, `^[a-zA-Z0-9][a-zA-Z0-9._-]{0,150}$`, name)
	assert.NotContains(t, name, "/")
	assert.True(t, strings.HasSuffix(name, "_20260102T150405Z_a-b_cpu"), name)
	assert.Equal(t, `'http://x/'\''; rm -rf /'`, shellQuote("http://x/'; rm -rf /"))
}

// hostileOpening adds an opening whose texts all contain
// markup or scripts, or are very long.
func hostileOpening(m *Memory) string {
	evil := `"'><script>alert(1)</script><img src=x onerror=alert(1)>` + "\u202e\x00\n" + `</script></style>{{.}}`
	long := strings.Repeat("x<", 1<<18) // longer than a page may be
	i := 1
	o := &m.AllOpenings[i]
	o.Policy, o.Monitor, o.Window, o.Why, o.TraceID = evil, evil, long, evil, evil
	o.Unit.Name, o.Unit.Host = long, evil
	o.Unit.Resource = map[string]string{"service.name": evil, "k8s.pod.name": long}
	key := store.ProfileKey{Type: evil, Origin: evil, Scope: long[:5000]}
	f := &profile.Function{ID: 1, Name: evil, Filename: evil}
	g := &profile.Function{ID: 2, Name: long, Filename: long}
	l := &profile.Location{ID: 1, Line: []profile.Line{{Function: f, Line: 1}, {Function: g, Line: -1}}}
	p := &profile.Profile{
		SampleType: []*profile.ValueType{{Type: evil, Unit: evil}}, Function: []*profile.Function{f, g}, Location: []*profile.Location{l},
		Sample: []*profile.Sample{
			{Location: []*profile.Location{l}, Value: []int64{1 << 62}, Label: map[string][]string{"thread.name": {evil}, "hotprofile.trigger.phase": {evil}, "hotprofile.wait": {long}}},
			{Location: []*profile.Location{l, l, l}, Value: []int64{1 << 62}, Label: map[string][]string{"thread.name": {long}, "hotprofile.trigger.phase": {"before"}, "hotprofile.wait": {evil}}},
		},
	}
	o.Profiles = []store.ProfileInfo{{ProfileKey: key, Unit: evil, Phases: []string{evil, "before"}}}
	m.AllProfiles[o.ID] = map[store.ProfileKey]*profile.Profile{key: p}
	return evil
}

func TestSamplesByRequest(t *testing.T) {
	m := Demo(testNow)
	o := &m.AllOpenings[slices.IndexFunc(m.AllOpenings, func(o store.Opening) bool { return o.ID == HotOpening })]
	functions := []*profile.Function{{ID: 1, Name: "main.planted"}, {ID: 2, Name: "main.cart"}}
	locations := []*profile.Location{{ID: 1, Line: []profile.Line{{Function: functions[0]}}}, {ID: 2, Line: []profile.Line{{Function: functions[1]}}}}
	in := func(function int, value int64, request, route string) *profile.Sample {
		labels := map[string][]string{}
		if request != "" {
			labels["hotprofile.request"], labels[route] = []string{request}, []string{"/cart/{id}"}
		}
		return &profile.Sample{Location: locations[function : function+1], Value: []int64{value, value * 1e9}, Label: labels}
	}
	key := store.ProfileKey{Type: "cpu"}
	o.Profiles = []store.ProfileInfo{{ProfileKey: key, Unit: "nanoseconds"}}
	m.AllProfiles[o.ID] = map[store.ProfileKey]*profile.Profile{key: {
		SampleType: []*profile.ValueType{{Type: "samples", Unit: "count"}, {Type: "cpu", Unit: "nanoseconds"}}, Function: functions, Location: locations,
		Sample: []*profile.Sample{
			in(0, 90, "slow", "http.route"), in(1, 10, "slow", "http.route"), in(1, 100, "normal", "rpc.method"), in(1, 50, "", ""),
		},
	}}
	h := newTestServer(t, m)
	page := getPage(t, h, hotURL)
	assert.Equal(t, "normal 40.0 % 100 s slow 40.0 % 100 s without name 20.0 % 50 s", textOf(one(t, page, "ul", with("aria-label", "By request"))))
	assert.Equal(t, "/cart/{id} 80.0 % 200 s without name 20.0 % 50 s", textOf(one(t, page, "ul", with("aria-label", "By route"))))
	page = getPage(t, h, hotURL+"?request=slow&route="+url.QueryEscape("/cart/{id}"))
	assert.Contains(t, textOf(one(t, page, "p", class("total"))), "100 s of CPU time, slow requests, /cart/{id}")
	table := tableRows(one(t, getPage(t, h, hotURL+"?against=normal"), "table", class("functions")))
	require.Greater(t, len(table), 1)
	assert.Equal(t, []string{"main.planted", "90.0 % 90 s", "+90.0 was 0 %", "90.0 % 90 s", "+90.0 was 0 %"}, table[1])
	assert.Contains(t, textOf(one(t, page, "select", with("id", "against"))), "this opening, normal requests")
}

// keepsToPolicy fails the test if a page has content that the content security policy
// blocks. It also fails the test if a page has markup from a profile.
func keepsToPolicy(t testing.TB, page *html.Node) {
	t.Helper()
	for _, n := range find(page, "*") {
		if n.Data == "img" && attributeOf(n, "src") == "x" {
			t.Error("an image of a profile")
		}
		for _, a := range n.Attr {
			if a.Key == "style" || strings.HasPrefix(a.Key, "on") {
				t.Errorf("%s has the attribute %s", n.Data, a.Key)
			}
			if a.Key == "href" && strings.HasPrefix(strings.ToLower(strings.TrimSpace(a.Val)), "javascript:") {
				t.Errorf("a link to %s", a.Val)
			}
		}
	}
	for _, s := range find(page, "script") {
		if s.FirstChild != nil && strings.HasPrefix(s.FirstChild.Data, "alert") {
			t.Error("a script of a profile")
		}
	}
}

func TestHostileOpening(t *testing.T) {
	m := Demo(testNow)
	evil := hostileOpening(m)
	h := newTestServer(t, m, func(o *Options) { o.TraceURL = "https://traces.example/{trace_id}" })
	for _, query := range []string{"", "?against=before&phase=before", "?function=" + url.QueryEscape(evil) + "&q=" + url.QueryEscape(evil)} {
		w := get(t, h, hotURL+query)
		require.Equal(t, http.StatusOK, w.Code)
		assert.Less(t, w.Body.Len(), 200<<10)
		page := parse(t, w.Body)
		assert.False(t, strings.ContainsAny(textOf(page), "\u202e\x00"))
		keepsToPolicy(t, page)
		assert.Len(t, find(page, "script"), 3)
	}
	page := getPage(t, h, hotURL)
	assert.Contains(t, tableRows(one(t, page, "table", class("functions")))[1][0], "<script>alert(1)</script>")

	w := get(t, h, hotURL+"/report.html")
	report := parse(t, bytes.NewReader(w.Body.Bytes()))
	keepsToPolicy(t, report)
	assert.Len(t, find(report, "script"), 4, "three of ours, and a tree")
	assert.Len(t, find(report, "style"), 3)

	w = get(t, h, hotURL+"/flame.json")
	assert.True(t, json.Valid(w.Body.Bytes()))
	assert.False(t, strings.ContainsAny(w.Body.String(), "<\u202e"))
	w = get(t, h, hotURL+"/profile.pb.gz")
	assert.Regexp(t, `^attachment; filename="[A-Za-z0-9._-]{1,200}"$`, w.Header().Get("Content-Disposition"))
}

func FuzzOpeningQuery(f *testing.F) {
	m := Demo(testNow)
	h := newTestServer(f, m)
	for _, query := range []string{
		"", "type=cpu&phase=before&thread=gc", "against=before&sort=total_diff&rows=9999999999999999999", "against=" + BaselineOpening,
		"function=%3Cscript%3E&q=%00%ff", "moment=-1&type=goroutine", "rows=-5&sort=zzz&wait=-", "%zz=1;a=b&q=" + strings.Repeat("a", 5000),
	} {
		f.Add(query)
	}
	f.Fuzz(func(t *testing.T, query string) {
		for _, path := range []string{"", "/flame.json", "/profile.pb.gz", "/report.html"} {
			w := httptest.NewRecorder()
			r := httptest.NewRequest(http.MethodGet, hotURL+path, nil)
			r.URL.RawQuery = query
			h.ServeHTTP(w, r)
			if w.Code != http.StatusOK && w.Code != http.StatusNotFound {
				t.Fatalf("%s: status %d", path, w.Code)
			}
			if path == "" {
				keepsToPolicy(t, parse(t, w.Body))
			}
		}
	})
}

func TestStacksCache(t *testing.T) {
	c := newStacksCache()
	key := func(id string) stacksKey { return stacksKey{opening: id} }
	large := func() *flame.Stacks {
		f := &profile.Function{ID: 1, Name: "f"}
		l := &profile.Location{ID: 1, Line: []profile.Line{{Function: f}}}
		p := &profile.Profile{
			SampleType: []*profile.ValueType{{}}, Function: []*profile.Function{f}, Location: []*profile.Location{l},
		}
		for range 600_000 {
			p.Sample = append(p.Sample, &profile.Sample{Value: []int64{1}, Location: []*profile.Location{l}})
		}
		return flame.New(p)
	}()
	require.Greater(t, 2*large.Size(), int64(stacksBytes))
	require.Less(t, large.Size(), int64(stacksBytes))

	// Two concurrent readers may both read a profile, but the profile is cached only once.
	var loads atomic.Int32
	load := func() (*flame.Stacks, error) {
		loads.Add(1)
		return large, nil
	}
	_, err := c.get(key("a"), func() (*flame.Stacks, error) { return c.get(key("a"), load) })
	require.NoError(t, err)
	s, err := c.get(key("a"), load)
	require.NoError(t, err)
	assert.Same(t, large, s)
	assert.EqualValues(t, 1, loads.Load())
	assert.Equal(t, large.Size(), c.bytes)

	// Profiles that do not fit are evicted, except for the last two.
	for i, id := range []string{"b", "a", "b", "c", "a", "b"} {
		_, err := c.get(key(id), load)
		require.NoError(t, err)
		want := []int32{2, 2, 2, 3, 4, 5}[i]
		assert.Equal(t, want, loads.Load(), i)
		assert.Equal(t, 2*large.Size(), c.bytes)
	}

	// Without use, all profiles are removed.
	c.idle.Reset(0)
	require.Eventually(t, func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.entries.Len() == 0
	}, time.Minute, time.Millisecond)
	assert.Zero(t, c.bytes)

	// Errors are not cached.
	_, err = c.get(key("c"), func() (*flame.Stacks, error) { return nil, store.ErrNotFound })
	require.ErrorIs(t, err, store.ErrNotFound)
	assert.Zero(t, c.entries.Len())
}

func BenchmarkOpeningPage(b *testing.B) {
	h := newTestServer(b, Demo(testNow))
	for _, path := range []string{"", "/flame.json", "/report.html"} {
		b.Run("page"+path, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				get(b, h, hotURL+path)
			}
		})
	}
}
