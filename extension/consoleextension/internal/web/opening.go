// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package web

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"html/template"
	"math"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hotprofile/hotprofile/extension/consoleextension/internal/flame"
	"github.com/hotprofile/hotprofile/extension/consoleextension/internal/store"
	"github.com/hotprofile/hotprofile/internal/otlpprofiles/attr"
	"github.com/hotprofile/hotprofile/internal/texts"
)

const (
	// rowsPerTable and maxRows are the numbers of functions in a table, by default and at
	// most; threadsPerList is the number of threads in a list.
	rowsPerTable, maxRows, threadsPerList = 40, 1000, 20
	// placeLength is the number of bytes of a path that are shown.
	placeLength = 60
	// choicesPerUnit is the number of openings that are offered for a comparison.
	choicesPerUnit = 100
	// queryText bounds the texts of the URL, which become parts of links.
	queryText = 1024
)

// Values of against in the URL, beside the id of an opening.
const (
	againstNothing = "none"
	againstBefore  = "before" // the same profile before the trigger
)

// openingQuery is the query in the URL of an opening.
type openingQuery struct {
	Profile  store.ProfileKey
	Filter   flame.Filter
	Against  string
	Function string
	View     string // of the flame graph: callers or callees of the function, or empty
	Search   string
	Order    flame.Order
	Rows     int
	Peers    string // the column by which the peers are sorted
}

func parseOpeningQuery(q url.Values) openingQuery {
	get := func(key string) string { return texts.Cut(q.Get(key), queryText) }
	out := openingQuery{
		Profile:  store.ProfileKey{Type: get("type"), Origin: get("origin"), Scope: get("scope")},
		Filter:   flame.Filter{Phase: get("phase"), Thread: get("thread"), Wait: get("wait")},
		Against:  get("against"),
		Function: get("function"),
		Search:   get("q"),
		Order:    flame.Order(get("sort")),
		Peers:    get("peers"),
	}
	if view := q.Get("view"); view == "callers" || view == "callees" {
		out.View = view
	}
	out.Profile.Moment, _ = strconv.ParseInt(get("moment"), 10, 64)
	out.Rows, _ = strconv.Atoi(get("rows"))
	out.Rows = min(max(out.Rows, rowsPerTable), maxRows)
	return out
}

// values returns the query as it is in the URL; what is the default is left out.
func (q openingQuery) values() url.Values {
	v := url.Values{}
	set := func(key, value string) {
		if value != "" {
			v.Set(key, value)
		}
	}
	set("type", q.Profile.Type)
	set("origin", q.Profile.Origin)
	set("scope", q.Profile.Scope)
	if q.Profile.Moment != 0 {
		v.Set("moment", strconv.FormatInt(q.Profile.Moment, 10))
	}
	set("phase", q.Filter.Phase)
	set("thread", q.Filter.Thread)
	set("wait", q.Filter.Wait)
	set("against", q.Against)
	set("function", q.Function)
	set("view", q.View)
	set("q", q.Search)
	set("sort", string(q.Order))
	set("peers", q.Peers)
	if q.Rows > rowsPerTable {
		v.Set("rows", strconv.Itoa(q.Rows))
	}
	return v
}

// url returns the URL of a page or file of an opening for the query.
func (q openingQuery) url(opening, file string) string {
	u := "/openings/" + url.PathEscape(opening)
	if file != "" {
		u += "/" + file
	}
	if v := q.values(); len(v) > 0 {
		u += "?" + v.Encode()
	}
	return u
}

// openingPage has the data of opening.html.
type openingPage struct {
	store.Opening
	Open     bool
	End      time.Time
	Duration time.Duration
	Why      string // why it closed, as part of a sentence
	Trace    string // the URL of the span; empty if there is none
	Profiles []profileTab
	Moments  []profileTab
	View     *profileView // nil if there is no profile, or it is lost
	Lost     string       // why it is
	// Elsewhere are the openings of the unit that were open at the same time and have
	// profiles, if this one has none: while several policies are open, profiles have the
	// id of the first.
	Elsewhere []store.Opening
	Report    string
	Peers     *peersView // nil: none are known
}

// profileTab is a link to another profile of the opening.
type profileTab struct {
	Title, URL string
	Time       time.Time
	Current    bool
}

