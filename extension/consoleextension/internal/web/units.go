// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package web

import (
	"cmp"
	"math"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hotprofile/hotprofile/extension/consoleextension/internal/store"
	"github.com/hotprofile/hotprofile/internal/otlpprofiles/attr"
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
	// idleBelow is the part of its thresholds below which a unit without a trigger is idle.
	idleBelow = 0.1
)

// unitsPage has the data of units.html.
type unitsPage struct {
	Query, Sort string
	All         bool // nothing is left out
	Columns     []unitsColumn
	Rows        []unitRow
	// Known, Hosts, Open, Openings and Refusals are of all units, and Found is the number
	// of rows.
	Known, Found, Hosts, Open, Openings, Refusals int
	Folded                                        []string // how many units are left out, by why
	Kept                                          time.Duration
	Announcement                                  string
	pager
}

// pager has the links of a list that is shown in parts.
type pager struct {
	Page, Pages    int
	Previous, Next string
}

// turn returns the rows of the page with a number, or of the nearest one.
func turn[T any](all []T, perPage, number int, url func(int) string) (rows []T, p pager) {
	p.Pages = max(1, (len(all)+perPage-1)/perPage)
	p.Page = min(max(number, 1), p.Pages)
	if p.Page > 1 {
		p.Previous = url(p.Page - 1)
	}
	if p.Page < p.Pages {
		p.Next = url(p.Page + 1)
	}
	first := (p.Page - 1) * perPage
	return all[first:min(first+perPage, len(all))], p
}

// unitsColumn is a column that the list can be sorted by.
type unitsColumn struct {
	Text, Title, URL, Class string
	Sorted                  string // ascending, descending or empty
}

// unitRow is a unit in the list, or the hottest of several with the same name. Openings,
// Newest and Refusals are of all of them.
type unitRow struct {
	store.UnitSummary
	Members  int
	Hosts    map[string]bool // nil if it is one unit
	near     float64         // infinite while a gate is open
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
	p := unitsPage{Query: cutText(200, strings.TrimSpace(q.Get("q"))), Sort: q.Get("sort"), All: q.Has("all"), Known: len(all), Kept: s.Store.Usage().MaxAge}
	order, ok := unitOrders[p.Sort]
	if !ok {
		p.Sort, order = "near", unitOrders["near"]
	}
	found := p.find(all, s.Now())
	if p.Query == "" {
		found = grouped(p.fold(found))
	}
	p.Found = len(found)
	slices.SortStableFunc(found, func(a, b unitRow) int {
		return cmp.Or(order(a, b), cmp.Compare(unitName(a.Unit), unitName(b.Unit)), cmp.Compare(a.ID, b.ID))
	})
	number, _ := strconv.Atoi(q.Get("page"))
	p.Rows, p.pager = turn(found, unitsPerPage, number, func(number int) string { return p.url(p.Sort, number) })
	for i := range p.Rows {
		p.Rows[i].fill()
	}
	p.columns()
	p.Announcement = plural(p.Open, "gate is open", "gates are open") + ", " + plural(p.Openings, "trigger", "triggers")
	return s.render(w, r, page{Template: "units", Title: "Units", Section: "/units", Refresh: true, Data: p})
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
		row := unitRow{UnitSummary: u, Members: 1, near: -1, Quiet: quiet(u, now)}
		if !row.Quiet {
			row.near = howHot(u)
		}
		if math.IsInf(row.near, 1) {
			p.Open++
		}
		if matches(u, words) {
			found = append(found, row)
		}
	}
	p.Hosts = len(hosts)
	return found
}

// howHot returns how near the nearest reading of a unit is to its threshold: infinite while
// a gate is open, -1 if that is not known.
func howHot(u store.UnitSummary) float64 {
	near := -1.0
	for _, reading := range u.Readings {
		near = math.Max(near, math.Min(nearness(reading), math.MaxFloat64))
	}
	for _, state := range u.States {
		if state == "profiling" {
			near = math.Inf(1)
		}
	}
	return near
}

