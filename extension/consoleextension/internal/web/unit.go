// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package web

import (
	"encoding/json"
	"maps"
	"math"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/hotprofile/hotprofile/extension/consoleextension/internal/store"
)

const (
	// openingsPerUnit and refusalsPerUnit bound the tables of the page of a unit.
	openingsPerUnit, refusalsPerUnit = 200, 100
	// trendsPerUnit bounds its charts, and trendPoints each chart.
	trendsPerUnit, trendPoints = 24, 500
	// attributesPerUnit bounds the table of its attributes.
	attributesPerUnit = 64
	// bandsPerUnit bounds the openings that charts show.
	bandsPerUnit = 500
	// shortestRange is the least time that a chart shows.
	shortestRange = 2 * time.Minute
)

// timeRange is the time that charts show. It is in the URL: range=6h for the last hours
// of the unit, or from and to in RFC 3339.
type timeRange struct {
	From, To time.Time
	Last     time.Duration // 0: from From to To
}

// usualRange is the range of a URL without one.
const usualRange = 6 * time.Hour

// rangeHours are the choices of the last hours.
var rangeHours = [...]int{1, 6, 24, 48}

// rangeOf returns the range that a URL asks for. The last hours of a unit that is gone
// end with it.
func rangeOf(q url.Values, u store.UnitSummary, now time.Time) (timeRange, error) {
	if q.Has("from") || q.Has("to") {
		from, err := time.Parse(time.RFC3339, q.Get("from"))
		if err != nil {
			return timeRange{}, failure{http.StatusBadRequest, "from and to must be times such as 2026-01-02T15:04:05Z."}
		}
		to, err := time.Parse(time.RFC3339, q.Get("to"))
		if err != nil || !to.After(from) {
			return timeRange{}, failure{http.StatusBadRequest, "from and to must be times such as 2026-01-02T15:04:05Z, from before to."}
		}
		return timeRange{From: from, To: to}, nil
	}
	last := usualRange
	if q.Has("range") {
		d, err := time.ParseDuration(q.Get("range"))
		if err != nil || d < time.Minute || d > 10_000*time.Hour {
			return timeRange{}, failure{http.StatusBadRequest, "range must be a time span such as 6h, of at least 1m."}
		}
		last = d
	}
	if quiet(u, now) {
		now = u.Last.Add(time.Minute)
	}
	return timeRange{From: now.Add(-last), To: now, Last: last}, nil
}

// unitPage has the data of unit.html.
type unitPage struct {
	store.UnitSummary
	Range        timeRange
	Ranges       []rangeLink
	Readings     []readingCell
	States       []stateCell // of policies without a reading
	Openings     []openingRow
	MoreOpenings bool
	Bands        []band
	Refusals     []store.Refusal
	MoreRefusals int
	Profile      bool // the gate can be opened from here
	Kept         time.Duration
	Quiet        bool
	Announcement string
	TrendsURL    string
	Peers        *peersView // nil: none are known
	Attributes   []attribute
	// AllAttributes counts those that are not shown too.
	AllAttributes, MoreAttributes int
}

type rangeLink struct {
	Text, URL string
	Current   bool
}

type attribute struct{ Key, Value string }

// openingRow is an opening in the timeline.
type openingRow struct {
	store.Opening
	Open   bool // it is not known to have closed, and may still be open
	Lasted time.Duration
	Near   string // the URL that shows it in the charts
	Types  []string
	// With is the opening of another policy at the same time that has the profiles.
	With *store.Opening
}

// band is an opening in the strip above the charts, in thousandths of the range.
type band struct {
	store.Opening
	X, Width float64
}

// unitIn returns the unit that a request names, and the range that it asks for.
func (s *Server) unitIn(r *http.Request) (u store.UnitSummary, span timeRange, err error) {
	if u, err = s.Store.Unit(r.Context(), store.UnitID(r.PathValue("id"))); err == nil {
		span, err = rangeOf(r.URL.Query(), u, s.Now())
	}
	return u, span, err
}