// profileView is a profile of an opening: the flame graph, and what stands beside it.
type profileView struct {
	store.ProfileInfo
	profileType
	Title string
	Query openingQuery
	ID    string // ends the ids of elements, where a page has several profiles
	// JSON is the URL of the flame graph, Embedded the flame graph itself in a report.
	JSON     string
	Embedded template.JS

	Total   string
	Rate    string // such as 0.7 cores; empty if it means nothing
	Phases  []partRow
	Threads []partRow
	Waits   []partRow
	More    int // threads that are not listed
	Cut     int

	Compared   bool
	AgainstURL string // of the other opening; empty if it is this one
	Against    comparison
	Choices    []choice
	NoBaseline string // why there is no comparison

	// Hottest are the functions with most of their own, Grown those whose share grew most.
	Hottest, Grown []functionRow

	Columns  []tableColumn
	Rows     []functionRow
	Matching int
	Of       int
	MoreRows string // the URL of the table with more rows

	Download      string
	DownloadThere string
	Command       string
	Origin        string // of the URLs in the command

	query flame.Query
}

// comparison is the other side.
type comparison struct {
	Name      string // baseline, before the trigger, or opening
	Triggered time.Time
	Policy    string
	Total     string
	Rate      string
}

// choice is an opening to compare with.
type choice struct {
	Value, Text, Group string
	Time               time.Time
	Current            bool
}

// partRow is a part of the samples: a phase, a thread or what was waited for.
type partRow struct {
	Label, URL   string
	Value, Share string
	There        string
	X, Width     float64 // of 1000
	Class        string
	Samples      int64
	Current      bool
}

// tableColumn is a column of the table of functions.
type tableColumn struct {
	Text, Title, URL, Key string
	Sorted                string
}

// functionRow is a row of that table.
type functionRow struct {
	Name         string
	Place, Whole string // where it is, and without a cut
	URL          string
	Self, Total  valueCell
	Current      bool
}

type valueCell struct {
	Value, Share string
	There        string
	Points       string
	Change       string
	Sort         float64
	Difference   float64
	Width        float64
}

// opening answers with the page of an opening.
func (s *Server) opening(w http.ResponseWriter, r *http.Request) error {
	o, err := s.Store.Opening(r.Context(), r.PathValue("id"))
	if err != nil {
		return err
	}
	p, err := s.openingPage(r.Context(), o, parseOpeningQuery(r.URL.Query()))
	if err != nil {
		return err
	}
	if p.View != nil {
		p.View.Origin = origin(r)
		p.View.Command = p.View.command(p.View.Origin)
	}
	title := unitName(o.Unit) + ", " + o.Triggered.UTC().Format("2006-01-02 15:04:05")
	return s.render(w, r, page{
		Template: "opening", Title: title, Section: "/", Data: p, Refresh: p.Open,
		Scripts: []string{"flame.js", "opening.js"}, Styles: []string{"flame.css", "peers.css"},
	})
}

// openingPage returns what the page shows.
func (s *Server) openingPage(ctx context.Context, o store.Opening, q openingQuery) (openingPage, error) {
	now := s.Now()
	p := openingPage{
		Opening: o, Open: o.Closed.IsZero() && now.Before(o.Until.Add(time.Minute)), End: endOf(o, now),
		Why: closedBecause(o.Why), Trace: traceURL(s.TraceURL, o.TraceID, o.SpanID),
	}
	p.Duration = p.End.Sub(o.Triggered).Round(time.Second)
	var err error
	if p.Peers, err = s.openingPeers(ctx, o, p.End, q); err != nil {
		return p, err
	}
	shown, err := findProfile(o, q.Profile)
	if errors.Is(err, errNoProfile) {
		p.Elsewhere, err = s.elsewhere(ctx, o, now)
		return p, err
	}
	if err != nil {
		return p, err
	}
	p.tabs(q, shown.ProfileKey)
	p.View, err = s.view(ctx, o, q)
	if err != nil {
		p.Lost = lost(err)
		if p.Lost == "" {
			return p, err
		}
		return p, nil
	}
	p.Report = openingQuery{Against: q.Against}.url(o.ID, "report.html")
	return p, nil
}

// lost returns the reason why a profile that should be there cannot be shown; empty for
// any other error.
func lost(err error) string {
	switch {
	case errors.Is(err, store.ErrDamaged):
		return "its files are damaged"
	case errors.Is(err, store.ErrNotFound):
		return "it is no longer kept"
	}
	return ""
}

