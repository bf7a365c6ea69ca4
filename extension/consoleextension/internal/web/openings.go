// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package web

import (
	"cmp"
	"context"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/hotprofile/hotprofile/extension/consoleextension/internal/flame"
	"github.com/hotprofile/hotprofile/extension/consoleextension/internal/store"
)

const (
	// openingsPerPage is the maximum number of openings in the list. choicesPerFilter is
	// the maximum number of choices of each filter.
	openingsPerPage, choicesPerFilter = 50, 200
	// filterText is the maximum number of characters that a filter compares.
	filterText = 60
	// hottestTime is the maximum time that one request spends on reading profiles to find
	// the hottest functions. The next refresh reads the remaining profiles.
	hottestTime = 2 * time.Second
	// hottestKept is the maximum number of hottest functions that are kept.
	hottestKept = 10_000
)

// openingsPage contains the data for openings.html.
type openingsPage struct {
	Range    timeRange
	RangeKey string // range in the URL
	Filters  []openingFilter
	Rows     []openingRow
	// Open is the number of units with an open gate. Found is the number of
	// openings that match the filters.
	Open, Found int
	Filtered    bool
	pager
}

// openingFilter selects the openings with one service, policy or reason.
type openingFilter struct {
	Name, All, Current string
	Choices            []string
	of                 func(store.Opening) string
}

// reasonKind returns the reason for an opening. This is the monitor if a condition opened
// the gate, and otherwise the kind.
func reasonKind(o store.Opening) string {
	if o.Kind == "hot" || o.Kind == "" {
		return o.Monitor
	}
	return o.Kind
}

// openings serves the page that lists the openings of all units.
func (s *Server) openings(w http.ResponseWriter, r *http.Request) error {
	q := r.URL.Query()
	now := s.Now()
	span, err := rangeOf(q, longestRange, now)
	if err != nil {
		return err
	}
	all, err := s.Store.Openings(r.Context(), store.OpeningQuery{From: span.From, To: span.To, All: true})
	if err != nil {
		return err
	}
	p := openingsPage{Range: span, RangeKey: q.Get("range")}
	rows := p.find(all, q, now)
	number, _ := strconv.Atoi(q.Get("part"))
	p.Rows, p.pager = turn(rows, openingsPerPage, number, func(number int) string {
		return linkTo(q, "part", strconv.Itoa(number))
	})
	ctx, cancel := context.WithTimeout(r.Context(), hottestTime)
	defer cancel()
	for i := range p.Rows {
		row := &p.Rows[i]
		row.share(all, now)
		row.Hottest = s.hottest(ctx, *cmp.Or(row.With, &row.Opening))
	}
	return s.render(w, page{Template: "openings", Title: "Openings", Section: "/", Refresh: true, Data: p})
}

// find returns the openings that the filters select. Baselines are included only if a
// reason is selected.
func (p *openingsPage) find(all []store.Opening, q url.Values, now time.Time) (found []openingRow) {
	p.Filters = []openingFilter{
		{Name: "service", All: "all services", of: func(o store.Opening) string { return unitName(o.Unit) }},
		{Name: "policy", All: "all policies", of: func(o store.Opening) string { return o.Policy }},
		{Name: "reason", All: "all reasons", of: reasonKind},
	}
	for i := range p.Filters {
		f := &p.Filters[i]
		f.Current = cutText(filterText, q.Get(f.Name))
		p.Filtered = p.Filtered || f.Current != ""
		names := map[string]bool{f.Current: true}
		for _, o := range all {
			if len(names) <= choicesPerFilter {
				names[cutText(filterText, f.of(o))] = true
			}
		}
		delete(names, "")
		f.Choices = slices.Sorted(maps.Keys(names))
	}
	open := map[store.UnitID]bool{}
	for _, o := range all {
		row := newOpeningRow(o, now)
		if row.Open && o.Kind != "baseline" {
			open[o.Unit.ID] = true
		}
		left := slices.ContainsFunc(p.Filters, func(f openingFilter) bool {
			return f.Current != "" && f.Current != cutText(filterText, f.of(o))
		})
		if !left && (o.Kind != "baseline" || p.Filters[2].Current != "") {
			found = append(found, row)
		}
	}
	p.Open, p.Found = len(open), len(found)
	return found
}

// linkTo returns the query for another page of a list or for another range.
// The query keeps the filters.
func linkTo(q url.Values, key, value string) string {
	link := url.Values{key: {value}}
	kept := []string{"service", "policy", "reason"}
	if key != "range" {
		kept = append(kept, "range", "from", "to")
	}
	for _, k := range kept {
		if v := q.Get(k); v != "" {
			link.Set(k, cutText(queryText, v))
		}
	}
	return "?" + link.Encode()
}

// hottest is the function with the largest self value in an opening.
type hottest struct {
	Name, Share, What, URL string
	Later                  bool // the profile has not been read yet
}

// hottest returns the hottest function of an opening. It reads the first profile whose stacks
// do not all end in the kernel.
func (s *Server) hottest(ctx context.Context, o store.Opening) (h hottest) {
	profiles := sortProfiles(o.Profiles)
	i := slices.IndexFunc(profiles, func(p store.ProfileInfo) bool { return !typeOf(p.Type).InKernel })
	if i < 0 {
		return h
	}
	key := keyOf(o, profiles[i])
	if h, known := s.stacks.hottest.Get(key); known {
		return h
	}
	stacks, err := s.stacksOf(ctx, o, profiles[i])
	if err != nil && lost(err) == "" {
		return hottest{Later: true}
	}
	if err == nil {
		t := flame.Query{Of: stacks}.Table(flame.BySelf, "", 1)
		for _, f := range t.Rows {
			share, _ := f.Self.Share(t.Total)
			link := openingQuery{opening: o.ID, Profile: shortKey(o, profiles[i].ProfileKey), Function: f.Name}
			h = hottest{Name: f.Name, Share: percent(share), What: typeOf(profiles[i].Type).What, URL: link.url("")}
		}
	}
	s.stacks.hottest.Add(key, h)
	return h
}
