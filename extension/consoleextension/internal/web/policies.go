// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package web

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/hotprofile/hotprofile/extension/consoleextension/internal/policyfile"
	"github.com/hotprofile/hotprofile/extension/consoleextension/internal/store"
	"github.com/hotprofile/hotprofile/extension/hotunitsextension"
)

const (
	// changesShown and refusalsShown are the maximum numbers of rows in
	// the tables of the page.
	changesShown, refusalsShown = 50, 50
	// versionsShown is the maximum number of hosts whose policy version is
	// shown at the top of the page.
	versionsShown = 10
	// maxPolicyForm is the maximum size of a form with a policy file, in bytes. URL
	// encoding can turn one byte into three bytes.
	maxPolicyForm = 3*hotunitsextension.MaxPolicyFile + maxForm
)

// policiesPage contains the data for policies.html.
type policiesPage struct {
	Policies     []policyRow
	Versions     []store.PolicyChange // versions on hosts that reload policies at run time
	MoreVersions int
	Changes      []store.PolicyChange
	MoreChanges  int
	Refusals     []store.Refusal // newest refusals
	Kept         time.Duration
	File         *filePart // nil without policies_file
	Partial      bool      // a part of the store could not be read
}

// policyRow is a policy in the table.
type policyRow struct {
	store.PolicySummary
	Unmatched string // why the policy matches no unit; empty if it matches a unit
}

type counted struct {
	What  string
	Count int
}

// filePart describes the policy file and its editor.
type filePart struct {
	Path     string
	Readers  []hotunitsextension.PolicyFile
	Doc      policyfile.Document
	Err      string // why the file cannot be read
	Refused  string // faults that the readers find in the file
	ReadOnly string // why the file cannot be edited; empty if it can be edited

	Form    *policyForm // nil if the file cannot be edited
	Text    string      // text in the editor
	Version string      // version that the text is based on
	Faults  []string
	Doubts  []string // probable mistakes in the text
	Checked bool     // the text has no faults
	Saved   bool     // the file still has the version that was saved
	Changed bool     // another writer changed the file after the editor read it
	// Took lists the policy changes in which collectors adopted this version.
	Took []store.PolicyChange
}

// policies serves the page of policies.
func (s *Server) policies(w http.ResponseWriter, r *http.Request) error {
	file := s.file(r.Context())
	if file != nil {
		file.Saved = r.URL.Query().Get("saved") == file.Doc.Version && file.Err == ""
	}
	return s.renderPolicies(w, r, file, http.StatusOK)
}

// file returns the current policy file. The editor contains the
// unchanged text of the file.
func (s *Server) file(ctx context.Context) *filePart {
	if s.Policies == nil {
		return nil
	}
	f := &filePart{Path: s.Policies.Path, Readers: s.Policies.Readers()}
	if err := s.Policies.Editable(); err != nil {
		f.ReadOnly = err.Error()
	}
	doc, err := s.Policies.Read(ctx)
	if err != nil {
		f.Err = err.Error()
		f.ReadOnly = cmp.Or(f.ReadOnly, "it cannot be read")
	}
	f.Doc, f.Text, f.Version = doc, string(doc.Text), doc.Version
	var invalid *policyfile.InvalidError
	if err == nil && errors.As(s.Policies.Check(doc.Text), &invalid) {
		f.Refused = invalid.Error()
	}
	return f
}

// savePolicies handles the buttons of the editor. Depending on the button, it checks the
// text, saves the text, or puts the policy of the form into the text.
func (s *Server) savePolicies(w http.ResponseWriter, r *http.Request) error {
	if s.Policies == nil {
		return failure{http.StatusNotFound, "No file of policies is configured: set policies_file."}
	}
	// Browsers send lines with CRLF.
	text := strings.ReplaceAll(r.PostForm.Get("text"), "\r\n", "\n")
	from := r.PostForm.Get("version")
	do, picked, _ := strings.Cut(r.PostForm.Get("do"), ":")
	var form *policyForm
	var err error
	switch do {
	case "pick":
		form = newPolicyForm(text, picked)
	case "put":
		form = newPolicyForm(text, r.PostForm.Get("editing"))
		put, ok := form.put(text, r.PostForm)
		if ok {
			text, form = put, newPolicyForm(put, form.Name)
			err = s.Policies.Check([]byte(text))
		}
	case "save":
		err = s.Policies.Save(r.Context(), from, []byte(text))
	default:
		err = s.Policies.Check([]byte(text))
	}
	if err == nil && do == "save" {
		version := hotunitsextension.PolicyVersion([]byte(text))
		s.Logger.Info("policy file saved by the console", zap.String("file", s.Policies.Path), zap.String("version", version), zap.String("before", cutText(12, from)))
		http.Redirect(w, r, "/policies?saved="+version+"#file", http.StatusSeeOther)
		return nil
	}
	file := s.file(r.Context())
	file.Text, file.Version, file.Form = text, from, form
	var invalid *policyfile.InvalidError
	status := http.StatusOK
	switch {
	case form != nil && len(form.Faults) > 0:
		status = http.StatusUnprocessableEntity
	case err == nil:
		file.Checked = do != "pick"
	case errors.As(err, &invalid):
		status = http.StatusUnprocessableEntity
		file.Faults = strings.Split(invalid.Error(), "\n")
	case errors.Is(err, policyfile.ErrChanged):
		status = http.StatusConflict
		file.Changed = true
		file.Version = file.Doc.Version // so that the user can overwrite the other version
	case errors.Is(err, policyfile.ErrNotEditable), errors.Is(err, policyfile.ErrNoReader):
		status = http.StatusForbidden
		file.Faults = []string{err.Error()}
	default:
		status = http.StatusInternalServerError
		file.Faults = []string{err.Error()}
		s.Logger.Error("policy file not saved by the console", zap.String("file", s.Policies.Path), zap.Error(err))
	}
	return s.renderPolicies(w, r, file, status)
}