// tabs lists the profiles of the opening.
func (p *openingPage) tabs(q openingQuery, shown store.ProfileKey) {
	all := sortProfiles(p.Opening.Profiles)
	for _, other := range all {
		link := openingQuery{
			Profile: shortKey(p.Opening, other.ProfileKey), Against: q.Against,
			Filter: flame.Filter{Phase: q.Filter.Phase, Thread: q.Filter.Thread},
		}
		tab := profileTab{
			Title: profileTitle(other.ProfileKey, all), Time: time.Unix(0, other.Moment),
			URL: link.url(p.ID, ""), Current: other.ProfileKey == shown,
		}
		same := other.ProfileKey
		same.Moment = shown.Moment
		if same == shown && other.Moment != 0 {
			p.Moments = append(p.Moments, tab)
		}
		// Of several moments, a tab is for the one that is shown, or for the first.
		if last := len(p.Profiles) - 1; last >= 0 && p.Profiles[last].Title == tab.Title {
			if tab.Current {
				p.Profiles[last] = tab
			}
			continue
		}
		p.Profiles = append(p.Profiles, tab)
	}
	if len(p.Moments) < 2 {
		p.Moments = nil
	}
}

// elsewhere returns openings of the same unit and time that have profiles.
func (s *Server) elsewhere(ctx context.Context, o store.Opening, now time.Time) ([]store.Opening, error) {
	others, err := s.Store.Openings(ctx, store.OpeningQuery{Unit: o.Unit.ID, To: endOf(o, now), All: true, Limit: choicesPerUnit})
	if err != nil {
		return nil, err
	}
	others = slices.DeleteFunc(slices.Clone(others), func(other store.Opening) bool {
		return other.ID == o.ID || len(other.Profiles) == 0 || endOf(other, now).Before(o.Triggered)
	})
	return others[:min(len(others), 5)], nil
}

// errNoProfile is returned for an opening without profiles.
var errNoProfile = errors.New("no profile")

// view returns what the page shows of the profile that the query asks for.
func (s *Server) view(ctx context.Context, o store.Opening, q openingQuery) (*profileView, error) {
	v, err := s.read(ctx, o, q)
	if err != nil {
		return nil, err
	}
	v.parts(o.ID)
	v.table(o.ID)
	return v, nil
}

// read returns the profile that a query asks for, and the one that it is compared with.
func (s *Server) read(ctx context.Context, o store.Opening, q openingQuery) (*profileView, error) {
	info, err := findProfile(o, q.Profile)
	if err != nil {
		return nil, err
	}
	q.Profile = shortKey(o, info.ProfileKey)
	v := &profileView{ProfileInfo: info, profileType: typeOf(info.Type), Query: q, Title: profileTitle(info.ProfileKey, o.Profiles)}
	v.query.Filter = q.Filter
	if v.query.Of, err = s.stacksOf(ctx, o, info); err != nil {
		return nil, err
	}
	v.Cut = v.query.Of.Cut
	if err := s.compare(ctx, o, v); err != nil {
		return nil, err
	}
	v.JSON = openingQuery{Profile: q.Profile, Filter: q.Filter, Against: q.Against}.url(o.ID, "flame.json")
	v.Download = openingQuery{Profile: q.Profile}.url(o.ID, "profile.pb.gz")
	return v, nil
}

// findProfile returns the profile with a key. Of a key without moment, or without type,
// it is the first that agrees with the rest.
func findProfile(o store.Opening, key store.ProfileKey) (store.ProfileInfo, error) {
	if len(o.Profiles) == 0 {
		return store.ProfileInfo{}, errNoProfile
	}
	for _, p := range sortProfiles(o.Profiles) {
		if p.ProfileKey == key ||
			key.Type == "" ||
			p.Type == key.Type && (key.Origin == "" || p.Origin == key.Origin) &&
				(key.Scope == "" || p.Scope == key.Scope) && (key.Moment == 0 || p.Moment == key.Moment) {
			return p, nil
		}
	}
	return store.ProfileInfo{}, failure{http.StatusNotFound, "This opening has no profile of that type."}
}

