// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package web

import (
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/html"

	"github.com/hotprofile/hotprofile/extension/consoleextension/internal/store"
)

// rows returns the text of each body row of the first table of a page.
func rows(t *testing.T, page *html.Node) []string {
	t.Helper()
	var texts []string
	bodies := find(page, "tbody")
	if len(bodies) == 0 {
		return nil
	}
	for _, row := range find(bodies[0], "tr") {
		texts = append(texts, textOf(row))
	}
	return texts
}

// names returns the first word of each text.
func names(texts []string) []string {
	var first []string
	for _, s := range texts {
		first = append(first, strings.Fields(s)[0])
	}
	return first
}

func TestUnits(t *testing.T) {
	h := newTestServer(t, Demo(testNow))
	page := getPage(t, h, "/units")
	got := rows(t, page)
	require.Equal(t, []string{"checkout", "payments", "cart", "postgresql.service", "recommend", "nginx"}, names(got),
		"open gates, then by how near to a threshold")
	require.Equal(t, "checkout shop/checkout-5d9f8b7c6-jq4kz node-1.example "+
		"93.5 / 80 % , over the threshold cpu_utilization cpu profiling "+
		"18.1 / 25 % cpu_throttling throttled cooling down 184 / 500 ms http_response_time slow watching "+
		"– / 5 % http_error_rate errors watching 5 12 s ago cpu 3 cooldown 2, dry run 1", got[0])
	require.Contains(t, got[1], "84.9 / 80 %")
	require.Contains(t, got[1], "3 budget 2, min_age 1", "what was dropped for a budget")
	require.Contains(t, got[5], "throttled watching", "a policy without readings has a state too")
	require.Equal(t, "7 units on 2 hosts · 1 gate open · 6 triggers in 48 h · 9 not opened", textOf(find(page, "p", with("id", "summary"))[0]))

	link := find(page, "a", with("href", "/openings/77aa31c0de5f0001"))
	require.Len(t, link, 1, "the last trigger")
	require.Equal(t, "cpu_utilization 93.5\u00a0%, threshold 80\u00a0%, 30s average", attributeOf(link[0], "title"))
	require.Len(t, find(page, "a", with("href", "/units/"+string(CheckoutID))), 1)
	require.Len(t, find(page, "a", with("href", "/units?q=node-1.example")), 4, "the units of a host")
}

func TestUnitsAreSortedAndSearched(t *testing.T) {
	h := newTestServer(t, Demo(testNow))
	for query, want := range map[string][]string{
		"all=1&sort=name":        {"cart", "checkout", "cron.service", "nginx", "payments", "postgresql.service", "recommend"},
		"all=1&sort=near":        {"checkout", "payments", "cart", "postgresql.service", "recommend", "nginx", "cron.service"},
		"sort=triggers":          {"checkout", "recommend", "payments", "cart", "postgresql.service", "nginx"},
		"sort=last":              {"checkout", "recommend", "cart", "nginx", "payments", "postgresql.service"},
		"sort=nonsense&q=shop":   {"checkout", "payments", "cart"},
		"q=NGINX":                {"nginx"},
		"q=cron":                 {"cron.service"},
		"q=cooling+down":         {"checkout", "recommend"},
		"q=shop+node-2":          {"payments"},
		"q=http_error_rate":      {"checkout"},
		"q=nothing+of+that+kind": nil,
		"page=99":                {"checkout", "payments", "cart", "postgresql.service", "recommend", "nginx"},
		"page=-1&q=dotnet":       {"payments"},
	} {
		require.Equal(t, want, names(rows(t, getPage(t, h, "/units?"+query))), query)
	}

	page := getPage(t, h, "/units?sort=host&q=node")
	sorted := find(page, "th", func(n *html.Node) bool { return attributeOf(n, "aria-sort") != "" })
	require.Len(t, sorted, 1)
	require.Equal(t, "Host ↑", textOf(sorted[0]))
	require.Len(t, find(page, "a", with("href", "/units?q=node&sort=triggers")), 1, "a link keeps what is searched for")
	require.Equal(t, "node", attributeOf(find(page, "input", with("id", "q"))[0], "value"))
	require.Contains(t, textOf(getPage(t, h, "/units?q=%3Cb%3E")), "No unit matches “<b>”.")
}

func TestNoUnits(t *testing.T) {
	require.Contains(t, textOf(getPage(t, newTestServer(t, &Memory{}), "/units")), "No units yet")
}

// TestManyUnits checks that a page lists a limited number of units. The page must
// also show the number of all units.
func TestManyUnits(t *testing.T) {
	h := newTestServer(t, Many(testNow, 1000))
	page := getPage(t, h, "/units?q=shop")
	require.Len(t, rows(t, page), unitsPerPage)
	require.Contains(t, textOf(page), "100 of 1,000 units found, page 1 of 10")
	next := find(page, "a", with("rel", "next"))
	require.Len(t, next, 1)
	seen := map[string]bool{}
	url := "/units?q=shop"
	for pages := 0; url != ""; pages++ {
		require.Less(t, pages, 10)
		w := get(t, h, url)
		require.Less(t, w.Body.Len(), 400_000, "the size of a page is bounded")
		page := parse(t, w.Body)
		for _, row := range rows(t, page) {
			require.False(t, seen[row], row)
			seen[row] = true
		}
		url = ""
		if next := find(page, "a", with("rel", "next")); len(next) == 1 {
			url = attributeOf(next[0], "href")
		}
	}
	require.Len(t, seen, 1000, "the pages have each unit once")
}

