// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package web

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"html/template"
	"maps"
	"math"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/hotprofile/hotprofile/extension/consoleextension/internal/flame"
	"github.com/hotprofile/hotprofile/extension/consoleextension/internal/store"
	"github.com/hotprofile/hotprofile/internal/otlpprofiles/attr"
	"github.com/hotprofile/hotprofile/internal/truncate"
	"github.com/hotprofile/hotprofile/internal/urls"
)

const (
	// rowsPerTable is the default number of functions in a table. maxRows is the maximum
	// number of functions in a table. threadsPerList is the number of threads in a list.
	rowsPerTable, maxRows, threadsPerList = 40, 1000, 20
	// placeLength is the maximum length of a path on the page, in bytes.
	placeLength = 60
	// choicesPerUnit is the maximum number of openings that are offered for a comparison.
	choicesPerUnit = 100
	// queryText is the maximum length of a string parameter in the URL, in bytes. The
	// length is limited because pages repeat these parameters in their links.
	queryText = 1024
)

// openingQuery is the query in the URL of an opening.
type openingQuery struct {
	Profile  store.ProfileKey
	Filter   flame.Filter
	Against  string
	Function string
	View     string // view of the flame graph: callers, callees, or empty
	Search   string
	Order    flame.Order
	Rows     int
	Peers    string // column by which the peers are sorted
	opening  string // ID of the opening
	report   string // suffix of the ids of a profile in a report; empty on a page
}

// texts returns pointers to the string fields of the query, by the names of the URL
// parameters.
func (q *openingQuery) texts() map[string]*string {
	return map[string]*string{
		"type": &q.Profile.Type, "origin": &q.Profile.Origin, "scope": &q.Profile.Scope,
		"phase": &q.Filter.Phase, "thread": &q.Filter.Thread, "wait": &q.Filter.Wait,
		"request": &q.Filter.Request, "route": &q.Filter.Route,
		"against": &q.Against, "function": &q.Function, "view": &q.View, "q": &q.Search,
		"sort": (*string)(&q.Order), "peers": &q.Peers,
	}
}

func parseOpeningQuery(q url.Values) (out openingQuery) {
	for key, text := range out.texts() {
		*text = truncate.Cut(q.Get(key), queryText)
	}
	if out.View != "callers" && out.View != "callees" {
		out.View = ""
	}
	out.Profile.Moment, _ = strconv.ParseInt(q.Get("moment"), 10, 64)
	out.Rows, _ = strconv.Atoi(q.Get("rows"))
	out.Rows = min(max(out.Rows, rowsPerTable), maxRows)
	return out
}

// values returns the query as URL parameters. Default values are omitted.
func (q openingQuery) values() url.Values {
	v := url.Values{}
	for key, text := range q.texts() {
		if *text != "" {
			v.Set(key, *text)
		}
	}
	if q.Profile.Moment != 0 {
		v.Set("moment", strconv.FormatInt(q.Profile.Moment, 10))
	}
	if q.Rows > rowsPerTable {
		v.Set("rows", strconv.Itoa(q.Rows))
	}
	return v
}

// url returns the URL of the page or a file of the opening for the query. For a report, it
// returns an empty string, because a report contains no such links.
func (q openingQuery) url(file string) string {
	if q.report != "" {
		return ""
	}
	file, anchor, _ := strings.Cut(file, "#")
	u := url.URL{Path: strings.TrimSuffix("/openings/"+q.opening+"/"+file, "/"), RawQuery: q.values().Encode(), Fragment: anchor}
	return u.String()
}

// openingPage contains the data for opening.html.
type openingPage struct {
	openingRow
	Duration time.Duration
	Why      string   // why the gate closed, as part of a sentence
	Trace    string   // URL of the span; empty if there is none
	Slowest  []string // URLs of the traces of the slowest requests
	Served   []requestRow
	Profiles []profileTab
	Moments  []profileTab
	View     *profileView // nil if there is no profile or the profile is lost
	Lost     string       // why the profile is lost
	Report   string
	Peers    *peersView // nil if no peer is known
}

// requestRow is a request whose duration is split into parts. There is a part for running,
// for each kind of waiting, and for the time that no sample covers.
type requestRow struct {
	Route, URL, Duration string
	Failed               bool
	Parts                []partRow
}

