// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package web

import (
	"cmp"
	"maps"
	"math"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hotprofile/hotprofile/extension/consoleextension/internal/store"
)

const (
	// unitsPerPage bounds the page of all units.
	unitsPerPage = 100
	// readingsPerRow, statesPerRow and refusalsPerRow bound a row of it.
	readingsPerRow, statesPerRow, refusalsPerRow = 4, 6, 6
	// searchedText is the number of bytes of each text that a search compares.
	searchedText = 1024
	// quietAfter is the time without data after which a unit is shown as quiet. Readings
	// come every collection_interval of the receiver, by default 10 seconds.
	quietAfter = 2 * time.Minute
)

// unitsPage has the data of units.html.
type unitsPage struct {
	Query, Sort string
	Columns     []unitsColumn
	Rows        []unitRow
	// Known, Hosts, Open, Openings and Refusals are of all units; Found of those that
	// the search selects.
	Known, Found, Hosts, Open, Openings, Refusals int
	First, Page, Pages                            int
	Previous, Next                                string
	Kept                                          time.Duration
	Announcement                                  string
}

// unitsColumn is a column that the list can be sorted by.
type unitsColumn struct {
	Text, Title, URL, Class string
	Sorted                  string // ascending, descending or empty
}

// unitRow is a unit in the list.
type unitRow struct {
	store.UnitSummary
	near     float64
	Readings []readingCell
	More     int         // readings that are not shown
	States   []stateCell // of policies whose readings are not shown
	Dropped  []refusalCell
	Refused  int
	Quiet    bool
}

// readingCell is a reading with a bar: the threshold is at two thirds of its length.
type readingCell struct {
	store.Reading
	State string
	Near  float64
	Over  bool
	Bar   float64 // of 100
}

// barThreshold is the place of the threshold in a bar, of 100.
const barThreshold = 66

type stateCell struct{ Policy, State string }

type refusalCell struct {
	Why   string
	Count int
}

// units answers with the page of all units.
func (s *Server) units(w http.ResponseWriter, r *http.Request) error {
	all, err := s.Store.Units(r.Context())
	if err != nil {
		return err
	}
	q := r.URL.Query()
	p := unitsPage{Query: cutText(200, strings.TrimSpace(q.Get("q"))), Sort: q.Get("sort"), Known: len(all), Kept: s.Store.Usage().MaxAge}
	order, ok := unitOrders[p.Sort]
	if !ok {
		p.Sort, order = "triggers", unitOrders["triggers"]
	}
	found := p.find(all, s.Now())
	slices.SortStableFunc(found, func(a, b unitRow) int {
		return cmp.Or(order(a, b), cmp.Compare(unitName(a.Unit), unitName(b.Unit)), cmp.Compare(a.ID, b.ID))
	})
	p.Page, _ = strconv.Atoi(q.Get("page"))
	p.turnTo(found)
	p.columns()
	p.Announcement = plural(p.Open, "gate is open", "gates are open") + ", " + plural(p.Openings, "trigger", "triggers")
	return s.render(w, r, page{Template: "units", Title: "Units", Section: "/", Refresh: true, Data: p})
}

// find returns the units that the query matches, and counts all.
func (p *unitsPage) find(all []store.UnitSummary, now time.Time) []unitRow {
	words := strings.Fields(strings.ToLower(p.Query))
	hosts := map[string]bool{}
	found := make([]unitRow, 0, len(all))
	for _, u := range all {
		hosts[u.Host] = true
		p.Openings += u.Openings
		for _, n := range u.Refusals {
			p.Refusals += n
		}
		for _, state := range u.States {
			if state == "profiling" && !quiet(u, now) {
				p.Open++
				break
			}
		}
		if !matches(u, words) {
			continue
		}
		row := unitRow{UnitSummary: u, near: -1, Quiet: quiet(u, now)}
		for _, reading := range u.Readings {
			row.near = math.Max(row.near, nearness(reading))
		}
		found = append(found, row)
	}
	p.Hosts, p.Found = len(hosts), len(found)
	return found
}

// turnTo fills in the rows of the page with the number Page, or of the nearest one.
func (p *unitsPage) turnTo(found []unitRow) {
	p.Pages = max(1, (len(found)+unitsPerPage-1)/unitsPerPage)
	p.Page = min(max(p.Page, 1), p.Pages)
	p.First = (p.Page - 1) * unitsPerPage
	p.Rows = found[p.First:min(p.First+unitsPerPage, len(found))]
	for i := range p.Rows {
		p.Rows[i].fill()
	}
	if p.Page > 1 {
		p.Previous = p.url(p.Sort, p.Page-1)
	}
	if p.Page < p.Pages {
		p.Next = p.url(p.Sort, p.Page+1)
	}
}

// columns fills in the heads of the columns.
func (p *unitsPage) columns() {
	for _, c := range []struct{ key, text, title, class, direction string }{
		{"name", "Unit", "", "", "ascending"},
		{"host", "Host", "", "", "ascending"},
		{"near", "Readings", "sort by how near the nearest is to its threshold", "", "descending"},
		{"triggers", "Triggers", "openings, without baselines", "number", "descending"},
		{"last", "Last trigger", "", "", "descending"},
		{"refused", "Not opened", "a condition held, and the gate stayed shut", "", "descending"},
	} {
		column := unitsColumn{Text: c.text, Title: c.title, URL: p.url(c.key, 1), Class: c.class}
		if c.key == p.Sort {
			column.Sorted = c.direction
		}
		p.Columns = append(p.Columns, column)
	}
}