// TestUnitsAreGrouped checks that a service or container has one row with the figures of
// all its units. Units that are neither hot nor busy are counted in one line.
func TestUnitsAreGrouped(t *testing.T) {
	m := Demo(testNow)
	add := func(host, name string, value float64, resource map[string]string) *store.UnitSummary {
		u := store.UnitSummary{
			Unit: store.Unit{ID: ID(host, name), Host: host, Name: name, Resource: resource, First: testNow.Add(-time.Hour), Last: testNow},
			Readings: []store.Reading{{
				Condition: store.Condition{Policy: "cpu", Monitor: "cpu_utilization"}, At: testNow, Value: value, Threshold: 80,
			}},
		}
		m.AllUnits = append(m.AllUnits, u)
		return &m.AllUnits[len(m.AllUnits)-1]
	}
	second := add("node-2.example", strings.Repeat("ab", 32), 88, pod("shop", "checkout", "checkout-5d9f8b7c6-zzzzz", "go"))
	second.Openings, second.Refusals = 2, map[string]int{"cooldown": 1}
	second.Newest = hot("aa00000000000001", second.Unit, testNow.Add(-5*time.Second), 88)
	gone := add("node-2.example", strings.Repeat("ef", 32), 99, pod("shop", "payments", "payments-1-bbbbb", "go"))
	gone.Last, gone.Openings, gone.Newest = testNow.Add(-time.Hour), 3, hot("aa00000000000002", gone.Unit, testNow.Add(-time.Hour), 99)
	add("node-2.example", strings.Repeat("cd", 32), 4, pod("prod", "checkout", "checkout-1-aaaaa", "go")).Openings = 1
	process := map[string]string{"process.executable.name": "cc1", "service.name": "unknown_service:cc1"}
	for i := range 300 {
		add("node-1.example", fmt.Sprintf("%d:2026-01-02T14:00:00Z", 1000+i), 40, process).Last = testNow.Add(-time.Hour)
	}
	for i := range 20 {
		add("node-1.example", fmt.Sprintf("%d:2026-01-02T15:00:00Z", 2000+i), 40, process)
	}
	add("node-1.example", "3000:2026-01-02T15:00:00Z", 95, map[string]string{"process.executable.name": "ld"})
	add("node-1.example", "3001:2026-01-02T15:00:00Z", 50, map[string]string{"service.name": "batch"})
	h := newTestServer(t, m)

	page := getPage(t, h, "/units")
	got := rows(t, page)
	require.Equal(t, []string{"checkout", "payments", "ld", "cart", "batch", "postgresql.service", "recommend", "nginx", "checkout"}, names(got))
	require.True(t, strings.HasPrefix(got[0], "checkout 2 units; the hottest: shop/checkout-5d9f8b7c6-jq4kz node-1.example 93.5 / 80 %"), got[0])
	require.True(t, strings.HasSuffix(got[0], "7 5 s ago cpu 4 cooldown 3, dry run 1"), got[0])
	require.Contains(t, got[1], "payments 2 units, 1 ended; the hottest: shop/payments-7c6b5d4f8-9k2lm node-2.example 31 / 25 %", "what ended is not the hottest")
	require.Contains(t, got[1], "3 1 h ago cpu", "and its triggers count")
	require.Len(t, find(page, "a", with("href", "/units?q=checkout")), 2)
	require.Contains(t, textOf(page), "Not shown: 300 ended or silent; 20 processes and kernel threads without a container; "+
		"1 idle, below a tenth of their thresholds and without a trigger. A search finds them.")

	page = getPage(t, h, "/units?all=1")
	require.Contains(t, strings.Join(rows(t, page), "\n"), "cc1 320 units, 300 ended; the hottest: process 20")
	require.NotContains(t, textOf(page), "Not shown")
	require.Len(t, rows(t, getPage(t, h, "/units?q=checkout")), 3, "a search has each unit")
	require.Contains(t, textOf(getPage(t, h, "/units?q=cc1")), "100 of 320 units found")

	m.AllUnits = m.AllUnits[len(m.AllUnits)-12 : len(m.AllUnits)-2]
	require.Contains(t, textOf(getPage(t, h, "/units")), "No unit is hot or busy. Not shown: 10 processes")
}