// newRequestRow returns the row of a request. If the request ran or waited in several
// threads at once, the sum of its parts may exceed its duration.
func newRequestRow(r store.Request, link string) requestRow {
	row := requestRow{Route: r.Route, URL: link, Duration: formatDuration(milliseconds(r.Duration)), Failed: r.Failed}
	sum := r.CPU
	for _, ms := range r.Waits {
		sum += ms
	}
	all, x := max(sum, r.Duration), 0.0
	add := func(label, class string, ms float64) {
		if share := ms / all; share >= 0.005 {
			row.Parts = append(row.Parts, partRow{Label: label, Class: class, Value: formatDuration(milliseconds(ms)), X: x, Width: math.Round(share * 1000)})
			x += math.Round(share * 1000)
		}
	}
	add("CPU", "ran", r.CPU)
	for _, kind := range slices.Sorted(maps.Keys(r.Waits)) {
		add(kind, "waited", r.Waits[kind])
	}
	add("unknown", "unknown", r.Duration-sum)
	return row
}

func milliseconds(ms float64) time.Duration { return time.Duration(ms * float64(time.Millisecond)) }

// profileTab is a link to another profile of the opening.
type profileTab struct {
	Title, URL string
	Time       time.Time
	Current    bool
}

// profileView contains the data of one profile: the flame graph and its tables.
type profileView struct {
	store.ProfileInfo
	profileType
	Title string
	Query openingQuery
	ID    string // suffix of element ids on a page with several profiles
	// JSON is the URL from which the page loads the flame graph. It is empty in a report,
	// because a report contains the flame graph in Embedded.
	JSON     string
	Embedded template.JS

	Total     string
	WholeFrom time.Time // time of the last incomplete stack; zero if there is none, or if they continue to the end
	Rate      string    // such as 0.7 cores; empty if there is no meaningful rate
	Phases    []partRow
	Threads   []partRow
	Waits     []partRow
	Requests  []partRow
	Routes    []partRow
	More      int // number of threads that are not listed
	Cut       int

	Compared   bool
	AgainstURL string // URL of the other opening; empty for a comparison within one opening
	Against    comparison
	Choices    []choice // what to compare with, besides Baselines and Openings
	Baselines  []choice
	Openings   []choice
	NoBaseline string // why there is no comparison

	// Hottest lists the functions with the largest self values. Grown lists the functions
	// whose share has grown most in comparison with the other profile.
	Hottest, Grown []functionRow

	Order    flame.Order // order of the table of functions
	Rows     []functionRow
	Matching int
	Of       int
	MoreRows string // URL of the table with more rows

	Download      string
	DownloadThere string
	Origin        string // scheme and host of the URLs in the command

	query flame.Query
}

// partRow represents the samples of one phase, thread or reason for waiting.
type partRow struct {
	Label, URL   string
	Value, Share string
	There        string
	X, Width     float64 // in thousandths of all samples
	Class        string
	Samples      int64
	Current      bool
}

// ofOpening returns the handler of a page or file of an opening.
func (s *Server) ofOpening(h func(http.ResponseWriter, *http.Request, store.Opening, openingQuery) error) handler {
	return func(w http.ResponseWriter, r *http.Request) error {
		o, err := s.Store.Opening(r.Context(), r.PathValue("id"))
		if err != nil {
			return err
		}
		q := parseOpeningQuery(r.URL.Query())
		q.opening = o.ID
		return h(w, r, o, q)
	}
}

// opening serves the page of an opening.
func (s *Server) opening(w http.ResponseWriter, r *http.Request, o store.Opening, q openingQuery) error {
	p, err := s.openingPage(r.Context(), o, q)
	if err != nil {
		return err
	}
	if p.View != nil {
		p.View.Origin = origin(r)
	}
	title := unitName(o.Unit) + ", " + o.Triggered.UTC().Format("2006-01-02 15:04:05")
	return s.render(w, page{Template: "opening", Title: title, Section: "/", Data: p, Refresh: p.Open})
}

