// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package web contains the pages of the console.
//
// A page consists of one line of [Server.routes], a method that reads the store and
// calls [Server.render], and a file in templates that defines "content". The file may also
// define "styles" and "scripts", which load files in static. A page loads only files of
// this server. It has no inline scripts or styles, because the content security policy
// blocks them.
package web

import (
	"cmp"
	"context"
	"embed"
	"errors"
	"fmt"
	"html/template"
	"io/fs"
	"net/http"
	"path"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/hotprofile/hotprofile/extension/consoleextension/internal/policyfile"
	"github.com/hotprofile/hotprofile/extension/consoleextension/internal/store"
)

// securityPolicy allows a page to load scripts and styles only from this server, and to
// send requests only to this server.
const securityPolicy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; " +
	"connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"

// readTimeout is the maximum time that a page waits for the store, and that the change of a
// form takes.
const readTimeout = 10 * time.Second

// partTimeout is the maximum time that a page waits for parts of the store that the page can
// do without.
const partTimeout = 2 * time.Second

//go:embed templates
var templateFiles embed.FS

// Options configure the pages.
type Options struct {
	Store  store.Reader
	Logger *zap.Logger      // nil means no logging
	Now    func() time.Time // nil means time.Now
	// Version is the version of the collector, for the page footer.
	Version string
	// TraceURL is the URL of a span in a tracing backend. It must have passed IsTraceURL. If
	// it is empty, pages have no links to spans.
	TraceURL string

	// Token is the token that the forms of all pages contain. If Token is empty, pages
	// offer no changes.
	Token string
	// CanProfile reports whether a page can open the gate of a unit. If CanProfile is nil,
	// pages cannot open gates.
	CanProfile func(store.Unit) bool
	// Profile opens the gate of a unit manually.
	Profile func(context.Context, store.Unit) error
	// Policies is the policy file that the policies page shows. It may be nil.
	Policies *policyfile.File
	// Own describes the collector in which the console runs. It may be nil.
	Own func() Own
	// CountRefused counts a refused request by its reason.
	CountRefused func(reason string)

	// readTimeout replaces the constant readTimeout in tests.
	readTimeout time.Duration
}

// Server handles the requests of browsers.
type Server struct {
	Options
	static    staticFiles
	stacks    *stacksCache
	answers   *answers
	templates map[string]*template.Template // by file name, without .html
}

// A handler writes a response or returns an error. After an error, the browser receives an
// error page. The page's status is 404 for store.ErrNotFound and store.ErrDamaged, the
// status of a failure, 503 for a timeout, and 500 for any other error.
type handler func(http.ResponseWriter, *http.Request) error

// routes returns the handlers of pages, of forms, and of files that pages load. The keys
// are patterns of http.ServeMux. The route of static files is not included.
func (s *Server) routes() map[string]handler {
	return map[string]handler{
		"GET /{$}":                         s.openings,
		"GET /units":                       s.units,
		"GET /units/{id}":                  s.unit,
		"GET /units/{id}/trends.json":      s.trends,
		"POST /units/{id}/profile":         s.form(maxForm, s.profileNow),
		"GET /openings/{id}":               s.ofOpening(s.opening),
		"GET /openings/{id}/flame.json":    s.ofOpening(s.flameJSON),
		"GET /openings/{id}/profile.pb.gz": s.ofOpening(s.profileFile),
		"GET /openings/{id}/report.html":   s.ofOpening(s.report),
		"GET /policies":                    s.policies,
		"POST /policies":                   s.form(maxPolicyForm, s.savePolicies),
		"GET /health":                      s.health,
	}
}

// page is the data that every template gets. The caller of [Server.render] sets the first
// fields.
type page struct {
	Template string // name of the file in templates, without .html
	Title    string
	// Section is the URL of the navigation link that is marked as current.
	Section string
	Status  int // 0 means 200
	// If Refresh is true, the page offers to reload itself every 10 seconds. A reload
	// replaces the content of each element that has the attribute data-live. The new
	// content comes from the element of the new page with the same ID.
	Refresh bool
	Data    any

	// Version, Token and Now are set by [Server.render].
	Version, Token string
	Now            time.Time
}

// failure is an error that the browser receives as a status code and a message.
type failure struct {
	status int
	text   string
}

func (f failure) Error() string { return f.text }

