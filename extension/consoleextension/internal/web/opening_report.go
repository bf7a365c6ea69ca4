// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package web

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"html/template"
	"net/http"
	"slices"
	"strconv"

	"github.com/hotprofile/hotprofile/extension/consoleextension/internal/flame"
	"github.com/hotprofile/hotprofile/extension/consoleextension/internal/store"
)

const (
	// reportBytes is the maximum size of a report, in bytes. The report lists the names
	// of the profiles that do not fit.
	reportBytes = 8 << 20
	// reportRows is the maximum number of functions in each of the two lists, which are
	// sorted by self and by total.
	reportRows = 100
)

// reportPage contains the data for report.html.
type reportPage struct {
	Page    openingPage
	Policy  string // content security policy of the file
	Styles  []template.CSS
	Scripts []template.JS
	Views   []*profileView
	LeftOut []string
	Link    string // URL of the page that the report shows
}

// report serves an opening as one HTML file. The file can be viewed without a server.
func (s *Server) report(w http.ResponseWriter, r *http.Request, o store.Opening, q openingQuery) error {
	q = openingQuery{opening: o.ID, Against: q.Against, Rows: reportRows, report: "-1"}
	p, err := s.openingPage(r.Context(), o, q)
	if err != nil {
		return err
	}
	report := reportPage{Page: p, Link: origin(r) + openingQuery{opening: o.ID, Against: q.Against}.url("")}
	report.embed()
	if err := s.addViews(r.Context(), o, q, &report); err != nil {
		return err
	}
	w.Header().Set("Content-Disposition", `attachment; filename="`+fileName(o, "report")+`.html"`)
	return s.render(w, page{Template: "report", Title: unitName(o.Unit) + ", " + plainTime(o.Triggered), Data: report})
}

// embed puts the styles and scripts into the file. The content security policy of the
// file allows only these styles and scripts.
func (report *reportPage) embed() {
	hashes := func(files []string, add func(string)) (list string) {
		for _, name := range files {
			text, _ := staticFS.ReadFile("static/" + name) // cannot fail
			sum := sha256.Sum256(text)
			list += " 'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"
			add(string(text))
		}
		return list
	}
	styles := hashes([]string{"console.css", "flame.css", "peers.css"}, func(text string) {
		report.Styles = append(report.Styles, template.CSS(text)) //nolint:gosec // ours
	})
	scripts := hashes([]string{"console.js", "flame.js", "opening.js"}, func(text string) {
		report.Scripts = append(report.Scripts, template.JS(text)) //nolint:gosec // ours
	})
	report.Policy = "default-src 'none'; base-uri 'none'; form-action 'none'; script-src" + scripts + "; style-src" + styles
}

// addViews adds the profiles of the opening to the report, as far as they fit.
func (s *Server) addViews(ctx context.Context, o store.Opening, q openingQuery, report *reportPage) error {
	room, title := reportBytes, ""
	for _, info := range sortProfiles(o.Profiles) {
		name := profileTitle(info.ProfileKey, o.Profiles)
		if name == title {
			continue // only the first of several moments is included
		}
		title = name
		q.Profile, q.report = info.ProfileKey, "-"+strconv.Itoa(len(report.Views)+1)
		view, size, err := s.reportView(ctx, o, q)
		switch {
		case err != nil && lost(err) == "":
			return err
		case err != nil || size > room: // damaged, removed meanwhile, or too large
			report.LeftOut = append(report.LeftOut, title)
			continue
		}
		room -= size
		report.Views = append(report.Views, view)
	}
	return nil
}

// reportView returns a profile with its flame graph and tables. size is the estimated
// size of the view in the file, in bytes.
func (s *Server) reportView(ctx context.Context, o store.Opening, q openingQuery) (view *profileView, size int, err error) {
	if view, err = s.view(ctx, o, q); err != nil {
		return nil, 0, err
	}
	t := view.query.Table(flame.BySelf, "", reportRows)
	for _, r := range view.query.Table(flame.ByTotal, "", reportRows).Rows {
		if !slices.ContainsFunc(t.Rows, func(listed flame.Row) bool { return listed.Name == r.Name }) {
			t.Rows = append(t.Rows, r)
		}
	}
	view.Rows = view.functions(t)
	var b bytes.Buffer
	_ = view.query.Tree().WriteJSON(&b, view.Compared) // a buffer cannot fail
	view.Embedded = template.JS(b.String())            //nolint:gosec // numbers, and texts that encoding/json has quoted
	size = b.Len()
	for _, row := range view.Rows {
		size += len(row.Name) + len(row.Place) + 1000
	}
	return view, size, nil
}