// openingPage returns the data of the page.
func (s *Server) openingPage(ctx context.Context, o store.Opening, q openingQuery) (openingPage, error) {
	now := s.Now()
	p := openingPage{openingRow: newOpeningRow(o, now), Why: closedBecause(o), Trace: traceURL(s.TraceURL, o.TraceID, o.SpanID)}
	p.Duration = p.Lasted.Round(time.Second)
	traces := strings.ReplaceAll(s.TraceURL, "{span_id}", "") // links to traces contain no span
	for _, id := range o.Traces {
		if link := traceURL(traces, id, ""); link != "" {
			p.Slowest = append(p.Slowest, link)
		}
	}
	for _, r := range o.Requests {
		p.Served = append(p.Served, newRequestRow(r, traceURL(traces, r.TraceID, "")))
	}
	end := endOf(o, now)
	var err error
	if p.Peers, err = s.openingPeers(ctx, o, end, q); err != nil {
		return p, err
	}
	shown, err := findProfile(o, q.Profile)
	if errors.Is(err, errNoProfile) {
		others, err := s.Store.Openings(ctx, store.OpeningQuery{Unit: o.Unit.ID, To: end, All: true, Limit: choicesPerUnit})
		p.share(others, now)
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
	p.Report = openingQuery{opening: o.ID, Against: q.Against}.url("report.html")
	return p, nil
}

// lost returns the reason why an expected profile cannot be shown. For all other errors,
// it returns an empty string.
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
			opening: p.ID, Profile: shortKey(p.Opening, other.ProfileKey), Against: q.Against,
			Filter: flame.Filter{Phase: q.Filter.Phase, Thread: q.Filter.Thread},
		}
		tab := profileTab{
			Title: profileTitle(other.ProfileKey, all), Time: time.Unix(0, other.Moment),
			URL: link.url(""), Current: other.ProfileKey == shown,
		}
		same := other.ProfileKey
		same.Moment = shown.Moment
		if same == shown && other.Moment != 0 {
			p.Moments = append(p.Moments, tab)
		}
		// Several moments share a tab. The tab links to the moment that the page shows.
		// If the page shows none of these moments, the tab links to the first moment.
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

// errNoProfile is returned for an opening without profiles.
var errNoProfile = fmt.Errorf("%w: the opening has no profile", store.ErrNotFound)

// view returns the view of the profile that a query selects.
func (s *Server) view(ctx context.Context, o store.Opening, q openingQuery) (*profileView, error) {
	v, err := s.read(ctx, o, q)
	if err != nil {
		return nil, err
	}
	v.parts()
	v.table()
	return v, nil
}

// read reads the profile that a query selects, and the profile to compare it with.
func (s *Server) read(ctx context.Context, o store.Opening, q openingQuery) (*profileView, error) {
	info, err := findProfile(o, q.Profile)
	if err != nil {
		return nil, err
	}
	q.Profile = shortKey(o, info.ProfileKey)
	v := &profileView{ProfileInfo: info, profileType: typeOf(info.Type), Query: q, ID: q.report, Title: profileTitle(info.ProfileKey, o.Profiles)}
	v.query.Filter = q.Filter
	if v.query.Of, err = s.stacksOf(ctx, o, info); err != nil {
		return nil, err
	}
	v.Cut = v.query.Of.Cut
	if info.LastIncomplete.Before(info.End.Add(-time.Second)) {
		v.WholeFrom = info.LastIncomplete
	}
	if err := s.compare(ctx, o, v); err != nil {
		return nil, err
	}
	v.JSON = openingQuery{opening: o.ID, Profile: q.Profile, Filter: q.Filter, Against: q.Against, report: q.report}.url("flame.json")
	v.Download = openingQuery{opening: o.ID, Profile: q.Profile, report: q.report}.url("profile.pb.gz")
	return v, nil
}

