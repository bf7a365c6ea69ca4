// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package manual is an HTTP server that opens and closes gates by hand and by alert. It
// parses and validates requests. The caller's functions open and close the gates.
package manual

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
	"unicode"
	"unicode/utf8"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/config/confighttp"
	"go.uber.org/zap"

	"github.com/hotprofile/hotprofile/internal/cgroup"
	"github.com/hotprofile/hotprofile/internal/httplisten"
	"github.com/hotprofile/hotprofile/internal/trigger"
	"github.com/hotprofile/hotprofile/internal/trigger/budget"
	"github.com/hotprofile/hotprofile/internal/truncate"
)

const (
	triggerPath = "/v1/trigger"

	maxConnections = 64
	maxHeader      = 16 << 10

	// retryAfter is the Retry-After header of a request that is over budget. After a minute,
	// the budgets may have room again, because spending from more than an hour ago has
	// expired or other gates have closed.
	retryAfter = time.Minute
)

// Opened is the answer to a request that opened a gate.
type Opened struct {
	TriggerID string    `json:"trigger_id"`
	Unit      string    `json:"unit"`
	Until     time.Time `json:"until"`
	// LostUnit becomes true if the unit disappears before the end of an opening by alert.
	// It is nil for other openings.
	LostUnit *atomic.Bool `json:"-"`
}

// Closed is the answer to a request that closed a gate.
type Closed struct {
	TriggerID string    `json:"trigger_id"`
	Unit      string    `json:"unit"`
	Closed    time.Time `json:"closed"`
	// StillOpen lists the policies that still hold the unit's gate open.
	StillOpen []string `json:"still_open,omitempty"`
}

// ErrNotOpen is returned if there is no opening to close.
var ErrNotOpen = errors.New("the unit has no gate that was opened by hand")

// ErrShutdown is returned for requests after the shutdown.
var ErrShutdown = errors.New("cpu_trigger was shut down: gates no longer open")

// refusal is an error with the HTTP status code of the response.
type refusal struct {
	status int
	why    string
}

func (r *refusal) Error() string { return r.why }

// NoSuchUnitError is returned for a unit that does not exist on this host.
type NoSuchUnitError struct{ Unit, Why string }

func (e *NoSuchUnitError) Error() string { return fmt.Sprintf("no unit %q: %s", e.Unit, e.Why) }

func badRequest(format string, args ...any) error {
	return &refusal{status: http.StatusBadRequest, why: fmt.Sprintf(format, args...)}
}

// Server opens and closes gates for HTTP requests.
type Server struct {
	cfg      confighttp.ServerConfig
	fallback time.Duration // duration of requests that set no duration
	gates    func() Gates
	log      *zap.Logger
	alerts   *Alerts
	cgroups  *cgroup.Tree       // nil if control groups cannot be read
	server   *httplisten.Server // nil before Start
}

// NewServer returns a server that has not been started. Requests without a duration use
// fallback. gates is called for each request to open or close a gate by hand. cgroups is
// nil if control groups cannot be read.
func NewServer(cfg confighttp.ServerConfig, fallback time.Duration, gates func() Gates, alerts *Alerts, cgroups *cgroup.Tree, log *zap.Logger) *Server {
	return &Server{cfg: cfg, fallback: fallback, gates: gates, alerts: alerts, cgroups: cgroups, log: log}
}

// Start starts the server.
func (m *Server) Start(ctx context.Context, host component.Host, set component.TelemetrySettings) error {
	server := httplisten.New(httplisten.Config{
		Key:     "manual",
		HTTP:    m.cfg,
		Handler: m.protect(m),
		WriteError: func(w http.ResponseWriter, _ *http.Request, why string, status int) {
			answerError(w, &refusal{status: status, why: why})
		},
		MaxConnections: maxConnections,
		Cgroups:        m.cgroups,
		MaxHeaderBytes: maxHeader,
		SocketMode:     0o600, // only the collector's user
	})
	if err := server.Start(ctx, host, set); err != nil {
		return err
	}
	m.server = server
	m.log.Info("manual trigger server listening",
		zap.String("transport", string(m.cfg.NetAddr.Transport)), zap.Stringer("endpoint", server.Addr()), zap.String("path", triggerPath))
	return nil
}

// Shutdown stops the server. It waits until running requests have ended or the context
// ends. It may be called before Start, and more than once.
func (m *Server) Shutdown(ctx context.Context) error {
	if m.server == nil {
		return nil
	}
	return m.server.Shutdown(ctx)
}

// Stats returns the numbers of connections and requests that the server has closed or
// refused. Call it only after Start.
func (m *Server) Stats() httplisten.Stats { return m.server.Stats() }

// protect returns a handler that rejects cross-origin requests from browsers. Any
// website can make a browser send such requests, even to servers on localhost.
func (m *Server) protect(next http.Handler) http.Handler {
	protection := http.NewCrossOriginProtection()
	if m.cfg.CORS.HasValue() {
		for _, origin := range m.cfg.CORS.Get().AllowedOrigins {
			_ = protection.AddTrustedOrigin(origin) // Validate has checked it
		}
	}
	protection.SetDenyHandler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		answerError(w, &refusal{status: http.StatusForbidden, why: "a website of another origin may neither open nor close gates; allow its origin by manual.cors.allowed_origins"})
	}))
	return protection.Handler(next)
}

// ServeHTTP answers one request.
func (m *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	result, err := m.answer(w, r)
	if err == nil {
		answerJSON(w, http.StatusOK, result)
		return
	}
	if answerError(w, err) == http.StatusInternalServerError {
		m.log.Error("manual trigger failed", zap.Error(err))
	}
}

