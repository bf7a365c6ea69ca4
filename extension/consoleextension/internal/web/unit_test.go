// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package web

import (
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/html"

	"github.com/hotprofile/hotprofile/extension/consoleextension/internal/store"
)

const checkoutPage = "/units/"

func TestUnit(t *testing.T) {
	h := newTestServer(t, Demo(testNow))
	page := getPage(t, h, checkoutPage+string(CheckoutID))
	require.Equal(t, "checkout", textOf(find(page, "h1")[0]))
	bodies := find(page, "tbody")
	require.Len(t, bodies, 5)

	text := func(table int) (rows []string) {
		for _, row := range find(bodies[table], "tr") {
			rows = append(rows, textOf(row))
		}
		return rows
	}
	require.Equal(t, []string{
		"cpu profiling cpu_utilization 30s average 93.5 % 80 % over",
		"throttled cooling down cpu_throttling 30s average 18.1 % 25 %",
		"slow watching http_response_time 1m average 184 ms 500 ms",
		"errors watching http_error_rate 1m average – 5 %",
	}, text(0))
	require.Equal(t, []string{
		"2026-01-02 15:03:53 UTC cpu cpu_utilization 93.5 %, threshold 80 %, 30s average open cpu, off_cpu, alloc_space, goroutine in charts",
		"2026-01-02 14:39:05 UTC cpu cpu_utilization 97.2 %, threshold 80 %, 30s average 2026-01-02 14:39:35 UTC after 30 s: duration 1.41 MiB cpu, off_cpu, alloc_space, goroutine in charts",
		"2026-01-02 14:14:05 UTC cpu baseline cpu_utilization 34 %, threshold 80 %, 30s average 2026-01-02 14:14:15 UTC after 10 s: duration 206 KiB cpu, off_cpu, alloc_space, goroutine in charts",
		"2026-01-02 10:04:05 UTC manual opened by hand 2026-01-02 10:04:35 UTC after 30 s: duration 88 KiB in charts",
		"2026-01-01 13:04:05 UTC throttled cpu_throttling 41 %, threshold 25 %, 30s average 2026-01-01 13:04:16 UTC after 11 s: released 294 KiB in charts",
		"2026-01-01 08:04:05 UTC cpu cpu_utilization 88.8 %, threshold 80 %, 30s average not known in charts",
	}, text(1))
	require.Equal(t, "2026-01-02 14:45:05 UTC cpu cpu_utilization 91 %, threshold 80 %, 30s average cooldown", text(2)[0])
	require.Len(t, find(page, "form"), 0, "nothing can be changed unless that is allowed")

	require.Len(t, find(page, "a", with("aria-current", "true")), 1)

	refused := getPage(t, h, checkoutPage+string(ID("node-2.example", "0c9d8e7f6a5b4c3d2e1f0a9b8c7d6e5f4a3b2c1d0e9f8a7b9a7b6c5d4e3f2a1b")))
	require.Contains(t, textOf(refused), "budget : max_concurrent_units")
	nginx := getPage(t, h, checkoutPage+string(ID("node-1.example", "/system.slice/nginx.service")))
	require.Contains(t, textOf(nginx), "Without readings: throttled watching")
	require.Contains(t, textOf(refused), "No gate of this unit opened in 48 h.")
}

func TestProfileNow(t *testing.T) {
	may := true
	h := newTestServer(t, Demo(testNow), func(o *Options) {
		o.Token = `t"<>`
		o.CanProfile = func(u store.Unit) bool { return may && u.ID == CheckoutID }
	})
	path := checkoutPage + string(CheckoutID)
	forms := find(getPage(t, h, path), "form")
	require.Len(t, forms, 1)
	require.Equal(t, "post", attributeOf(forms[0], "method"))
	require.Equal(t, path+"/profile", attributeOf(forms[0], "action"))
	require.Equal(t, `t"<>`, attributeOf(find(forms[0], "input", with("name", "token"))[0], "value"))
	may = false
	require.Empty(t, find(getPage(t, h, path), "form"))
}