// findProfile returns the first profile that matches a key. An empty origin or scope, or a
// zero moment, matches any value. An empty type matches any profile.
func findProfile(o store.Opening, key store.ProfileKey) (store.ProfileInfo, error) {
	if len(o.Profiles) == 0 {
		return store.ProfileInfo{}, errNoProfile
	}
	for _, p := range sortProfiles(o.Profiles) {
		wanted := store.ProfileKey{
			Type: cmp.Or(key.Type, p.Type), Origin: cmp.Or(key.Origin, p.Origin), Scope: cmp.Or(key.Scope, p.Scope), Moment: cmp.Or(key.Moment, p.Moment),
		}
		if p.ProfileKey == wanted || key.Type == "" {
			return p, nil
		}
	}
	return store.ProfileInfo{}, failure{http.StatusNotFound, "This opening has no profile of that type."}
}

// shortKey returns the shortest key with which findProfile finds the profile. The key
// becomes part of the URL.
func shortKey(o store.Opening, key store.ProfileKey) store.ProfileKey {
	for _, short := range []store.ProfileKey{
		{Type: key.Type}, {Type: key.Type, Origin: key.Origin}, {Type: key.Type, Origin: key.Origin, Scope: key.Scope},
	} {
		if p, err := findProfile(o, short); err == nil && p.ProfileKey == key {
			return short
		}
	}
	return key
}

// rate formats a sum as a rate. CPU time is shown in cores, and bytes and counts are shown
// per second. If the rate is unknown, for example for a single phase, rate returns an
// empty string.
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

// parts fills in the samples by phase, thread and reason for waiting.
func (v *profileView) parts() {
	all := v.query.Total()
	v.Total = amount(v.query.Of.Unit, all.Here)
	v.Rate = rate(v.ProfileInfo, v.Query.Filter, all.Here)
	if v.Compared {
		v.Against.Total = amount(v.query.Base.Unit, all.There)
	}
	parts := slices.DeleteFunc(v.query.Parts(flame.Phase), func(p flame.Part) bool { return p.Value.Here == 0 })
	v.Phases = v.rows(parts, flame.Phase)
	slices.SortStableFunc(v.Phases, func(a, b partRow) int { return slices.Index(phases, a.Class) - slices.Index(phases, b.Class) })
	x := 0.0
	for i := range v.Phases {
		v.Phases[i].X = x
		x += v.Phases[i].Width
		v.Phases[i].Label = phaseName(v.Phases[i].Class)
	}
	if len(v.Phases) == 1 && v.Phases[0].Class == "" {
		v.Phases = nil
	}
	v.Threads = v.rows(v.query.Parts(flame.Thread), flame.Thread)
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
	v.Waits = v.labelled(flame.Wait)
	v.Requests = v.labelled(flame.Request)
	v.Routes = v.labelled(flame.Route)
}

// labelled is like rows, but returns at most threadsPerList rows. If no sample has the label,
// it returns no rows.
func (v *profileView) labelled(label flame.Label) []partRow {
	rows := v.rows(v.query.Parts(label), label)
	if len(rows) == 1 && rows[0].Class == "" {
		return nil
	}
	return rows[:min(len(rows), threadsPerList)]
}

// rows returns a row for each part of a label. The link of a row selects the part. If the
// part is already selected, the link cancels the selection.
func (v *profileView) rows(parts []flame.Part, label flame.Label) []partRow {
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
			row.Samples = 0 // the value already is the number of samples
		}
		value := p.Label
		if value == "" {
			row.Label, value = "without name", flame.Unlabelled
		}
		if v.Compared {
			row.There = percent(there)
		}
		q := v.Query
		selected := q.Filter.Fields()[label]
		if row.Current = *selected == value; row.Current {
			value = ""
		}
		*selected = value
		row.URL = q.url("")
		rows = append(rows, row)
	}
	return rows
}

// phases lists the phases in chronological order. phaseNames contains the names
// of the phases on the pages.
var phases = []string{"baseline", "before", "both", "after", ""}

var phaseNames = map[string]string{
	"before": "before the trigger", "both": "at the trigger", "after": "after the trigger", "": "phase not known",
}

func phaseName(phase string) string { return cmp.Or(phaseNames[phase], phase) }

// closings describes the reasons why gates close, in words that fit into a sentence.
var closings = map[string]string{
	"duration":       "the duration of its policy",
	"released":       "the condition no longer held",
	"unit gone":      "the unit ended",
	"shutdown":       "the collector stopped",
	"gave way":       "it gave way to a hotter unit",
	"alert resolved": "the alert was resolved",
	"policy removed": "its policy was removed",
	"policy changed": "its policy was changed",
}