// fold leaves out and counts what is not hot and only a search or All shows: units that
// are gone, processes without a service or container, and units that do next to nothing.
func (p *unitsPage) fold(found []unitRow) []unitRow {
	if p.All {
		return found
	}
	var ended, processes, idle int
	found = slices.DeleteFunc(found, func(row unitRow) bool {
		service := row.Resource[attr.ServiceName]
		switch {
		case row.near >= 1:
			return false
		case row.Quiet:
			ended++
		case processOf(row.Unit) != "" && (service == "" || strings.HasPrefix(service, "unknown_service")):
			processes++
		case row.near < idleBelow && row.Openings == 0:
			idle++
		default:
			return false
		}
		return true
	})
	for text, n := range map[string]int{
		"ended or silent": ended,
		"processes and kernel threads without a container":              processes,
		"idle, below a tenth of their thresholds and without a trigger": idle,
	} {
		if n > 0 {
			p.Folded = append(p.Folded, count(n)+" "+text)
		}
	}
	slices.Sort(p.Folded)
	return found
}

// grouped returns a row for all units of a service or container.
func grouped(found []unitRow) (rows []unitRow) {
	at := map[[2]string]int{}
	for _, u := range found {
		key := [2]string{unitName(u.Unit), u.Resource[attr.NamespaceName]}
		i, ok := at[key]
		if !ok {
			i = len(rows)
			at[key], rows = i, append(rows, u)
			continue
		}
		hotter, other := rows[i], u
		if u.near > hotter.near {
			hotter, other = u, rows[i]
		}
		hotter.Members = rows[i].Members + 1
		if hotter.Hosts = rows[i].Hosts; hotter.Hosts == nil {
			hotter.Hosts = map[string]bool{rows[i].Host: true}
		}
		hotter.Hosts[u.Host] = true
		hotter.Openings += other.Openings
		if other.Newest.Triggered.After(hotter.Newest.Triggered) {
			hotter.Newest = other.Newest
		}
		refusals := map[string]int{}
		for _, of := range []unitRow{hotter, other} {
			for why, n := range of.Refusals {
				refusals[why] += n
			}
		}
		hotter.Refusals = refusals
		rows[i] = hotter
	}
	return rows
}

// columns fills in the heads of the columns.
func (p *unitsPage) columns() {
	for _, c := range []struct{ key, text, title, class, direction string }{
		{"name", "Unit", "", "", "ascending"},
		{"host", "Host", "", "", "ascending"},
		{"near", "Readings", "sort by open gates, then by how near the nearest is to its threshold", "", "descending"},
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
	if p.All {
		q.Set("all", "1")
	}
	if sort != "near" {
		q.Set("sort", sort)
	}
	if number > 1 {
		q.Set("page", strconv.Itoa(number))
	}
	if len(q) == 0 {
		return "/units"
	}
	return "/units?" + q.Encode()
}

// unitOrders are the orders of the list, by the value of sort in the URL.
var unitOrders = map[string]func(a, b unitRow) int{
	"triggers": func(a, b unitRow) int {
		return cmp.Or(cmp.Compare(b.Openings, a.Openings), cmp.Compare(b.near, a.near))
	},
	"near": func(a, b unitRow) int {
		return cmp.Or(cmp.Compare(b.near, a.near), cmp.Compare(b.Openings, a.Openings))
	},
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
	for _, policy := range sortedKeys(row.UnitSummary.States) {
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
	for _, why := range sortedKeys(refusals) {
		if refusals[why] > 0 {
			cells = append(cells, refusalCell{why, refusals[why]})
		}
	}
	slices.SortStableFunc(cells, func(a, b refusalCell) int { return cmp.Compare(b.Count, a.Count) })
	return cells[:min(len(cells), refusalsPerRow)]
}
