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
	"github.com/hotprofile/hotprofile/internal/otlpprofiles/attr"
)

const (
	// unitsPerPage is the maximum number of units on a page.
	unitsPerPage = 100
	// readingsPerRow and statesPerRow are the maximum numbers of readings and states in a
	// row.
	readingsPerRow, statesPerRow = 4, 6
	// searchedText is the maximum number of bytes of a string that are searched.
	searchedText = 1024
	// quietAfter is the time without data after which a unit is shown as quiet. Readings
	// arrive at the receiver's collection_interval, which is 10 seconds by default.
	quietAfter = 2 * time.Minute
	// idleBelow is the fraction of the threshold below which a unit is idle. A unit
	// with triggers is never idle.
	idleBelow = 0.1
)

// unitsPage contains the data for units.html.
type unitsPage struct {
	Query, Sort string
	All         bool // no unit is left out
	Rows        []unitRow
	// Known, Hosts, Open, Openings and Refusals are counts over all units. Found is the
	// number of rows.
	Known, Found, Hosts, Open, Openings, Refusals int
	Folded                                        map[string]int // number of units that are left out, by reason
	Kept                                          time.Duration
	pager
}

// pager contains the links of a list that is split into pages.
type pager struct {
	Page, Pages    int
	Previous, Next string
}

// turn returns the rows of the page with the given number. If no such page exists, it
// returns the rows of the nearest page.
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

// unitRow is the row of a unit in the list. If several units have the same name, the row
// shows the hottest unit, and Openings, Newest and Refusals cover all units with this
// name.
type unitRow struct {
	store.UnitSummary
	Members  int
	Ended    int     // number of quiet members
	near     float64 // infinite while a gate is open, less than -1 if the unit is quiet
	Readings []readingCell
	More     int           // number of readings that are not shown
	States   []readingCell // states of policies whose readings are not shown
	Quiet    bool
}

// readingCell is a reading with a bar. The threshold is at two thirds of the bar's length.
type readingCell struct {
	store.Reading
	State string
	Near  float64
	Over  bool
	Bar   float64 // length in percent
}

// barThreshold is the position of the threshold in a bar, in percent.
const barThreshold = 66

// units serves the page that lists all units.
func (s *Server) units(w http.ResponseWriter, r *http.Request) error {
	all := s.Store.Units()
	q := r.URL.Query()
	p := unitsPage{Query: cutText(200, strings.TrimSpace(q.Get("q"))), Sort: q.Get("sort"), All: q.Has("all"), Known: len(all), Kept: s.Store.Usage().MaxAge}
	order, ok := unitOrders[p.Sort]
	if !ok {
		p.Sort, order = "near", unitOrders["near"]
	}
	found := p.find(all, s.Now())
	if p.Query == "" {
		found = p.fold(grouped(found))
	}
	p.Found = len(found)
	slices.SortStableFunc(found, func(a, b unitRow) int {
		return cmp.Or(order(a, b), cmp.Compare(unitName(a.Unit), unitName(b.Unit)), cmp.Compare(a.ID, b.ID))
	})
	number, _ := strconv.Atoi(q.Get("page"))
	p.Rows, p.pager = turn(found, unitsPerPage, number, func(number int) string { return p.URL(p.Sort, number) })
	for i := range p.Rows {
		p.Rows[i].fill(readingsPerRow, statesPerRow)
	}
	return s.render(w, page{Template: "units", Title: "Units", Section: "/units", Refresh: true, Data: p})
}