// TestQuietUnit checks that the page of a unit without new
// readings shows when it was last seen.
func TestQuietUnit(t *testing.T) {
	m := Demo(testNow.Add(-3 * time.Hour))
	h := newTestServer(t, m)
	require.Contains(t, textOf(getPage(t, h, "/units?all=1")), "last seen 3 h ago")
	page := textOf(getPage(t, h, checkoutPage+string(CheckoutID)))
	require.Contains(t, page, "last seen 3 h ago")
	require.Contains(t, page, "Last readings")
	require.NotContains(t, page, "profiling", "it is in no state")
	a := trendsOf(t, h, "?range=1h")
	require.InDelta(t, seconds(m.AllUnits[0].Last)+60, a.To, 0, "its last hours end with it")
	require.InDelta(t, 3600, a.To-a.From, 0)
	require.Len(t, a.Openings, 3)
}

// TestUnitGone covers a unit whose gate closed because the unit was gone. The unit is not
// hot until it has new readings.
func TestUnitGone(t *testing.T) {
	m := Demo(testNow)
	u := &m.AllUnits[0]
	u.Newest.Closed, u.Newest.Why = u.Last.Add(time.Second), "unit gone"
	h := newTestServer(t, m)
	require.Contains(t, textOf(getPage(t, h, "/units")), "no gate open")
	require.Contains(t, textOf(getPage(t, h, checkoutPage+string(u.ID))), "Last readings")
	u.Readings[0].At = u.Newest.Closed.Add(time.Second)
	require.Contains(t, textOf(getPage(t, h, "/units")), "1 gate open")
	require.NotContains(t, textOf(getPage(t, h, checkoutPage+string(u.ID))), "Last readings")
}

// TestProfilesOfAnotherPolicy covers two policies that hold a gate open at the same time.
// The profiles belong to the earlier opening. The later opening links to the earlier one.
func TestProfilesOfAnotherPolicy(t *testing.T) {
	m := Demo(testNow)
	second := m.AllOpenings[1]
	second.ID, second.Policy, second.Profiles = "5ec0d00000000000", "throttled", nil
	second.Triggered = second.Triggered.Add(3 * time.Second)
	m.AllOpenings = append(m.AllOpenings, second)
	page := getPage(t, newTestServer(t, m), checkoutPage+string(CheckoutID))
	links := find(page, "a", func(n *html.Node) bool { return textOf(n) == "with cpu" })
	require.Len(t, links, 1)
	require.Equal(t, "/openings/"+HotOpening, attributeOf(links[0], "href"))
}

func TestBoundsOfUnit(t *testing.T) {
	m := Demo(testNow)
	u := &m.AllUnits[0]
	for i := range 300 {
		m.AllOpenings = append(m.AllOpenings, store.Opening{
			ID: fmt.Sprint(i), Unit: u.Unit, Policy: "cpu", Kind: "hot", Triggered: testNow.Add(-time.Duration(i) * time.Minute),
		})
		m.AllRefusals = append(m.AllRefusals, store.Refusal{At: testNow.Add(-time.Duration(i) * time.Minute), Unit: u.Unit, Why: "cooldown"})
		m.AllTrends[u.ID] = append(m.AllTrends[u.ID], store.Trend{Condition: store.Condition{Policy: fmt.Sprint(i)}})
		u.Resource[fmt.Sprintf("key.%d", i)] = "value"
	}
	u.Refusals["cooldown"] += 300
	h := newTestServer(t, m)
	page := textOf(getPage(t, h, checkoutPage+string(u.ID)))
	require.Contains(t, page, "The newest 200 are shown; there are more.")
	require.Contains(t, page, "And 203 older.")
	require.Contains(t, page, "Attributes (309)")
	a := trendsOf(t, h, "")
	require.Len(t, a.Trends, trendsPerUnit)
	require.Equal(t, 280, a.Left)
}

// trendsAnswer contains the data that trends.js draws.
type trendsAnswer struct {
	From     float64       `json:"from"`
	To       float64       `json:"to"`
	Trends   []trendAnswer `json:"trends"`
	Left     int           `json:"left_out"` // number of trends beyond the bound
	Openings []bandAnswer  `json:"openings"`
}

type trendAnswer struct {
	Policy    string       `json:"policy"`
	Monitor   string       `json:"monitor"`
	Window    string       `json:"window"`
	Unit      string       `json:"unit"`
	At        []float64    `json:"at"`
	Min       []jsonNumber `json:"min"`
	Mean      []jsonNumber `json:"mean"`
	Max       []jsonNumber `json:"max"`
	Threshold []jsonNumber `json:"threshold"`
}

