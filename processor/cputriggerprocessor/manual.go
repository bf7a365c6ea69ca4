// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package cputriggerprocessor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"reflect"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/config/confighttp"
	"go.uber.org/zap"

	"github.com/hotprofile/hotprofile/internal/httplisten"
	"github.com/hotprofile/hotprofile/internal/trigger"
)

const (
	manualPath = "/v1/trigger"

	minManualDuration = time.Second
	maxManualDuration = 24 * time.Hour

	// What a request may be at most: it has two short parameters. Connections
	// beyond the bound wait in the kernel's queue until one is done.
	maxManualUnit        = 512
	maxManualBody        = 4 << 10
	maxManualHeader      = 16 << 10
	maxManualConnections = 64

	// retryOverBudget is when to ask again for what a budget did not allow: the
	// spending of an hour gets less by the minute, and gates close.
	retryOverBudget = time.Minute
)

// manualFire opens the gate of a unit for a time, or prolongs it. What it may
// fail with is noSuchUnit, a trigger.OverBudgetError and errShutdown; anything
// else is a fault of ours.
type manualFire func(ctx context.Context, unit string, d time.Duration) (manualResult, error)

// manualResult is what a gate opened by hand is answered with.
type manualResult struct {
	TriggerID string    `json:"trigger_id"`
	Unit      string    `json:"unit"`
	Until     time.Time `json:"until"`
}

// refusal is why a gate is not opened by hand.
type refusal struct {
	status int
	why    string
}

func (r *refusal) Error() string { return r.why }

// noSuchUnit refuses because nothing here goes by that name.
func noSuchUnit(unit, why string) error {
	return &refusal{status: http.StatusNotFound, why: fmt.Sprintf("no unit %q: %s", unit, why)}
}

func badRequest(format string, args ...any) error {
	return &refusal{status: http.StatusBadRequest, why: fmt.Sprintf(format, args...)}
}

// defaultManual is the server of `manual` before what the user wrote: off, for
// want of an endpoint, and without patience, since its requests are tiny.
func defaultManual() confighttp.ServerConfig {
	cfg := confighttp.NewDefaultServerConfig()
	cfg.ReadHeaderTimeout = 5 * time.Second
	cfg.ReadTimeout = 10 * time.Second
	cfg.WriteTimeout = 10 * time.Second
	cfg.IdleTimeout = 30 * time.Second
	cfg.MaxRequestBodySize = maxManualBody
	cfg.CompressionAlgorithms = []string{""} // none
	return cfg
}

// validateManual returns every fault, each with its key and what is allowed.
// Without an endpoint there is no server.
func validateManual(cfg *confighttp.ServerConfig) error {
	if cfg.NetAddr.Endpoint == "" {
		if reflect.DeepEqual(*cfg, defaultManual()) {
			return nil
		}
		return errors.New("manual.endpoint: must be set for the other keys of manual, such as localhost:4041, or a path with transport: unix")
	}
	var errs []error
	fault := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if err := httplisten.ValidateAddr("manual.", cfg.NetAddr, "localhost:4041"); err != nil {
		errs = append(errs, err)
	}
	if cfg.CORS.HasValue() {
		for _, origin := range cfg.CORS.Get().AllowedOrigins {
			if err := http.NewCrossOriginProtection().AddTrustedOrigin(origin); err != nil {
				fault("manual.cors.allowed_origins: %q is not scheme://host[:port]; any website of another origin could open gates", origin)
			}
		}
	}
	return errors.Join(errs...)
}

// manual opens gates by hand, for those who ask over HTTP.
type manual struct {
	cfg      confighttp.ServerConfig
	fallback time.Duration // where a request names no duration
	fire     manualFire
	log      *zap.Logger
	server   *httplisten.Server // nil until started
}

func newManual(cfg confighttp.ServerConfig, fallback time.Duration, fire manualFire, log *zap.Logger) *manual {
	return &manual{cfg: cfg, fallback: fallback, fire: fire, log: log}
}

// start starts the server.
func (m *manual) start(ctx context.Context, host component.Host, set component.TelemetrySettings) error {
	protected, err := m.protect(m)
	if err != nil {
		return err
	}
	server := httplisten.New(httplisten.Config{
		Key:     "manual",
		HTTP:    m.cfg,
		Handler: protected,
		WriteError: func(w http.ResponseWriter, _ *http.Request, why string, status int) {
			answerError(w, &refusal{status: status, why: why})
		},
		MaxConnections: maxManualConnections,
		MaxHeaderBytes: maxManualHeader,
		SocketMode:     0o600, // for the collector's own user
	})
	if err := server.Start(ctx, host, set); err != nil {
		return err
	}
	m.server = server
	m.log.Info("manual trigger server listening",
		zap.String("transport", string(m.cfg.NetAddr.Transport)), zap.Stringer("endpoint", server.Addr()), zap.String("path", manualPath))
	return nil
}

// shutdown waits for the requests under way until the context ends. It may be
// called without start, and twice.
func (m *manual) shutdown(ctx context.Context) error {
	if m.server == nil {
		return nil
	}
	return m.server.Shutdown(ctx)
}

