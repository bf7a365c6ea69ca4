// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package web

import (
	"encoding/json"
	"math"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/hotprofile/hotprofile/extension/consoleextension/internal/flame"
	"github.com/hotprofile/hotprofile/extension/consoleextension/internal/store"
)

const (
	// openingsPerUnit and refusalsPerUnit are the maximum numbers of rows in the
	// tables on the page of a unit.
	openingsPerUnit, refusalsPerUnit = 200, 100
	// trendsPerUnit is the maximum number of charts of a unit. trendPoints is the
	// maximum number of points in a chart.
	trendsPerUnit, trendPoints = 24, 500
	// bandsPerUnit is the maximum number of openings that charts show.
	bandsPerUnit = 500
	// shortestRange is the shortest time span that a chart shows.
	shortestRange = 30 * time.Second
)

// timeRange is the time span that the charts show. In the URL, the span is given by range,
// such as range=6h, or by from and to, which take precedence. Without these parameters,
// the default of the page applies.
type timeRange struct {
	From, To time.Time
	Last     time.Duration // length of a range of the last hours; 0 if the URL contains from or to
	query    url.Values
}

// usualRange is the default range on the page of a unit. longestRange is the default range
// on the page of all openings.
const usualRange, longestRange = 6 * time.Hour, 48 * time.Hour

// URL returns the URL of the page for the last hours, with the filters of the page.
func (r timeRange) URL(hours int) string { return linkTo(r.query, "range", strconv.Itoa(hours)+"h") }

// IsLast reports whether the page shows the last hours.
func (r timeRange) IsLast(hours int) bool { return r.Last == time.Duration(hours)*time.Hour }

// rangeOf returns the range that a URL selects. usual is the default length of the
// range, and end is its default end.
func rangeOf(q url.Values, usual time.Duration, end time.Time) (timeRange, error) {
	if q.Get("from") != "" || q.Get("to") != "" {
		to, err := momentOf(q.Get("to"), end)
		from, err2 := momentOf(q.Get("from"), to.Add(-usual))
		if err != nil || err2 != nil || !to.After(from) {
			return timeRange{}, failure{http.StatusBadRequest, "from and to must be times such as 2026-01-02T15:04:05Z, from before to."}
		}
		return timeRange{From: from, To: to, query: q}, nil
	}
	last := usual
	if q.Has("range") {
		d, err := time.ParseDuration(q.Get("range"))
		if err != nil || d < time.Minute || d > 10_000*time.Hour {
			return timeRange{}, failure{http.StatusBadRequest, "range must be a time span such as 6h, of at least 1m."}
		}
		last = d
	}
	return timeRange{From: end.Add(-last), To: end, Last: last, query: q}, nil
}

// momentOf parses a time. If the text is empty, momentOf returns the argument otherwise. A
// time without a zone, as browsers send it from input fields, is interpreted as UTC.
func momentOf(text string, otherwise time.Time) (at time.Time, err error) {
	if text == "" {
		return otherwise, nil
	}
	for _, layout := range [...]string{time.RFC3339, fieldTime, "2006-01-02T15:04"} {
		if at, err = time.Parse(layout, text); err == nil {
			break
		}
	}
	return at, err
}

// fieldTime is the layout of a time in a browser's field.
const fieldTime = "2006-01-02T15:04:05"

// unitPage contains the data for unit.html.
type unitPage struct {
	unitRow
	Range        timeRange
	Openings     []openingRow
	MoreOpenings int
	Refusals     []store.Refusal
	MoreRefusals int
	Profile      bool // the page can open the gate
	Kept         time.Duration
	Peers        *peersView // nil if no peer is known
}

// openingRow is an opening in the timeline.
type openingRow struct {
	store.Opening
	Open   bool // no closing is known, and the gate may still be open
	Lasted time.Duration
	Near   string // URL of the page with charts that show the opening
	// With is an opening of another policy that held the gate open at the same time. The
	// profiles belong to that opening.
	With    *store.Opening
	Hottest hottest // set on the page of all openings
}

// unitIn returns the unit and the time range of a request. The default range and the
// ranges of the last hours usually end now. If the unit is gone or has sent no data
// for a while, these ranges end shortly after the unit was last seen.
func (s *Server) unitIn(r *http.Request) (u unitRow, span timeRange, err error) {
	if u.UnitSummary, err = s.Store.Unit(store.UnitID(r.PathValue("id"))); err != nil {
		return u, span, err
	}
	end := s.Now()
	if u.Quiet = quiet(u.UnitSummary, end); u.Quiet {
		end = u.Last.Add(time.Minute)
	}
	span, err = rangeOf(r.URL.Query(), usualRange, end)
	return u, span, err
}