func (s *Server) renderPolicies(w http.ResponseWriter, r *http.Request, file *filePart, status int) error {
	ctx, cancel := context.WithTimeout(r.Context(), partTimeout)
	defer cancel()
	changes, err := s.Store.PolicyChanges(ctx)
	instances, err2 := s.Store.Instances(ctx)
	refusals, err3 := s.Store.Refusals(ctx, "", refusalsShown)
	p := policiesPage{File: file, Refusals: refusals, Kept: s.Store.Usage().MaxAge, Partial: s.partial(r, errors.Join(err, err2, err3))}
	p.Versions, p.MoreVersions = first(versionsShown, versions(changes, instances))
	for _, policy := range s.Store.Policies() {
		p.Policies = append(p.Policies, policyRow{PolicySummary: policy})
	}
	if file != nil {
		file.Doubts = s.Policies.Doubts([]byte(file.Text))
		inFile, _ := policyfile.Policies(file.Doc.Text) // faults are shown beside the text
		for _, policy := range inFile {
			p.row(policy.Name) // units may not use it yet
		}
	}
	p.unmatched(changes, instances)
	changes = slices.DeleteFunc(slices.Clone(changes), func(c store.PolicyChange) bool { return c.Unmatched != "" })
	if file != nil {
		s.fillForm(file)
		file.Took = slices.DeleteFunc(slices.Clone(changes), func(c store.PolicyChange) bool { return c.Version != file.Doc.Version })
	}
	p.Changes, p.MoreChanges = first(changesShown, changes)
	return s.render(w, page{
		Template: "policies", Title: "Policies", Section: "/policies", Status: status, Data: p,
		Refresh: status == http.StatusOK && r.Method == http.MethodGet, // a refresh would lose the text in the editor
	})
}

// row finds or adds the row of a policy.
func (p *policiesPage) row(name string) *policyRow {
	i := slices.IndexFunc(p.Policies, func(row policyRow) bool { return row.Name == name })
	if i < 0 {
		i = len(p.Policies)
		p.Policies = append(p.Policies, policyRow{PolicySummary: store.PolicySummary{Name: name}})
	}
	return &p.Policies[i]
}

// unmatched adds the policies that match no unit. It ignores events from before the last
// start or the last policy change of a host.
func (p *policiesPage) unmatched(changes []store.PolicyChange, instances []store.Instance) {
	since := map[string]time.Time{}
	for _, i := range instances {
		if i.First.After(since[i.Host]) {
			since[i.Host] = i.First
		}
	}
	for _, c := range changes { // newest first
		if c.Unmatched == "" {
			if c.At.After(since[c.Host]) {
				since[c.Host] = c.At
			}
			continue
		}
		if !c.At.Before(since[c.Host]) {
			if row := p.row(c.Unmatched); len(row.Units) == 0 {
				row.Unmatched = c.Why
			}
		}
	}
}

// ByHand reports whether gates were opened only by hand or by alerts.
func (row policyRow) ByHand() bool {
	return len(row.Conditions) == 0 && row.Opened["hot"] == 0 && row.Opened["baseline"] == 0 && sum(row.Opened) > 0 && len(countedIn(row.Refused, "dry run")) == 0
}

// countedIn returns the counts that are not 0, largest first, without the count of except.
func countedIn(counts map[string]int, except string) (found []counted) {
	for _, what := range slices.Sorted(maps.Keys(counts)) {
		if n := counts[what]; n > 0 && what != except {
			found = append(found, counted{what, n})
		}
	}
	slices.SortStableFunc(found, func(a, b counted) int { return cmp.Compare(b.Count, a.Count) })
	return found
}

// versions returns one policy change per host, with the version in force, sorted
// by host. The version comes from the newest policy change or from the
// collector's own metric, whichever is newer. The metric contains the version as
// soon as the collector has started.
func versions(changes []store.PolicyChange, instances []store.Instance) []store.PolicyChange {
	by := map[string]store.PolicyChange{}
	newer := func(c store.PolicyChange) {
		if last, ok := by[c.Host]; c.Version != "" && (!ok || c.At.After(last.At)) {
			by[c.Host] = c
		}
	}
	for _, c := range changes {
		newer(c)
	}
	for _, i := range instances {
		for _, m := range i.Metrics {
			// Versions that are no longer in force still have old points.
			if nameOf(m) == "cpu_trigger.policies" && m.Attributes["version"] != "configuration" {
				newer(store.PolicyChange{Host: i.Host, Version: m.Attributes["version"], At: m.At})
			}
		}
	}
	return slices.SortedFunc(maps.Values(by), func(a, b store.PolicyChange) int { return cmp.Compare(a.Host, b.Host) })
}