// unit answers with the page of a unit.
func (s *Server) unit(w http.ResponseWriter, r *http.Request) error {
	u, span, err := s.unitIn(r)
	if err != nil {
		return err
	}
	id, now := u.ID, s.Now()
	openings, err := s.Store.Openings(r.Context(), store.OpeningQuery{Unit: id, All: true, Limit: openingsPerUnit + 1})
	if err != nil {
		return err
	}
	span.clip(u, openings)
	refusals, err := s.Store.Refusals(r.Context(), store.RefusalQuery{Unit: id, Limit: refusalsPerUnit})
	if err != nil {
		return err
	}

	p := unitPage{
		UnitSummary: u, Range: span, Readings: readingCells(u), Refusals: refusals,
		MoreRefusals: max(0, sum(u.Refusals)-len(refusals)), Kept: s.Store.Usage().MaxAge, Quiet: quiet(u, now),
		Profile:   !quiet(u, now) && s.Token != nil && s.CanProfile != nil && s.CanProfile(u.Unit),
		TrendsURL: "/units/" + url.PathEscape(string(id)) + "/trends.json",
	}
	if p.Quiet {
		forgetStates(p.Readings)
	}
	if len(openings) > openingsPerUnit {
		openings, p.MoreOpenings = openings[:openingsPerUnit], true
	}
	p.timeline(openings, now)
	for _, policy := range slices.Sorted(maps.Keys(u.States)) {
		if !p.Quiet && !slices.ContainsFunc(u.Readings, func(r store.Reading) bool { return r.Policy == policy }) {
			p.States = append(p.States, stateCell{policy, u.States[policy]})
		}
	}
	for _, hours := range rangeHours {
		n := strconv.Itoa(hours)
		p.Ranges = append(p.Ranges, rangeLink{n + " h", "?range=" + n + "h", span.Last == time.Duration(hours)*time.Hour})
	}
	if p.Peers, err = s.unitPeers(r, u.Unit, span); err != nil {
		return err
	}
	p.attributes(u.Resource)
	p.Announcement = plural(len(openings), "opening", "openings")
	return s.render(w, r, page{
		Template: "unit", Title: unitName(u.Unit), Section: "/", Refresh: true, Data: p,
		Scripts: []string{"third_party/uplot/uPlot.iife.min.js", "trends.js"},
		Styles:  []string{"third_party/uplot/uPlot.min.css", "peers.css"},
	})
}

// timeline fills in the openings, and the bands of those within the range.
func (p *unitPage) timeline(openings []store.Opening, now time.Time) {
	for i, o := range openings {
		p.Openings = append(p.Openings, newOpeningRow(o, now))
		if o.Samples > 0 && len(o.Profiles) == 0 {
			p.Openings[i].With = profiledWith(o, openings, now)
		}
		if b, ok := bandOf(o, p.Range, now); ok {
			p.Bands = append(p.Bands, b)
		}
	}
}

// attributes fills in the attributes of the resource, within a bound.
func (p *unitPage) attributes(resource map[string]string) {
	p.AllAttributes = len(resource)
	for _, key := range slices.Sorted(maps.Keys(resource)) {
		if len(p.Attributes) == attributesPerUnit {
			p.MoreAttributes = p.AllAttributes - attributesPerUnit
			break
		}
		p.Attributes = append(p.Attributes, attribute{key, resource[key]})
	}
}

// clip makes the range begin where what is known of the unit does, if that is later. What
// waited in a queue of a collector is older than the unit is here.
func (t *timeRange) clip(u store.UnitSummary, openings []store.Opening) {
	first := u.First
	for _, r := range u.Readings {
		if r.At.Before(first) {
			first = r.At
		}
	}
	for _, o := range openings {
		if before := o.Triggered.Add(-time.Minute); before.Before(first) {
			first = before
		}
	}
	if t.Last == 0 || first.Before(t.From) {
		return
	}
	if t.From = first; t.To.Sub(t.From) < shortestRange {
		t.From = t.To.Add(-shortestRange)
	}
}

func newOpeningRow(o store.Opening, now time.Time) openingRow {
	row := openingRow{Opening: o, Open: o.Closed.IsZero() && now.Before(o.Until.Add(time.Minute))}
	row.Lasted = endOf(o, now).Sub(o.Triggered)
	from, to := o.Triggered.Add(-10*time.Minute), endOf(o, now).Add(10*time.Minute)
	row.Near = "?" + url.Values{"from": {from.UTC().Format(time.RFC3339)}, "to": {to.UTC().Format(time.RFC3339)}}.Encode() + "#trends-title"
	for _, p := range o.Profiles {
		if n := len(row.Types); n == 0 || row.Types[n-1] != p.Type {
			row.Types = append(row.Types, p.Type)
		}
	}
	return row
}