// shortKey returns what of a profile's key has to be in the URL for findProfile.
func shortKey(o store.Opening, key store.ProfileKey) store.ProfileKey {
	short := store.ProfileKey{Type: key.Type}
	for _, add := range []func(){
		func() {},
		func() { short.Origin = key.Origin },
		func() { short.Scope = key.Scope },
	} {
		add()
		if p, err := findProfile(o, short); err == nil && p.ProfileKey == key {
			return short
		}
	}
	return key
}

// compare finds the profile to compare with: the one that the query asks for, else the
// newest baseline before the opening, of its policy, else of its unit.
func (s *Server) compare(ctx context.Context, o store.Opening, v *profileView) error {
	c, err := s.candidates(ctx, o, v.ProfileInfo)
	if err != nil {
		return err
	}
	var other store.Opening
	switch v.Query.Against {
	case againstNothing:
	case againstBefore:
		v.query.Base, v.query.BaseFilter = v.query.Of, v.Query.Filter
		v.query.BaseFilter.Phase = "before"
		v.Against.Name = "before the trigger"
	case "":
		if o.Kind != "baseline" {
			other, v.NoBaseline = c.baseline()
		}
	default:
		if other, err = s.candidate(ctx, c, v.Query.Against); err != nil {
			return err
		}
	}
	if other.ID != "" {
		if err := s.compareWith(ctx, c, other, v); err != nil {
			return err
		}
		if v.NoBaseline != "" {
			other = store.Opening{}
		}
	}
	v.Compared = v.query.Base != nil
	v.choose(c, other)
	return nil
}

// candidates are the openings of a unit that a profile can be compared with, newest first.
type candidates struct {
	of        store.Opening
	profile   store.ProfileInfo
	openings  []store.Opening
	baselines []store.Opening // from before the opening
}

func (s *Server) candidates(ctx context.Context, o store.Opening, p store.ProfileInfo) (c candidates, err error) {
	c.of, c.profile = o, p
	c.openings, err = s.Store.Openings(ctx, store.OpeningQuery{Unit: o.Unit.ID, All: true, Limit: choicesPerUnit})
	if err != nil {
		return c, err
	}
	c.baselines, err = s.Store.Openings(ctx, store.OpeningQuery{Unit: o.Unit.ID, Baselines: true, To: o.Triggered, Limit: choicesPerUnit})
	return c, err
}

// profileIn returns the profile of the same type in another opening.
func (c candidates) profileIn(other store.Opening) (store.ProfileInfo, bool) {
	key := c.profile.ProfileKey
	key.Moment = 0
	p, err := findProfile(other, key)
	return p, err == nil && p.Unit == c.profile.Unit && other.ID != c.of.ID
}

// baseline returns the newest baseline of the opening's policy, else of any; or why there
// is none.
func (c candidates) baseline() (found store.Opening, why string) {
	for _, b := range c.baselines {
		if _, ok := c.profileIn(b); !ok {
			continue
		}
		if b.Policy == c.of.Policy {
			return b, ""
		}
		if found.ID == "" {
			found = b
		}
	}
	switch {
	case found.ID != "":
	case len(c.baselines) > 0:
		why = "The baselines of this unit have no profile of this type."
	default:
		why = "This unit has no baseline from before: with baseline in its policy, one is taken each hour."
	}
	return found, why
}

// candidate returns the opening with an id. It may be older than the candidates.
func (s *Server) candidate(ctx context.Context, c candidates, id string) (store.Opening, error) {
	for _, other := range slices.Concat(c.openings, c.baselines) {
		if other.ID == id {
			return other, nil
		}
	}
	other, err := s.Store.Opening(ctx, id)
	if err == nil && other.Unit.ID != c.of.Unit.ID {
		err = store.ErrNotFound
	}
	if errors.Is(err, store.ErrNotFound) {
		return other, failure{http.StatusNotFound, "The opening to compare with is not one of this unit, or is no longer kept."}
	}
	return other, err
}