// protect refuses what a browser sends for a website of another origin, which
// reaches servers on localhost too.
func (m *manual) protect(next http.Handler) (http.Handler, error) {
	protection := http.NewCrossOriginProtection()
	if m.cfg.CORS.HasValue() {
		for _, origin := range m.cfg.CORS.Get().AllowedOrigins {
			if err := protection.AddTrustedOrigin(origin); err != nil {
				return nil, fmt.Errorf("manual.cors.allowed_origins: %w", err)
			}
		}
	}
	protection.SetDenyHandler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		answerError(w, &refusal{status: http.StatusForbidden, why: "a website of another origin may not open gates; allow its origin by manual.cors.allowed_origins"})
	}))
	return protection.Handler(next), nil
}

// ServeHTTP answers one request.
func (m *manual) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	result, err := m.answer(w, r)
	if err == nil {
		answerJSON(w, http.StatusOK, result)
		return
	}
	if answerError(w, err) == http.StatusInternalServerError {
		m.log.Error("manual trigger failed", zap.Error(err))
	}
}

func (m *manual) answer(w http.ResponseWriter, r *http.Request) (manualResult, error) {
	if r.URL.Path != manualPath {
		return manualResult{}, &refusal{status: http.StatusNotFound, why: "there is nothing but POST " + manualPath}
	}
	if r.Method != http.MethodPost {
		w.Header().Set("Allow", http.MethodPost)
		return manualResult{}, &refusal{status: http.StatusMethodNotAllowed, why: "use POST " + manualPath}
	}
	params, err := manualParams(w, r)
	if err != nil {
		return manualResult{}, err
	}
	unit, duration, err := parseManual(params, m.fallback)
	if err != nil {
		return manualResult{}, err
	}
	result, err := m.fire(r.Context(), unit, duration)
	result.Until = result.Until.UTC()
	return result, err
}

// manualParams are the parameters of the query and of a form as the body.
func manualParams(w http.ResponseWriter, r *http.Request) (url.Values, error) {
	r.Body = http.MaxBytesReader(w, r.Body, maxManualBody)
	if kind, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type")); kind != "application/x-www-form-urlencoded" {
		// What another kind of body says would be ignored, so none may come.
		if n, _ := io.ReadFull(r.Body, make([]byte, 1)); n > 0 {
			return nil, badRequest("the body is %q and must be application/x-www-form-urlencoded, or empty with the parameters in the query", cut(r.Header.Get("Content-Type")))
		}
	}
	var tooLarge *http.MaxBytesError
	switch err := r.ParseForm(); {
	case errors.As(err, &tooLarge):
		return nil, &refusal{status: http.StatusRequestEntityTooLarge, why: fmt.Sprintf("the body is larger than %d bytes", tooLarge.Limit)}
	case err != nil:
		return nil, badRequest("read the parameters: %v", err)
	}
	return r.Form, nil
}

// parseManual reads and checks the parameters of a request.
func parseManual(params url.Values, fallback time.Duration) (unit string, d time.Duration, err error) {
	for name, values := range params {
		switch {
		case name != "unit" && name != "duration":
			return "", 0, badRequest("unknown parameter %q: there are unit and duration", cut(name))
		case len(values) != 1:
			return "", 0, badRequest("%s: given %d times, must be given once", name, len(values))
		}
	}
	unit = params.Get("unit")
	switch {
	case unit == "":
		return "", 0, badRequest("unit: must be set to a container's id, a cgroup's path or a pid")
	case len(unit) > maxManualUnit:
		return "", 0, badRequest("unit: has %d bytes, must have at most %d", len(unit), maxManualUnit)
	case !utf8.ValidString(unit) || strings.ContainsFunc(unit, unicode.IsControl):
		return "", 0, badRequest("unit: %q is not a container's id, a cgroup's path or a pid", unit)
	}
	if !params.Has("duration") {
		return unit, fallback, nil
	}
	d, err = time.ParseDuration(params.Get("duration"))
	if err != nil {
		return "", 0, badRequest("duration: %q is not a duration such as 30s", cut(params.Get("duration")))
	}
	if d < minManualDuration || d > maxManualDuration {
		return "", 0, badRequest("duration: %v is not between %v and %v", d, minManualDuration, maxManualDuration)
	}
	return unit, d, nil
}

func answerError(w http.ResponseWriter, err error) (status int) {
	answer := struct {
		Error  string `json:"error"`
		Budget string `json:"budget,omitempty"`
	}{Error: err.Error()}
	status = http.StatusInternalServerError
	var known *refusal
	var over *trigger.OverBudgetError
	switch {
	case errors.As(err, &known):
		status = known.status
	case errors.As(err, &over):
		status, answer.Budget = http.StatusTooManyRequests, over.Budget
		w.Header().Set("Retry-After", strconv.Itoa(int(retryOverBudget.Seconds())))
	case errors.Is(err, errShutdown), errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
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
	// Whoever asked may be gone: there is no one to tell.
	_ = json.NewEncoder(w).Encode(answer)
}