// unit serves the page of a unit.
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
	refusals, err := s.Store.Refusals(r.Context(), id, refusalsPerUnit)
	if err != nil {
		return err
	}
	u.fill(math.MaxInt, math.MaxInt)
	p := unitPage{
		unitRow: u, Range: span, Refusals: refusals, MoreRefusals: max(0, sum(u.Refusals)-len(refusals)), Kept: s.Store.Usage().MaxAge,
		Profile: !u.Quiet && s.Token != "" && s.CanProfile != nil && s.CanProfile(u.Unit),
	}
	openings, p.MoreOpenings = first(openingsPerUnit, openings)
	for i, o := range openings {
		p.Openings = append(p.Openings, newOpeningRow(o, now))
		p.Openings[i].share(openings, now)
	}
	if p.Peers, err = s.unitPeers(r, u.Unit, span); err != nil {
		return err
	}
	return s.render(w, page{Template: "unit", Title: unitName(u.Unit), Section: "/units", Refresh: true, Data: p})
}

// clip shortens a range that ends now, so that the range starts at the first reading. The
// range never becomes shorter than shortestRange. If the gap before the first reading is
// less than 1 % of the range, clip does not change the range.
func (t *timeRange) clip(trends []store.Trend) {
	first := t.To
	for _, trend := range trends {
		i := slices.IndexFunc(trend.Points, func(p store.Point) bool { return !math.IsNaN(p.Mean) })
		if i >= 0 && trend.Points[i].At.Before(first) {
			first = trend.Points[i].At
		}
	}
	if t.Last == 0 || first.Equal(t.To) || first.Sub(t.From) < t.Last/100 {
		return
	}
	t.From = first
	if shortest := t.To.Add(-shortestRange); shortest.Before(first) {
		t.From = shortest
	}
}

func newOpeningRow(o store.Opening, now time.Time) openingRow {
	row := openingRow{Opening: o, Open: o.Closed.IsZero() && now.Before(o.Until.Add(time.Minute))}
	row.Lasted = endOf(o, now).Sub(o.Triggered)
	from, to := o.Triggered.Add(-10*time.Minute), endOf(o, now).Add(10*time.Minute)
	row.Near = "?" + url.Values{"from": {from.UTC().Format(time.RFC3339)}, "to": {to.UTC().Format(time.RFC3339)}}.Encode() + "#trends-title"
	return row
}

// share sets With if the opening has no profiles. If several policies hold a gate open,
// the profiles belong to the opening that began first.
func (row *openingRow) share(all []store.Opening, now time.Time) {
	if len(row.Profiles) > 0 || row.NothingExported != "" {
		return
	}
	for i, other := range all {
		if other.Unit.ID == row.Unit.ID && len(other.Profiles) > 0 && !other.Triggered.After(row.Triggered) && !endOf(other, now).Before(row.Triggered) {
			row.With = &all[i]
			return
		}
	}
}

// endOf returns the time when a gate closed. If the closing event is missing, it returns
// the time when the gate was due to close. The result is at most now, but never earlier
// than the time when the gate opened.
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

// trends responds with the data that trends.js draws, as JSON. Times are in seconds since
// 1970. left_out is the number of trends that are not in the response.
func (s *Server) trends(w http.ResponseWriter, r *http.Request) error {
	u, span, err := s.unitIn(r)
	if err != nil {
		return err
	}
	trends, err := s.Store.Trends(r.Context(), u.ID, span.From, span.To, trendPoints)
	if err != nil {
		return err
	}
	span.clip(trends)
	now := s.Now()
	openings, err := s.Store.Openings(r.Context(), store.OpeningQuery{Unit: u.ID, All: true, To: span.To, Limit: bandsPerUnit})
	if err != nil {
		return err
	}
	shown, bands := []map[string]any{}, []map[string]any{}
	for _, t := range trends[:min(len(trends), trendsPerUnit)] {
		shown = append(shown, map[string]any{
			"policy": cutText(60, t.Policy), "monitor": cutText(60, t.Monitor), "window": cutText(60, t.Window), "unit": unitOf(t.Monitor),
			"at":        flame.Column(t.Points, func(p store.Point) float64 { return seconds(p.At) }),
			"min":       flame.Column(t.Points, func(p store.Point) jsonNumber { return jsonNumber(p.Min) }),
			"mean":      flame.Column(t.Points, func(p store.Point) jsonNumber { return jsonNumber(p.Mean) }),
			"max":       flame.Column(t.Points, func(p store.Point) jsonNumber { return jsonNumber(p.Max) }),
			"threshold": flame.Column(t.Points, func(p store.Point) jsonNumber { return jsonNumber(p.Threshold) }),
		})
	}
	for _, o := range openings {
		if end := endOf(o, now); !end.Before(span.From) {
			bands = append(bands, map[string]any{
				"id": o.ID, "policy": cutText(60, o.Policy), "kind": cutText(20, o.Kind), "reason": reason(o), "from": seconds(o.Triggered), "to": seconds(end),
			})
		}
	}
	w.Header().Set("Content-Type", "application/json")
	return json.NewEncoder(w).Encode(map[string]any{
		"from": seconds(span.From), "to": seconds(span.To), "trends": shown, "left_out": len(trends) - len(shown), "openings": bands,
	})
}

// seconds returns a time in seconds since 1970.
func seconds(t time.Time) float64 { return float64(t.UnixMilli()) / 1000 }