// compareWith makes the view a comparison with another opening, or sets NoBaseline.
func (s *Server) compareWith(ctx context.Context, c candidates, other store.Opening, v *profileView) error {
	info, ok := c.profileIn(other)
	if !ok {
		v.NoBaseline = "The other opening has no profile of this type."
		return nil
	}
	base, err := s.stacksOf(ctx, other, info)
	if why := lost(err); why != "" {
		v.NoBaseline = "The other profile cannot be compared with: " + why + "."
		return nil
	}
	if err != nil {
		return err
	}
	v.query.Base, v.query.BaseFilter = base, v.Query.Filter
	v.Against.Name = "opening"
	if other.Kind == "baseline" {
		v.Against.Name = "baseline"
	}
	// The phases of another opening are other ones, unless it has the same.
	if !slices.Contains(info.Phases, v.Query.Filter.Phase) {
		v.query.BaseFilter.Phase = ""
	}
	v.Against.Triggered, v.Against.Policy = other.Triggered, other.Policy
	there := openingQuery{Profile: shortKey(other, info.ProfileKey)}
	v.AgainstURL, v.DownloadThere = there.url(other.ID, ""), there.url(other.ID, "profile.pb.gz")
	if v.query.BaseFilter.Phase == "" {
		v.Against.Rate = rate(info, v.query.BaseFilter, total(base, v.query.BaseFilter))
	}
	return nil
}

// choose lists what can be compared with.
func (v *profileView) choose(c candidates, other store.Opening) {
	openings, baselines := c.openings, c.baselines
	v.Choices = append(v.Choices, choice{Value: againstNothing, Text: "nothing", Current: !v.Compared})
	if slices.Contains(v.ProfileInfo.Phases, "before") && len(v.ProfileInfo.Phases) > 1 {
		v.Choices = append(v.Choices, choice{Value: againstBefore, Text: "this opening, before the trigger", Current: v.Query.Against == againstBefore})
	}
	add := func(list []store.Opening, group string, isBaseline bool) {
		for _, b := range list {
			if _, ok := c.profileIn(b); !ok || (b.Kind == "baseline") != isBaseline {
				continue
			}
			offered := choice{Value: b.ID, Group: group, Time: b.Triggered, Current: b.ID == other.ID, Text: reason(b)}
			if isBaseline {
				offered.Text = "baseline"
			}
			if b.Policy != "" {
				offered.Text += ", policy " + cutText(40, b.Policy)
			}
			v.Choices = append(v.Choices, offered)
		}
	}
	if !slices.ContainsFunc(baselines, func(b store.Opening) bool { return b.ID == other.ID }) &&
		!slices.ContainsFunc(openings, func(b store.Opening) bool { return b.ID == other.ID }) && other.ID != "" {
		openings = append(openings, other)
	}
	later := slices.DeleteFunc(slices.Clone(openings), func(b store.Opening) bool {
		return b.Kind != "baseline" || slices.ContainsFunc(baselines, func(c store.Opening) bool { return b.ID == c.ID })
	})
	add(slices.Concat(later, baselines), "Baselines", true)
	add(openings, "Openings", false)
}

// choiceGroup is the choices under one heading.
type choiceGroup struct {
	Name    string
	Choices []choice
}

func groupChoices(choices []choice) (groups []choiceGroup) {
	for _, c := range choices {
		if n := len(groups); n == 0 || groups[n-1].Name != c.Group {
			groups = append(groups, choiceGroup{Name: c.Group})
		}
		g := &groups[len(groups)-1]
		g.Choices = append(g.Choices, c)
	}
	return groups
}

func total(s *flame.Stacks, f flame.Filter) int64 {
	return flame.Query{Of: s, Filter: f}.Total().Here
}

// rate returns a sum as a rate: CPU time in cores, what else adds up per second. It is
// known only for all phases together.
func rate(p store.ProfileInfo, f flame.Filter, sum int64) string {
	span := p.End.Sub(p.Start).Seconds()
	if f.Phase != "" || span <= 0 || p.Start.IsZero() || p.Moment != 0 {
		return ""
	}
	v := float64(sum) / span
	switch {
	case p.Type == "cpu" && p.Unit == "nanoseconds":
		return number(v/1e9) + " cores over " + formatDuration(p.End.Sub(p.Start).Round(time.Second))
	case p.Unit == "nanoseconds":
		return ""
	case p.Unit == "bytes":
		return formatBytes(int64(math.Round(v))) + "/s"
	}
	return number(v) + "/s"
}