// closedBecause returns the reason why a gate closed, as part of a sentence.
func closedBecause(o store.Opening) string {
	switch {
	case o.Why == "duration" && o.Kind == "alert":
		return "the duration for alerts"
	case o.Why == "duration" && o.Kind == "manual":
		return "the duration for gates that are opened by hand"
	}
	return cmp.Or(closings[o.Why], cutText(60, o.Why))
}

// traceURL returns the link to a span. link is empty or has passed IsTraceURL. If link needs
// an ID that is invalid, traceURL returns an empty string.
func traceURL(link, traceID, spanID string) string {
	of, err := trace.TraceIDFromHex(strings.ToLower(traceID))
	span, noSpan := trace.SpanIDFromHex(strings.ToLower(spanID))
	if err != nil || noSpan != nil && strings.Contains(link, "{span_id}") {
		return ""
	}
	return strings.NewReplacer("{trace_id}", of.String(), "{span_id}", span.String()).Replace(link)
}

// IsTraceURL reports whether a URL can be a link to spans. The URL must be an http or https
// URL, must contain {trace_id}, and must not contain a user.
func IsTraceURL(link string) bool {
	_, err := urls.Parse(strings.NewReplacer("{trace_id}", "0", "{span_id}", "0").Replace(link), "")
	return err == nil && strings.Contains(link, "{trace_id}")
}

// flameJSON serves the flame graph as JSON.
func (s *Server) flameJSON(w http.ResponseWriter, r *http.Request, o store.Opening, q openingQuery) error {
	v, err := s.read(r.Context(), o, q)
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	_ = v.query.Tree().WriteJSON(w, v.Compared) // an error means that the browser is gone
	return nil
}

// profileFile serves a profile of the opening as a file for go tool pprof.
func (s *Server) profileFile(w http.ResponseWriter, r *http.Request, o store.Opening, q openingQuery) error {
	info, err := findProfile(o, q.Profile)
	if err != nil {
		return err
	}
	p, err := s.Store.Profile(r.Context(), o.ID, info.ProfileKey)
	if err != nil {
		return err
	}
	h := w.Header()
	h.Set("Content-Type", "application/octet-stream")
	h.Set("Content-Disposition", `attachment; filename="`+fileName(o, info.Type)+`.pb.gz"`)
	_ = p.Write(w) // an error means that the browser is gone
	return nil
}

var notInFileName = regexp.MustCompile(`[^a-zA-Z0-9._-]`)

// fileName returns the name of a download for an opening, without the extension. The
// name consists of letters, digits, dots, dashes and underscores.
func fileName(o store.Opening, what string) string {
	var parts []string
	for _, part := range []string{unitName(o.Unit), o.Triggered.UTC().Format("20060102T150405Z"), o.Policy, what} {
		if part = strings.Trim(notInFileName.ReplaceAllString(part[:min(len(part), 40)], "-"), ".-_"); part != "" {
			parts = append(parts, part)
		}
	}
	return strings.Join(parts, "_")
}

// origin returns the scheme and the host of the URLs that the browser uses.
func origin(r *http.Request) string {
	scheme := "http://"
	if r.TLS != nil {
		scheme = "https://"
	}
	return scheme + r.Host
}

// Command returns the shell command that opens the shown profile in go tool pprof.
func (v *profileView) Command() string {
	command := "go tool pprof -http=:"
	switch {
	case v.DownloadThere != "":
		command += " -normalize -diff_base=" + shellQuote(v.Origin+v.DownloadThere)
	case v.Query.Filter.Phase != "":
		command += " -tagfocus=" + shellQuote(attr.TriggerPhase+"=^"+regexp.QuoteMeta(v.Query.Filter.Phase)+"$")
	case v.Query.Filter.Thread != "":
		command += " -tagfocus=" + shellQuote(attr.ThreadName+"=^"+regexp.QuoteMeta(v.Query.Filter.Thread)+"$")
	}
	return command + " " + shellQuote(v.Origin+v.Download)
}

// shellQuote quotes a string as a single word for the shell.
func shellQuote(s string) string {
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}