// New returns the handler of all pages.
func New(options Options) http.Handler {
	if options.Now == nil {
		options.Now = time.Now
	}
	options.Logger = cmp.Or(options.Logger, zap.NewNop())
	options.readTimeout = cmp.Or(options.readTimeout, readTimeout)
	s := &Server{Options: options, static: newStaticFiles(), stacks: newStacksCache(), answers: newAnswers()}
	s.templates = parseTemplates(s.functions())
	mux := http.NewServeMux()
	for pattern, h := range s.routes() {
		mux.Handle(pattern, s.answer(h))
	}
	mux.Handle("GET /static/", s.static)
	mux.Handle("/", s.answer(func(http.ResponseWriter, *http.Request) error { return store.ErrNotFound }))
	return secured(s.sameOrigin(mux))
}

// parseTemplates returns one template for each file in templates. Each template includes
// layout.html, which report.html replaces, and the definitions in templates/parts.
func parseTemplates(functions template.FuncMap) map[string]*template.Template {
	templates := map[string]*template.Template{}
	names, _ := fs.Glob(templateFiles, "templates/*.html") // the pattern is valid
	for _, name := range names {
		t := template.New("layout.html").Funcs(functions)
		templates[strings.TrimSuffix(path.Base(name), ".html")] = template.Must(t.ParseFS(templateFiles, "templates/layout.html", "templates/parts/*.html", name))
	}
	return templates
}

// secured returns a handler that sets the security headers, which restrict what pages can
// do in the browser.
func secured(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", securityPolicy)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("X-Frame-Options", "DENY")
		h.Set("Referrer-Policy", "same-origin")
		h.Set("Cross-Origin-Opener-Policy", "same-origin")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		h.Set("Cache-Control", "no-store")
		next.ServeHTTP(w, r)
	})
}

// answer returns a handler that calls h with a deadline. If identical GET or HEAD
// requests wait at the same time, the response is computed once for all of them.
func (s *Server) answer(h handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), s.readTimeout)
		defer cancel()
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			a := newAnswer(ctx)
			s.serve(h, a, r.WithContext(ctx))
			a.finish()
			a.writeTo(w)
			return
		}
		key := r.Host + r.URL.RequestURI()
		a, err := s.answers.get(ctx, key, s.readTimeout, func(ctx context.Context, w http.ResponseWriter) { s.serve(h, w, r.WithContext(ctx)) })
		if err != nil {
			w.Header().Set("Retry-After", "5")
			s.fail(w, failure{http.StatusServiceUnavailable, "The console answers others at the moment. Load the page again."})
			return
		}
		defer s.answers.release(a)
		a.writeTo(w)
	})
}

// serve calls a handler. If the handler fails, serve answers with an error page.
func (s *Server) serve(h handler, w http.ResponseWriter, r *http.Request) {
	err := h(w, r)
	if err == nil {
		return
	}
	f := failure{http.StatusInternalServerError, "The page could not be built. The collector's log has the reason."}
	switch {
	case errors.As(err, &f):
	case errors.Is(err, store.ErrNotFound):
		f = failure{http.StatusNotFound, "There is nothing here, or no longer: the console keeps units and openings for a limited time."}
	case errors.Is(err, store.ErrDamaged):
		f = failure{http.StatusNotFound, "The files of this profile are damaged."}
	case r.Context().Err() != nil:
		f = failure{http.StatusServiceUnavailable, "The store did not answer in time. Load the page again."}
		s.Logger.Warn("console page not built in time", zap.String("path", cutText(200, r.URL.Path)), zap.Error(err))
	default:
		s.logFailure(r, err)
	}
	s.fail(w, f)
}

// logFailure logs why a page, or a part of a page, cannot be shown.
func (s *Server) logFailure(r *http.Request, err error) {
	s.Logger.Error("console page failed", zap.String("path", cutText(200, r.URL.Path)), zap.Error(err))
}

// partial logs an error of the store that a page can do without. It reports whether there
// is an error.
func (s *Server) partial(r *http.Request, err error) bool {
	if err != nil {
		s.logFailure(r, err)
	}
	return err != nil
}

// fail answers with an error page.
func (s *Server) fail(w http.ResponseWriter, f failure) {
	if a, ok := w.(*answer); ok {
		a.body.Reset()
		clear(a.header)
		a.ctx = context.WithoutCancel(a.ctx)
	}
	p := page{Template: "error", Title: http.StatusText(f.status), Status: f.status, Data: f.text}
	if err := s.render(w, p); err != nil {
		http.Error(w, f.text, f.status)
	}
}

// render writes a page. If the template fails, render returns an error. The caller can
// then replace the partial page in an [answer] with an error page.
func (s *Server) render(w http.ResponseWriter, p page) error {
	p.Version, p.Token, p.Now = s.Version, s.Token, s.Now()
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(cmp.Or(p.Status, http.StatusOK))
	if err := s.templates[p.Template].ExecuteTemplate(w, "layout.html", p); err != nil {
		return fmt.Errorf("web: page %s: %w", p.Template, err)
	}
	return nil
}