// parts fills in what the samples are by phase, thread and wait.
func (v *profileView) parts(opening string) {
	all := v.query.Total()
	v.Total = amount(v.query.Of.Unit, all.Here)
	v.Rate = rate(v.ProfileInfo, v.Query.Filter, all.Here)
	if v.Compared {
		v.Against.Total = amount(v.query.Base.Unit, all.There)
	}
	phases := slices.DeleteFunc(v.query.Phases(), func(p flame.Part) bool { return p.Value.Here == 0 })
	v.Phases = v.rows(phases, opening, v.Query.Filter.Phase, func(q *openingQuery, label string) { q.Filter.Phase = label })
	slices.SortStableFunc(v.Phases, func(a, b partRow) int { return phaseRank(a.Class) - phaseRank(b.Class) })
	x := 0.0
	for i := range v.Phases {
		v.Phases[i].X = x
		x += v.Phases[i].Width
		v.Phases[i].Label = phaseName(v.Phases[i].Class)
	}
	if len(v.Phases) == 1 && v.Phases[0].Class == "" {
		v.Phases = nil
	}
	v.Threads = v.rows(v.query.Threads(), opening, v.Query.Filter.Thread, func(q *openingQuery, label string) { q.Filter.Thread = label })
	if len(v.Threads) == 1 && v.Query.Filter.Thread == "" {
		v.Threads = nil
	}
	if more := len(v.Threads) - threadsPerList; more > 0 {
		listed := v.Threads[:threadsPerList]
		if i := slices.IndexFunc(v.Threads, func(p partRow) bool { return p.Current }); i >= threadsPerList {
			listed = append(slices.Clip(listed), v.Threads[i])
			more--
		}
		v.More, v.Threads = more, listed
	}
	v.Waits = v.rows(v.query.Waits(), opening, v.Query.Filter.Wait, func(q *openingQuery, label string) { q.Filter.Wait = label })
	if len(v.Waits) == 1 && v.Waits[0].Class == "" {
		v.Waits = nil
	}
}

// rows returns parts with links that choose them, or drop the choice.
func (v *profileView) rows(parts []flame.Part, opening, current string, set func(*openingQuery, string)) []partRow {
	var all flame.Value
	for _, p := range parts {
		all.Here += p.Value.Here
		all.There += p.Value.There
	}
	rows := make([]partRow, 0, len(parts))
	for _, p := range parts {
		here, there := p.Value.Share(all)
		row := partRow{
			Label: p.Label, Class: p.Label, Value: amount(v.query.Of.Unit, p.Value.Here), Share: percent(here),
			Width: math.Round(here * 1000), Samples: p.Samples,
		}
		if v.query.Of.Unit == "count" {
			row.Samples = 0 // they are the value
		}
		value := p.Label
		if value == "" {
			row.Label, value = "without name", flame.Unlabelled
		}
		if v.Compared {
			row.There = percent(there)
		}
		q := v.Query
		row.Current = current == value
		set(&q, value)
		if row.Current {
			set(&q, "")
		}
		row.URL = q.url(opening, "")
		rows = append(rows, row)
	}
	return rows
}

var phases = []string{"baseline", "before", "both", "after"}

// phaseRank sorts phases by time.
func phaseRank(phase string) int {
	if i := slices.Index(phases, phase); i >= 0 {
		return i
	}
	return len(phases)
}

func phaseName(phase string) string {
	switch phase {
	case "before":
		return "before the trigger"
	case "both":
		return "at the trigger"
	case "after":
		return "after the trigger"
	case "baseline":
		return "baseline"
	case "":
		return "phase not known"
	}
	return phase
}

// table fills in the hottest functions.
func (v *profileView) table(opening string) {
	order := v.Query.Order
	columns := []struct {
		key         flame.Order
		text, title string
	}{
		{flame.ByName, "Function", ""},
		{flame.BySelf, "Self", "spent in the function itself"},
		{flame.BySelfDifference, "Self, difference", "difference of the shares of self, in percentage points"},
		{flame.ByTotal, "Total", "with all that it called"},
		{flame.ByTotalDifference, "Total, difference", "difference of the shares of total, in percentage points"},
	}
	if !v.Compared {
		columns = slices.Delete(slices.Delete(columns, 4, 5), 2, 3)
	}
	known := false
	for _, c := range columns {
		known = known || c.key == order
	}
	standard := flame.BySelf
	if v.inKernel() {
		standard = flame.ByTotal
	}
	if !known {
		order = standard
	}
	for _, c := range columns {
		q := v.Query
		if q.Order = c.key; c.key == standard {
			q.Order = ""
		}
		column := tableColumn{Text: c.text, Title: c.title, URL: q.url(opening, "") + "#functions", Key: string(c.key)}
		if c.key == order {
			if column.Sorted = "descending"; c.key == flame.ByName {
				column.Sorted = "ascending"
			}
		}
		v.Columns = append(v.Columns, column)
	}
	v.short(opening)
	t := v.query.Table(order, v.Query.Search, v.Query.Rows)
	v.Matching, v.Of = t.Matching, t.Functions
	if t.Matching > len(t.Rows) && v.Query.Rows < maxRows {
		q := v.Query
		q.Rows = maxRows
		v.MoreRows = q.url(opening, "") + "#functions"
	}
	v.Rows = v.functions(t, opening)
}

