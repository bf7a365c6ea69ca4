// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package web

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/google/pprof/profile"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/html"

	"github.com/hotprofile/hotprofile/extension/consoleextension/internal/store"
)

// TestOpenings checks the contents of the rows. A row shows the time, the unit, the
// reason and the hottest function of an opening.
func TestOpenings(t *testing.T) {
	m := Demo(testNow)
	page := getPage(t, newTestServer(t, m), "/")
	require.Equal(t, "1 gate open now · what was not opened", textOf(find(page, "p", with("id", "summary"))[0]))
	require.Equal(t, []string{
		"2026-01-02 15:03:53 UTC open now checkout shop/checkout-5d9f8b7c6-jq4kz · node-1.example " +
			"cpu_utilization 93.5 %, threshold 80 %, 30s average policy cpu crypto/sha256.block 54.7 % of CPU time",
		"2026-01-02 14:39:05 UTC for 30 s checkout shop/checkout-5d9f8b7c6-jq4kz · node-1.example " +
			"cpu_utilization 97.2 %, threshold 80 %, 30s average policy cpu crypto/sha256.block 54.7 % of CPU time",
		"2026-01-02 12:04:05 UTC for 30 s recommend ml/recommend-0 · node-2.example " +
			"cpu_utilization 91.7 %, threshold 80 %, 30s average policy cpu no profiles arrived",
		"2026-01-02 10:04:05 UTC for 30 s checkout shop/checkout-5d9f8b7c6-jq4kz · node-1.example opened by hand no profile",
		"2026-01-01 13:04:05 UTC for 11 s checkout shop/checkout-5d9f8b7c6-jq4kz · node-1.example " +
			"cpu_throttling 41 %, threshold 25 %, 30s average policy throttled no profile",
		"2026-01-01 08:04:05 UTC end not known checkout shop/checkout-5d9f8b7c6-jq4kz · node-1.example " +
			"cpu_utilization 88.8 %, threshold 80 %, 30s average policy cpu no profile",
	}, rows(t, page), "the newest first, without the baseline")
	require.Len(t, find(page, "a", with("href", "/openings/"+HotOpening+"?function=crypto%2Fsha256.block&type=cpu")), 1)
	second := hot("77aa31c0de5f0002", m.AllUnits[0].Unit, testNow.Add(-5*time.Second), 41)
	second.Policy = "throttled"
	m.AllOpenings = append(m.AllOpenings, second)
	page = getPage(t, newTestServer(t, m), "/")
	require.Contains(t, textOf(page), "1 gate open now", "two policies hold one gate open")
	require.Contains(t, rows(t, page)[0], "crypto/sha256.block 54.7 % of CPU time, with cpu", "whose profiles are kept once")
	current := find(page, "a", with("aria-current", "true"))
	require.Len(t, current, 1)
	require.Equal(t, "48 h", textOf(current[0]))
}

func TestOpeningsAreFiltered(t *testing.T) {
	h := newTestServer(t, Demo(testNow))
	for query, want := range map[string]int{
		"range=1h":                2,
		"range=6h":                4,
		"service=recommend":       1,
		"policy=throttled":        1,
		"policy=cpu":              4,
		"reason=cpu_throttling":   1,
		"reason=manual":           1,
		"reason=baseline":         1,
		"service=nothing":         0,
		"service=checkout&part=9": 5,
		"from=2026-01-02T09:00:00Z&to=2026-01-02T11:00:00Z": 1,
		"from=2026-01-02T09:00&to=2026-01-02T11:00:00":      1, // the format of a browser's input fields
		"range=6h&from=&to=":                                4,
		"from=&to=2026-01-02T11:00":                         3,
	} {
		require.Len(t, rows(t, getPage(t, h, "/?"+query)), want, query)
	}
	page := getPage(t, h, "/?range=24h&reason=cpu_throttling")
	require.Equal(t, "all reasons baseline cpu_throttling cpu_utilization manual", textOf(find(page, "select", with("id", "reason"))[0]))
	require.Contains(t, rows(t, getPage(t, h, "/?reason=baseline"))[0], "baseline cpu_utilization 34 %, threshold 80 %, 30s average policy cpu")
	selected := find(page, "option", func(n *html.Node) bool {
		return slices.ContainsFunc(n.Attr, func(a html.Attribute) bool { return a.Key == "selected" })
	})
	require.Len(t, selected, 1)
	require.Equal(t, "cpu_throttling", textOf(selected[0]))
	require.Len(t, find(page, "a", with("href", "?range=6h&reason=cpu_throttling")), 1, "another range has the same filters")
	require.Equal(t, http.StatusBadRequest, get(t, h, "/?range=later").Code)
	field := find(getPage(t, h, "/?from=2026-01-02T09:00&to=2026-01-02T11:00"), "input", with("name", "from"))
	require.Len(t, field, 1)
	require.Equal(t, "2026-01-02T09:00:00", attributeOf(field[0], "value"))
	require.Contains(t, textOf(getPage(t, newTestServer(t, &Memory{}), "/")), "No gate opened in this time.")
}

// TestManyOpenings checks that a page shows a limited number of openings.
func TestManyOpenings(t *testing.T) {
	h := newTestServer(t, Many(testNow, 1000))
	page := getPage(t, h, "/?range=48h")
	require.Len(t, rows(t, page), openingsPerPage)
	all := len(rows(t, page))
	for next := find(page, "a", with("rel", "next")); len(next) == 1; next = find(page, "a", with("rel", "next")) {
		w := get(t, h, "/"+attributeOf(next[0], "href"))
		require.Less(t, w.Body.Len(), 200_000)
		page = parse(t, w.Body)
		all += len(rows(t, page))
	}
	require.Contains(t, textOf(page), fmt.Sprintf("%d openings, part", all))
	require.Len(t, find(find(getPage(t, h, "/"), "select", with("id", "service"))[0], "option"), 1+min(100, choicesPerFilter))
}

// reads counts the profiles that are read from a store.
type reads struct {
	*Memory
	n int
}

func (r *reads) Profile(ctx context.Context, opening string, of store.ProfileKey) (*profile.Profile, error) {
	r.n++
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	return r.Memory.Profile(ctx, opening, of)
}

// TestHottestIsReadOnce checks that a refresh reads only profiles that have changed.
func TestHottestIsReadOnce(t *testing.T) {
	m := &reads{Memory: Demo(testNow)}
	s := &Server{Options: Options{Store: m, Now: func() time.Time { return testNow }}, stacks: newStacksCache()}
	o, err := m.Opening(t.Context(), HotOpening)
	require.NoError(t, err)
	first := s.hottest(t.Context(), o)
	require.Equal(t, "crypto/sha256.block", first.Name)
	s.stacks.entries.Purge()
	require.Equal(t, first, s.hottest(t.Context(), o))
	require.Equal(t, 1, m.n)
	for i := range o.Profiles {
		o.Profiles[i].Samples++
	}
	require.Equal(t, first.Name, s.hottest(t.Context(), o).Name)
	require.Equal(t, 2, m.n)

	o.Profiles[0].Samples++
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	s.stacks.entries.Purge()
	require.True(t, s.hottest(ended, o).Later, "what there was no time for comes later")
}