// find returns the units that match the query, and computes the counts over all units.
func (p *unitsPage) find(all []store.UnitSummary, now time.Time) []unitRow {
	words := strings.Fields(strings.ToLower(p.Query))
	hosts := map[string]bool{}
	found := make([]unitRow, 0, len(all))
	for _, u := range all {
		hosts[u.Host] = true
		p.Openings += u.Openings
		p.Refusals += sum(u.Refusals)
		row := unitRow{UnitSummary: u, Members: 1, Quiet: quiet(u, now), near: howHot(u)}
		if row.Quiet {
			row.near, row.Ended = -2, 1
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

// howHot returns the largest ratio of a reading to its threshold. While a gate is open,
// it returns infinity. If no ratio is known, it returns -1.
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

// fold removes units of little interest, and counts the removed units by reason. These are
// units that are gone or silent, processes without a service or container, and idle units.
// fold keeps hot units, and keeps all units if the user requests all. It is not called for
// a search.
func (p *unitsPage) fold(found []unitRow) []unitRow {
	if p.All {
		return found
	}
	p.Folded = map[string]int{}
	return slices.DeleteFunc(found, func(row unitRow) bool {
		service, why := row.Resource[attr.ServiceName], ""
		switch {
		case row.near >= 1:
			return false
		case row.Quiet:
		case processOf(row.Unit) != "" && isUnnamed(service):
			why = "processes and kernel threads without a container"
		case row.near < idleBelow && row.Openings == 0:
			why = "idle, below a tenth of their thresholds and without a trigger"
		default:
			return false
		}
		p.Folded["ended or silent"] += row.Ended
		p.Folded[why] += row.Members - row.Ended
		return true
	})
}

// grouped returns one row per service or container. Each row shows its hottest unit.
func grouped(found []unitRow) (rows []unitRow) {
	slices.SortStableFunc(found, unitOrders["near"])
	at := map[[2]string]int{}
	for _, u := range found {
		key := [2]string{unitName(u.Unit), u.Resource[attr.NamespaceName]}
		i, ok := at[key]
		if !ok {
			i = len(rows)
			at[key], rows = i, append(rows, u)
			continue
		}
		row := &rows[i]
		row.Members++
		row.Ended += u.Ended
		row.Openings += u.Openings
		if u.Newest.Triggered.After(row.Newest.Triggered) {
			row.Newest = u.Newest
		}
		for why, n := range u.Refusals {
			row.Refusals[why] += n
		}
	}
	return rows
}

// quiet reports whether a unit is gone, or has sent no data for some time.
func quiet(u store.UnitSummary, now time.Time) bool {
	gone := u.Newest.Why == "unit gone" && !slices.ContainsFunc(u.Readings, func(r store.Reading) bool {
		return r.At.After(u.Newest.Closed)
	})
	return gone || now.Sub(u.Last) > quietAfter
}

// URL returns the URL of the same search with another sort order or page.
func (p unitsPage) URL(sort string, number int) string {
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

// unitOrders contains the orders of the list, by the value of sort in the URL.
var unitOrders = map[string]func(a, b unitRow) int{
	"triggers": func(a, b unitRow) int {
		return cmp.Or(cmp.Compare(b.Openings, a.Openings), cmp.Compare(b.near, a.near))
	},
	"near": func(a, b unitRow) int {
		return cmp.Or(cmp.Compare(b.near, a.near), cmp.Compare(b.Openings, a.Openings))
	},
	"name":    func(a, b unitRow) int { return cmp.Compare(unitName(a.Unit), unitName(b.Unit)) },
	"host":    func(a, b unitRow) int { return cmp.Compare(a.Host, b.Host) },
	"last":    func(a, b unitRow) int { return b.Newest.Triggered.Compare(a.Newest.Triggered) },
	"refused": func(a, b unitRow) int { return cmp.Compare(sum(b.Refusals), sum(a.Refusals)) },
}

func sum(m map[string]int) (total int) {
	for _, n := range m {
		total += n
	}
	return total
}

// matches reports whether each word occurs in a unit's names, attributes,
// policies, states or monitors.
func matches(u store.UnitSummary, words []string) bool {
	if len(words) == 0 {
		return true
	}
	var all strings.Builder
	add := func(text string) { all.WriteString("\n" + strings.ToLower(text[:min(len(text), searchedText)])) }
	for _, text := range []string{u.Name, u.Host, unitName(u.Unit), unitPlace(u.Unit)} {
		add(text)
	}
	for _, v := range u.Resource {
		add(v)
	}
	for policy, state := range u.States {
		add(policy + " " + strings.ReplaceAll(state, "_", " "))
	}
	for _, reading := range u.Readings {
		add(reading.Monitor)
	}
	return !slices.ContainsFunc(words, func(word string) bool { return !strings.Contains(all.String(), word) })
}

// fill computes the cells of a row, with at most the given numbers of readings and of
// states. It is called only for rows that the page shows.
func (row *unitRow) fill(readings, states int) {
	row.Readings, row.More = first(readings, readingCells(row.UnitSummary, row.Quiet))
	row.States, _ = first(states, otherStates(row.UnitSummary, row.Quiet, row.Readings))
}

// first returns the first n items of a list, and the number of the others.
func first[T any](n int, all []T) (shown []T, more int) {
	n = min(n, len(all))
	return all[:n], len(all) - n
}

// readingCells returns the readings of a unit, and starts with the reading that is nearest
// to its threshold. The readings of a quiet unit have no states.
func readingCells(u store.UnitSummary, quiet bool) []readingCell {
	cells := make([]readingCell, 0, len(u.Readings))
	for _, r := range u.Readings {
		near := nearness(r)
		cell := readingCell{
			Reading: r, Near: near, Over: r.Value > r.Threshold,
			Bar: math.Round(math.Min(math.Max(near, 0)*barThreshold, 100)),
		}
		if !quiet {
			cell.State = u.States[r.Policy]
		}
		cells = append(cells, cell)
	}
	slices.SortStableFunc(cells, func(a, b readingCell) int { return cmp.Compare(b.Near, a.Near) })
	return cells
}

// otherStates returns the states of policies that have no reading in shown.
func otherStates(u store.UnitSummary, quiet bool, shown []readingCell) (others []readingCell) {
	for _, policy := range slices.Sorted(maps.Keys(u.States)) {
		if !quiet && !slices.ContainsFunc(shown, func(c readingCell) bool { return c.Policy == policy }) {
			others = append(others, readingCell{Reading: store.Reading{Condition: store.Condition{Policy: policy}}, State: u.States[policy]})
		}
	}
	return others
}