// shortRows is the number of functions that are named above the flame graph.
const shortRows = 3

// short fills in the functions that are named above the flame graph.
func (v *profileView) short(opening string) {
	t := v.query.Table(flame.BySelf, "", shortRows)
	t.Rows = slices.DeleteFunc(t.Rows, func(r flame.Row) bool { return r.Self.Here == 0 })
	if !v.inKernel() {
		v.Hottest = v.functions(t, opening)
	}
	if v.Compared {
		tree := v.query.Tree()
		t.Rows = nil
		for _, n := range tree.Grown(shortRows) {
			t.Rows = append(t.Rows, flame.Row{Function: tree.Functions[n.Function], Line: n.Line, Self: n.Self, Total: n.Total})
		}
		v.Grown = v.functions(t, opening)
	}
}

// functions returns the rows of a table.
func (v *profileView) functions(t flame.Table, opening string) []functionRow {
	samples := v.query.Samples()
	var widest flame.Value // of self and of total
	for _, r := range t.Rows {
		widest.Here, widest.There = max(widest.Here, r.Self.Here), max(widest.There, r.Total.Here)
	}
	rows := make([]functionRow, 0, len(t.Rows))
	for _, r := range t.Rows {
		q := v.Query
		q.Function = r.Name
		rows = append(rows, functionRow{
			Name: r.Name, Place: place(flame.ShortPath(r.File, placeLength), r.Line), Whole: place(r.File, r.Line), URL: q.url(opening, ""), Current: r.Name == v.Query.Function,
			Self: v.cell(r.Self, t.Total, widest.Here, samples), Total: v.cell(r.Total, t.Total, widest.There, samples),
		})
	}
	return rows
}

// cell returns a value of a function; widest is the largest of the column.
func (v *profileView) cell(value, all flame.Value, widest int64, samples flame.Value) valueCell {
	here, there := value.Share(all)
	c := valueCell{Value: amount(v.query.Of.Unit, value.Here), Share: percent(here), Sort: here}
	if widest > 0 {
		c.Width = math.Round(100 * float64(value.Here) / float64(widest))
	}
	if v.Compared {
		c.There, c.Points, c.Change = percent(there), points(here, there), change(here, there, samples)
		c.Difference = here - there
	}
	return c
}

// place returns where a function is: its file and line.
func place(file string, line int32) string {
	if file == "" || line == 0 {
		return file
	}
	return file + ":" + strconv.Itoa(int(line))
}

// closedBecause returns why a gate closed, as part of a sentence.
func closedBecause(why string) string {
	switch why {
	case "duration":
		return "the duration of its policy was over"
	case "released":
		return "the condition no longer held"
	case "unit gone":
		return "the unit ended"
	case "shutdown":
		return "the collector stopped"
	case "gave way":
		return "it gave way to a hotter unit"
	case "closed by hand", "":
		return why
	case "alert resolved":
		return "the alert was resolved"
	case "policy removed":
		return "its policy was removed"
	case "policy changed":
		return "its policy was changed"
	}
	return cutText(60, why)
}

// traceURL returns the link to a span, of a URL that CheckTraceURL accepted. Ids
// that are none of a trace make no link.
func traceURL(link, trace, span string) string {
	if link == "" || !isHexID(trace, 16) {
		return ""
	}
	if !isHexID(span, 8) {
		if strings.Contains(link, "{span_id}") {
			return ""
		}
		span = ""
	}
	return strings.NewReplacer("{trace_id}", strings.ToLower(trace), "{span_id}", strings.ToLower(span)).Replace(link)
}