// quiet reports whether a unit is gone, or has sent nothing for some time.
func quiet(u store.UnitSummary, now time.Time) bool {
	gone := u.Newest.Why == "unit gone" && !slices.ContainsFunc(u.Readings, func(r store.Reading) bool {
		return r.At.After(u.Newest.Closed)
	})
	return gone || now.Sub(u.Last) > quietAfter
}

// url returns the URL of another order or page of what is searched for.
func (p unitsPage) url(sort string, number int) string {
	q := url.Values{}
	if p.Query != "" {
		q.Set("q", p.Query)
	}
	if sort != "triggers" {
		q.Set("sort", sort)
	}
	if number > 1 {
		q.Set("page", strconv.Itoa(number))
	}
	if len(q) == 0 {
		return "/"
	}
	return "/?" + q.Encode()
}

// unitOrders are the orders of the list, by the value of sort in the URL.
var unitOrders = map[string]func(a, b unitRow) int{
	"triggers": func(a, b unitRow) int {
		return cmp.Or(cmp.Compare(b.Openings, a.Openings), cmp.Compare(b.near, a.near))
	},
	"near": func(a, b unitRow) int { return cmp.Compare(b.near, a.near) },
	"name": func(a, b unitRow) int { return cmp.Compare(unitName(a.Unit), unitName(b.Unit)) },
	"host": func(a, b unitRow) int { return cmp.Compare(a.Host, b.Host) },
	"last": func(a, b unitRow) int { return b.Newest.Triggered.Compare(a.Newest.Triggered) },
	"refused": func(a, b unitRow) int {
		return cmp.Compare(sum(b.Refusals), sum(a.Refusals))
	},
}

func sum(m map[string]int) (total int) {
	for _, n := range m {
		total += n
	}
	return total
}

// matches reports whether each word is somewhere in a unit's names, its attributes, or
// its policies and their states.
func matches(u store.UnitSummary, words []string) bool {
	if len(words) == 0 {
		return true
	}
	texts := []string{u.Name, u.Host, unitName(u.Unit), unitPlace(u.Unit)}
	for _, v := range u.Resource {
		texts = append(texts, v)
	}
	for policy, state := range u.States {
		texts = append(texts, policy+" "+strings.ReplaceAll(state, "_", " "))
	}
	for _, reading := range u.Readings {
		texts = append(texts, reading.Monitor)
	}
	for i, t := range texts {
		texts[i] = strings.ToLower(t[:min(len(t), searchedText)])
	}
	for _, word := range words {
		if !slices.ContainsFunc(texts, func(t string) bool { return strings.Contains(t, word) }) {
			return false
		}
	}
	return true
}

// fill makes what is shown of a unit, which only those on the page need.
func (row *unitRow) fill() {
	row.Readings = readingCells(row.UnitSummary)
	if len(row.Readings) > readingsPerRow {
		row.More = len(row.Readings) - readingsPerRow
		row.Readings = row.Readings[:readingsPerRow]
	}
	for _, policy := range slices.Sorted(maps.Keys(row.UnitSummary.States)) {
		shown := slices.ContainsFunc(row.Readings, func(c readingCell) bool { return c.Policy == policy })
		if !shown && len(row.States) < statesPerRow {
			row.States = append(row.States, stateCell{policy, row.UnitSummary.States[policy]})
		}
	}
	if row.Quiet {
		forgetStates(row.Readings)
		row.States = nil
	}
	row.Dropped = refusalCells(row.Refusals)
	row.Refused = sum(row.Refusals)
}

// readingCells returns the readings of a unit, the nearest to its threshold first.
func readingCells(u store.UnitSummary) []readingCell {
	cells := make([]readingCell, 0, len(u.Readings))
	for _, r := range u.Readings {
		near := nearness(r)
		cells = append(cells, readingCell{
			Reading: r, State: u.States[r.Policy], Near: near, Over: r.Value > r.Threshold,
			Bar: math.Round(math.Min(math.Max(near, 0)*barThreshold, 100)),
		})
	}
	slices.SortStableFunc(cells, func(a, b readingCell) int { return cmp.Compare(b.Near, a.Near) })
	return cells
}

// forgetStates leaves out the states of policies: a unit that is gone is in none.
func forgetStates(cells []readingCell) {
	for i := range cells {
		cells[i].State = ""
	}
}

// refusalCells returns the reasons why a gate did not open, the most frequent first.
func refusalCells(refusals map[string]int) []refusalCell {
	cells := make([]refusalCell, 0, len(refusals))
	for _, why := range slices.Sorted(maps.Keys(refusals)) {
		if refusals[why] > 0 {
			cells = append(cells, refusalCell{why, refusals[why]})
		}
	}
	slices.SortStableFunc(cells, func(a, b refusalCell) int { return cmp.Compare(b.Count, a.Count) })
	return cells[:min(len(cells), refusalsPerRow)]
}