type bandAnswer struct {
	ID     string  `json:"id"`
	Policy string  `json:"policy"`
	Kind   string  `json:"kind"`
	Reason string  `json:"reason"`
	From   float64 `json:"from"`
	To     float64 `json:"to"`
}

func trendsOf(t *testing.T, h http.Handler, query string) (a trendsAnswer) {
	t.Helper()
	w := get(t, h, checkoutPage+string(CheckoutID)+"/trends.json"+query)
	require.Equal(t, http.StatusOK, w.Code, w.Body)
	var raw struct {
		trendsAnswer
		Trends []struct {
			trendAnswer
			Min       []*float64 `json:"min"`
			Mean      []*float64 `json:"mean"`
			Max       []*float64 `json:"max"`
			Threshold []*float64 `json:"threshold"`
		} `json:"trends"`
	}
	require.NoError(t, json.Unmarshal(w.Body.Bytes(), &raw))
	a = raw.trendsAnswer
	for _, r := range raw.Trends {
		require.Len(t, r.Mean, len(r.At))
		require.Len(t, r.Min, len(r.At))
		require.Len(t, r.Max, len(r.At))
		require.Len(t, r.Threshold, len(r.At))
		for _, v := range r.Mean {
			if v == nil {
				r.trendAnswer.Mean = append(r.trendAnswer.Mean, -1)
			} else {
				r.trendAnswer.Mean = append(r.trendAnswer.Mean, jsonNumber(*v))
			}
		}
		a.Trends = append(a.Trends, r.trendAnswer)
	}
	return a
}

func TestTrends(t *testing.T) {
	h := newTestServer(t, Demo(testNow))
	a := trendsOf(t, h, "")
	require.InDelta(t, seconds(testNow), a.To, 0)
	require.InDelta(t, 6*3600, a.To-a.From, 0)
	require.Len(t, a.Trends, 4)
	require.Equal(t, "cpu_utilization", a.Trends[0].Monitor)
	require.Equal(t, "%", a.Trends[0].Unit)
	require.LessOrEqual(t, len(a.Trends[0].At), trendPoints)
	require.Greater(t, len(a.Trends[0].At), trendPoints/2)
	require.Len(t, a.Openings, 4)
	require.Equal(t, HotOpening, a.Openings[1].ID)
	require.InDelta(t, 30, a.Openings[1].To-a.Openings[1].From, 0)
	require.InDelta(t, seconds(testNow), a.Openings[0].To, 0, "an open gate ends now")
	require.Equal(t, jsonNumber(-1), a.Trends[1].Mean[0], "no reading is null")

	a = trendsOf(t, h, "?from=2026-01-02T14:30:00Z&to=2026-01-02T15:00:00Z")
	require.InDelta(t, 1800, a.To-a.From, 0)
	require.Len(t, a.Openings, 1)
}

// TestRangeBeginsWithReadings checks that charts begin with the first reading. Without
// this rule, the charts of a new unit would be mostly empty.
func TestRangeBeginsWithReadings(t *testing.T) {
	m := Demo(testNow)
	h := newTestServer(t, m)
	begin := func(ago time.Duration) {
		for i, trend := range m.AllTrends[CheckoutID] {
			m.AllTrends[CheckoutID][i].Points = slices.DeleteFunc(trend.Points, func(p store.Point) bool {
				return p.At.Before(testNow.Add(-ago))
			})
		}
	}
	begin(26 * time.Minute)
	a := trendsOf(t, h, "?range=48h")
	require.InDelta(t, 26*60, a.To-a.From, 10, "an opening, and the unit, are older")
	require.Len(t, a.Openings, 2)
	a = trendsOf(t, h, "?from=2026-01-02T14:00:00Z&to=2026-01-02T15:00:00Z")
	require.InDelta(t, 3600, a.To-a.From, 0, "what was asked for")
	m.AllTrends[CheckoutID][1].Points = []store.Point{{At: testNow.Add(-2 * time.Hour), Mean: math.NaN()}}
	a = trendsOf(t, h, "")
	require.InDelta(t, 26*60, a.To-a.From, 10, "no value is no reading")
	begin(20 * time.Second)
	a = trendsOf(t, h, "")
	require.InDelta(t, shortestRange.Seconds(), a.To-a.From, 0)
	m.AllTrends[CheckoutID] = nil
	a = trendsOf(t, h, "")
	require.InDelta(t, 6*3600, a.To-a.From, 0, "there are no readings")
}