func isHexID(id string, bytes int) bool {
	b, err := hex.DecodeString(id)
	return err == nil && len(b) == bytes && strings.Trim(id, "0") != ""
}

// CheckTraceURL returns an error if a URL cannot be a link to spans: it must be an
// http or https URL that contains {trace_id}, without a user.
func CheckTraceURL(link string) error {
	if link == "" {
		return nil
	}
	u, err := url.Parse(strings.NewReplacer("{trace_id}", "0", "{span_id}", "0").Replace(link))
	switch {
	case err != nil:
		return err
	case u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "":
		return fmt.Errorf("%q is not a URL that begins with https:// or http://", link)
	case u.User != nil:
		return errors.New("it contains a user")
	case !strings.Contains(link, "{trace_id}"):
		return fmt.Errorf("%q does not contain {trace_id}", link)
	}
	return nil
}

// flameJSON answers with the flame graph.
func (s *Server) flameJSON(w http.ResponseWriter, r *http.Request) error {
	o, err := s.Store.Opening(r.Context(), r.PathValue("id"))
	if err != nil {
		return err
	}
	v, err := s.read(r.Context(), o, parseOpeningQuery(r.URL.Query()))
	if err != nil {
		return withoutProfile(err)
	}
	w.Header().Set("Content-Type", "application/json")
	_ = v.query.Tree().WriteJSON(w, v.Compared) // an error means that the browser is gone
	return nil
}

// withoutProfile returns the error that a file of a profile is answered with.
func withoutProfile(err error) error {
	switch {
	case errors.Is(err, errNoProfile):
		return store.ErrNotFound
	case errors.Is(err, store.ErrDamaged):
		return failure{http.StatusNotFound, "The files of this profile are damaged."}
	}
	return err
}

// profileFile answers with a profile of the opening for go tool pprof.
func (s *Server) profileFile(w http.ResponseWriter, r *http.Request) error {
	o, err := s.Store.Opening(r.Context(), r.PathValue("id"))
	if err != nil {
		return err
	}
	info, err := findProfile(o, parseOpeningQuery(r.URL.Query()).Profile)
	if err != nil {
		return withoutProfile(err)
	}
	p, err := s.Store.Profile(r.Context(), o.ID, info.ProfileKey)
	if err != nil {
		return withoutProfile(err)
	}
	h := w.Header()
	h.Set("Content-Type", "application/octet-stream")
	h.Set("Content-Disposition", `attachment; filename="`+fileName(o, info.Type)+`.pb.gz"`)
	_ = p.Write(w) // an error means that the browser is gone
	return nil
}

// fileName returns the beginning of the name of a file about an opening, of letters,
// digits, dots, dashes and underscores.
func fileName(o store.Opening, what string) string {
	parts := []string{unitName(o.Unit), o.Triggered.UTC().Format("20060102T150405Z"), o.Policy, what}
	for i, part := range parts {
		parts[i] = strings.Trim(strings.Map(func(r rune) rune {
			if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '.' || r == '-' || r == '_' {
				return r
			}
			return '-'
		}, part[:min(len(part), 40)]), ".-_")
	}
	parts = slices.DeleteFunc(parts, func(s string) bool { return s == "" })
	return strings.Join(parts, "_")
}

// origin returns the beginning of the URLs that the browser sees.
func origin(r *http.Request) string {
	scheme := "http://"
	if r.TLS != nil {
		scheme = "https://"
	}
	return scheme + r.Host
}

// command returns the command that opens what is shown in go tool pprof.
func (v *profileView) command(origin string) string {
	command := "go tool pprof -http=:"
	switch {
	case v.DownloadThere != "":
		command += " -normalize -diff_base=" + shellQuote(origin+v.DownloadThere)
	case v.Query.Filter.Phase != "":
		command += " -tagfocus=" + shellQuote(attr.TriggerPhase+"=^"+regexp.QuoteMeta(v.Query.Filter.Phase)+"$")
	case v.Query.Filter.Thread != "":
		command += " -tagfocus=" + shellQuote(attr.ThreadName+"=^"+regexp.QuoteMeta(v.Query.Filter.Thread)+"$")
	}
	return command + " " + shellQuote(origin+v.Download)
}

// shellQuote returns a text as one word of a shell.
func shellQuote(s string) string {
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}