// hostile returns a store in which every text is the given text.
func hostile(text string) *Memory {
	unit := store.Unit{
		ID: CheckoutID, Host: text, Name: text, First: testNow.Add(-time.Hour), Last: testNow,
		Resource: map[string]string{"service.name": text, "k8s.pod.name": text, "k8s.namespace.name": text, text: text},
	}
	condition := store.Condition{Policy: text, Monitor: text, Window: text}
	opening := store.Opening{
		ID: text[:min(len(text), 40)], Unit: unit, Policy: text, Kind: text, Monitor: text, Window: text, Why: text, NothingExported: text,
		Value: math.Inf(1), Threshold: math.NaN(), Triggered: testNow.Add(-time.Minute), Until: testNow, Closed: testNow.Add(-time.Second),
		Profiles: []store.ProfileInfo{{ProfileKey: store.ProfileKey{Type: text}}},
	}
	return &Memory{
		AllUnits: []store.UnitSummary{{
			Unit: unit, Readings: []store.Reading{{Condition: condition, At: testNow, Value: 1, Threshold: 2}},
			States: map[string]string{text: text}, Openings: 1, Newest: opening, Refusals: map[string]int{text: 1},
		}},
		AllTrends: map[store.UnitID][]store.Trend{unit.ID: {{
			Condition: condition, Points: []store.Point{{At: testNow, Min: math.NaN(), Mean: math.Inf(1), Max: 1, Threshold: 2}},
		}}},
		AllOpenings: []store.Opening{opening},
		AllRefusals: []store.Refusal{{
			At: testNow, Unit: unit, Policy: text, Monitor: text, Window: text, Why: text, Budget: text,
		}},
	}
}

// TestStrangersTexts checks that hostile names of services cannot change the elements and
// attributes of a page. The size of the page must be limited, and the page must contain no
// characters that reorder text.
func TestStrangersTexts(t *testing.T) {
	shape := func(t *testing.T, tree *html.Node) []string {
		var elements []string
		for _, n := range find(tree, "*") {
			element := n.Data
			for _, a := range n.Attr {
				if a.Key != "title" && a.Key != "class" { // truncated texts have a tooltip, and states have a class
					element += " " + a.Key
				}
			}
			elements = append(elements, element)
		}
		return elements
	}
	paths := []string{"/", "/units", "/units/" + string(CheckoutID)}
	plain := newTestServer(t, hostile("plain"))
	for name, text := range map[string]string{
		"element":   `<script>alert(1)</script>`,
		"attribute": `" onmouseover="alert(1)" x='y`,
		"template":  `{{.Token}}${1}</textarea></title></style><svg/onload=alert(1)>`,
		"scheme":    `javascript:alert(1)//`,
		"path":      `../../etc/passwd?x#y`,
		"reorders":  "\u202etxt.exe\u2066\u200f",
		"invalid":   "\xff\xfe\x00\x1b[31m",
		"long":      strings.Repeat("<b>long", 300_000),
		"one word":  strings.Repeat("w", 2<<20),
	} {
		t.Run(name, func(t *testing.T) {
			h := newTestServer(t, hostile(text))
			for _, path := range paths {
				w := get(t, h, path)
				require.Equal(t, http.StatusOK, w.Code)
				body := w.Body.String()
				require.Less(t, len(body), 200_000, "%s is bounded", path)
				require.NotContains(t, body, "\u202e")
				require.Equal(t, shape(t, getPage(t, plain, path)), shape(t, parse(t, strings.NewReader(body))), path)
				for _, n := range find(parse(t, strings.NewReader(body)), "a") {
					u, err := url.Parse(attributeOf(n, "href"))
					require.NoError(t, err)
					require.Empty(t, u.Scheme+u.Host)
				}
			}
			w := get(t, h, "/units/"+string(CheckoutID)+"/trends.json")
			require.Equal(t, http.StatusOK, w.Code)
			require.Equal(t, "application/json", w.Header().Get("Content-Type"))
			require.Less(t, w.Body.Len(), 20_000)
			require.True(t, json.Valid(w.Body.Bytes()))
		})
	}
}

// manyInStore returns a store on disk with 1,000 units.
func manyInStore(b *testing.B) store.Reader {
	s, err := store.Open(store.Options{Directory: b.TempDir(), Now: func() time.Time { return testNow }})
	require.NoError(b, err)
	b.Cleanup(func() { require.NoError(b, s.Close()) })
	Fill(s, Many(testNow, 1000))
	require.NoError(b, s.Commit(b.Context()))
	return s
}

func BenchmarkUnits(b *testing.B) {
	s := manyInStore(b)
	for name, query := range map[string]string{"openings": "/", "all": "/units", "search": "/units?q=service-1", "last": "/units?sort=near&page=10"} {
		b.Run(name, func(b *testing.B) { benchmark(b, s, query) })
	}
}

func BenchmarkUnit(b *testing.B) {
	m := Many(testNow, 1000)
	id := string(m.AllUnits[3].ID)
	b.Run("page", func(b *testing.B) { benchmark(b, manyInStore(b), "/units/"+id) })
	b.Run("trends", func(b *testing.B) { benchmark(b, m, "/units/"+id+"/trends.json?range=48h") })
}

func benchmark(b *testing.B, s store.Reader, url string) {
	h := New(Options{Store: s, Now: func() time.Time { return testNow }})
	b.ReportAllocs()
	size := 0
	for b.Loop() {
		w := get(b, h, url)
		if w.Code != http.StatusOK {
			b.Fatal(w.Code)
		}
		size = w.Body.Len()
	}
	b.ReportMetric(float64(size), "bytes/page")
}