func (m *Server) answer(w http.ResponseWriter, r *http.Request) (any, error) {
	switch r.URL.Path {
	case triggerPath:
	case alertsPath:
		if r.Method != http.MethodPost {
			w.Header().Set("Allow", http.MethodPost)
			return nil, &refusal{status: http.StatusMethodNotAllowed, why: "use POST " + alertsPath + ", as the webhook of Alertmanager does"}
		}
		return m.alerts.answerTo(w, r)
	default:
		return nil, &refusal{status: http.StatusNotFound, why: "there is nothing but POST and DELETE " + triggerPath + ", and POST " + alertsPath}
	}
	if r.Method != http.MethodPost && r.Method != http.MethodDelete {
		w.Header().Set("Allow", http.MethodPost+", "+http.MethodDelete)
		return nil, &refusal{status: http.StatusMethodNotAllowed, why: "use POST " + triggerPath + " to open a gate, DELETE to close it"}
	}
	params, err := readParams(w, r)
	if err != nil {
		return nil, err
	}
	name, duration, err := parse(params, m.fallback, r.Method == http.MethodDelete)
	if err != nil {
		return nil, err
	}
	gates := m.gates()
	found, why := gates.Find(Named{Name: name})
	if why != "" {
		return nil, &NoSuchUnitError{Unit: name, Why: why}
	}
	if r.Method == http.MethodDelete {
		result, err := gates.Close(found[0].Name, "")
		result.Closed = result.Closed.UTC()
		return result, err
	}
	result, _, err := gates.Open(found[0], trigger.Alert{}, duration)
	result.Until = result.Until.UTC()
	return result, err
}

func answerError(w http.ResponseWriter, err error) (status int) {
	answer := struct {
		Error  string `json:"error"`
		Budget string `json:"budget,omitempty"`
	}{Error: err.Error()}
	status = http.StatusInternalServerError
	var known *refusal
	var missing *NoSuchUnitError
	var over *budget.ExceededError
	switch {
	case errors.As(err, &known):
		status = known.status
	case errors.As(err, &missing), errors.Is(err, ErrNotOpen):
		status = http.StatusNotFound
	case errors.As(err, &over):
		status, answer.Budget = http.StatusTooManyRequests, over.Budget
		w.Header().Set("Retry-After", strconv.Itoa(int(retryAfter.Seconds())))
	case errors.Is(err, ErrShutdown), errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		status = http.StatusServiceUnavailable
	}
	answerJSON(w, status, answer)
	return status
}

func answerJSON(w http.ResponseWriter, status int, answer any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	// The client may have disconnected.
	_ = json.NewEncoder(w).Encode(answer)
}

const (
	minDuration = time.Second
	maxDuration = 24 * time.Hour

	maxUnit   = 512 // bytes
	maxBody   = 4 << 10
	maxQuoted = 256 // bytes of an invalid value that the answer repeats
)

// readParams returns the parameters from the query, and from a form in the body.
func readParams(w http.ResponseWriter, r *http.Request) (url.Values, error) {
	r.Body = http.MaxBytesReader(w, r.Body, maxBody)
	if kind, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type")); kind != "application/x-www-form-urlencoded" {
		// ParseForm ignores a body of another type, so the body must be empty.
		if n, _ := io.ReadFull(r.Body, make([]byte, 1)); n > 0 {
			return nil, badRequest("the body is %q and must be application/x-www-form-urlencoded, or empty with the parameters in the query", quotable(r.Header.Get("Content-Type")))
		}
	}
	if err := r.ParseForm(); err != nil {
		return nil, unreadable("parameters", err, "")
	}
	return r.Form, nil
}

// unreadable returns the answer to a request whose body cannot be read. If the body is
// too large, the answer contains the limit, followed by advice.
func unreadable(what string, err error, advice string) error {
	if tooLarge, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return &refusal{status: http.StatusRequestEntityTooLarge, why: fmt.Sprintf("the body is larger than %d bytes%s", tooLarge.Limit, advice)}
	}
	return badRequest("read the %s: %v", what, err)
}

// parse returns the unit and the duration of a request. A request that closes a gate has no
// duration. An unknown parameter is an error.
func parse(params url.Values, fallback time.Duration, closes bool) (unit string, d time.Duration, err error) {
	known, all := []string{"unit", "duration"}, "there are unit and duration"
	if closes {
		known, all = known[:1], "there is only unit"
	}
	for name, values := range params {
		switch {
		case !slices.Contains(known, name):
			return "", 0, badRequest("unknown parameter %q: %s", quotable(name), all)
		case len(values) != 1:
			return "", 0, badRequest("%s: given %d times, must be given once", name, len(values))
		}
	}
	unit = params.Get("unit")
	switch {
	case unit == "":
		return "", 0, badRequest("unit: must be set to a container's id, a cgroup's path or a pid")
	case len(unit) > maxUnit:
		return "", 0, badRequest("unit: has %d bytes, must have at most %d", len(unit), maxUnit)
	case !utf8.ValidString(unit) || strings.ContainsFunc(unit, unicode.IsControl):
		return "", 0, badRequest("unit: %q is not a container's id, a cgroup's path or a pid", unit)
	case !params.Has("duration"):
		return unit, fallback, nil
	}
	d, err = time.ParseDuration(params.Get("duration"))
	switch {
	case err != nil:
		return "", 0, badRequest("duration: %q is not a duration such as 30s", quotable(params.Get("duration")))
	case d < minDuration || d > maxDuration:
		return "", 0, badRequest("duration: %v is not between %v and %v", d, minDuration, maxDuration)
	}
	return unit, d, nil
}

func quotable(s string) string { return truncate.Cut(s, maxQuoted) }