// profiledWith returns the opening that has the profiles of o, if there is one: while
// several policies hold a gate open, profiles have the id of the one that fired first.
func profiledWith(o store.Opening, all []store.Opening, now time.Time) *store.Opening {
	for i, other := range all {
		if len(other.Profiles) > 0 && !other.Triggered.After(o.Triggered) && !endOf(other, now).Before(o.Triggered) {
			return &all[i]
		}
	}
	return nil
}

// endOf returns when an opening ended: when it was due to, if the event of its end never
// came, and now if that is later.
func endOf(o store.Opening, now time.Time) time.Time {
	end := o.Closed
	if end.IsZero() {
		end = o.Until
	}
	if end.After(now) {
		end = now
	}
	if end.Before(o.Triggered) {
		end = o.Triggered
	}
	return end
}

// bandOf returns where an opening is in a range, if it is.
func bandOf(o store.Opening, span timeRange, now time.Time) (band, bool) {
	end := endOf(o, now)
	if end.Before(span.From) || o.Triggered.After(span.To) {
		return band{}, false
	}
	scale := 1000 / span.To.Sub(span.From).Seconds()
	from := math.Max(0, o.Triggered.Sub(span.From).Seconds()*scale)
	to := math.Min(1000, end.Sub(span.From).Seconds()*scale)
	round := func(v float64) float64 { return math.Round(v*10) / 10 }
	return band{o, round(math.Min(from, 997)), round(math.Max(to-from, 3))}, true
}

// trendsAnswer has the data that trends.js draws. Times are in seconds since 1970.
type trendsAnswer struct {
	From     float64       `json:"from"`
	To       float64       `json:"to"`
	Trends   []trendAnswer `json:"trends"`
	Left     int           `json:"left_out"` // trends beyond the bound
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

// trends answers with the trends of a unit as JSON.
func (s *Server) trends(w http.ResponseWriter, r *http.Request) error {
	u, span, err := s.unitIn(r)
	if err != nil {
		return err
	}
	id, now := u.ID, s.Now()
	openings, err := s.Store.Openings(r.Context(), store.OpeningQuery{Unit: id, All: true, To: span.To, Limit: bandsPerUnit})
	if err != nil {
		return err
	}
	span.clip(u, openings)
	trends, err := s.Store.Trends(r.Context(), id, span.From, span.To, trendPoints)
	if err != nil {
		return err
	}
	a := trendsAnswer{From: seconds(span.From), To: seconds(span.To), Trends: []trendAnswer{}, Openings: []bandAnswer{}}
	if len(trends) > trendsPerUnit {
		a.Left, trends = len(trends)-trendsPerUnit, trends[:trendsPerUnit]
	}
	for _, t := range trends {
		n := len(t.Points)
		answer := trendAnswer{
			Policy: cutText(60, t.Policy), Monitor: cutText(60, t.Monitor), Window: cutText(60, t.Window), Unit: unitOf(t.Monitor),
			At: make([]float64, 0, n), Min: make([]jsonNumber, 0, n), Mean: make([]jsonNumber, 0, n), Max: make([]jsonNumber, 0, n), Threshold: make([]jsonNumber, 0, n),
		}
		for _, p := range t.Points {
			answer.At = append(answer.At, seconds(p.At))
			answer.Min, answer.Mean = append(answer.Min, jsonNumber(p.Min)), append(answer.Mean, jsonNumber(p.Mean))
			answer.Max, answer.Threshold = append(answer.Max, jsonNumber(p.Max)), append(answer.Threshold, jsonNumber(p.Threshold))
		}
		a.Trends = append(a.Trends, answer)
	}
	for _, o := range openings {
		end := endOf(o, now)
		if end.Before(span.From) {
			continue
		}
		a.Openings = append(a.Openings, bandAnswer{o.ID, cutText(60, o.Policy), cutText(20, o.Kind), reason(o), seconds(o.Triggered), seconds(end)})
	}
	w.Header().Set("Content-Type", "application/json")
	return json.NewEncoder(w).Encode(a)
}

// seconds returns a time in seconds since 1970.
func seconds(t time.Time) float64 { return float64(t.UnixMilli()) / 1000 }
