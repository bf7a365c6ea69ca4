// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package consoleextension

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/felixge/httpsnoop"
	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/config/confighttp"
	"go.opentelemetry.io/collector/config/confignet"
	"go.opentelemetry.io/collector/extension"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.uber.org/zap"

	"github.com/hotprofile/hotprofile/extension/consoleextension/internal/metadata"
	"github.com/hotprofile/hotprofile/extension/consoleextension/internal/policyfile"
	"github.com/hotprofile/hotprofile/extension/consoleextension/internal/store"
	"github.com/hotprofile/hotprofile/extension/consoleextension/internal/web"
	"github.com/hotprofile/hotprofile/extension/hotunitsextension"
	"github.com/hotprofile/hotprofile/internal/httplisten"
	"github.com/hotprofile/hotprofile/internal/otlpprofiles/attr"
)

// These constants limit the server resources that clients can use.
const (
	maxConnections = 128
	maxHeader      = 32 << 10 // URLs contain the state of a page
	// shutdownTimeout is the maximum time that Shutdown waits for requests in progress.
	shutdownTimeout = 5 * time.Second
)

// Console is the extension. It contains the store and the HTTP server of the pages. It is
// safe for concurrent use.
type Console struct {
	set       extension.Settings
	cfg       *Config
	log       *zap.Logger
	telemetry *metadata.TelemetryBuilder
	refused   map[string]*atomic.Uint64 // requests that the pages refused, by reason

	// The following fields are nil until Start.
	store  *store.Store
	server *httplisten.Server
	manual *http.Client // nil if pages cannot open gates

	mu      sync.RWMutex // held by each consumer; guards running
	running bool         // the store is open; set by Start, cleared by Shutdown
	slow    atomic.Bool  // the last write of events was late

	own
	stop sync.Once
}

func newConsole(set extension.Settings, cfg *Config) (*Console, error) {
	telemetry, err := metadata.NewTelemetryBuilder(set.TelemetrySettings)
	if err != nil {
		return nil, err
	}
	return &Console{
		set: set, cfg: cfg, log: set.Logger, telemetry: telemetry,
		refused: map[string]*atomic.Uint64{web.RefusedOrigin: {}, web.RefusedToken: {}},
		own:     own{version: set.BuildInfo.Version, started: time.Now(), statuses: map[string]web.ComponentStatus{}},
	}, nil
}

// Find returns the console extension with the given ID.
func Find(host component.Host, id component.ID) (*Console, error) {
	found, ok := host.GetExtensions()[id]
	if !ok {
		return nil, fmt.Errorf("there is no extension %q: configure it under extensions, and list it under service.extensions", id)
	}
	console, ok := found.(*Console)
	if !ok {
		return nil, fmt.Errorf("the extension %q is not a console", id)
	}
	return console, nil
}

// Dependencies returns the extensions that must start before this extension. They
// authenticate and process requests for the HTTP server, and for the client that the
// option manual configures.
func (c *Console) Dependencies() (ids []component.ID) {
	if auth := c.cfg.HTTP.Auth.Get(); auth != nil {
		ids = append(ids, auth.Config.AuthenticatorID)
	}
	middlewares := c.cfg.HTTP.Middlewares
	if client := c.cfg.Manual.Get(); client != nil {
		if auth := client.Auth.Get(); auth != nil {
			ids = append(ids, auth.AuthenticatorID)
		}
		middlewares = append(middlewares[:len(middlewares):len(middlewares)], client.Middlewares...)
	}
	for _, m := range middlewares {
		ids = append(ids, m.ID)
	}
	return ids
}

// Start opens the store and serves the pages.
func (c *Console) Start(ctx context.Context, host component.Host) error {
	if err := c.start(ctx, host); err != nil {
		return errors.Join(err, c.Shutdown(ctx))
	}
	return nil
}

func (c *Console) start(ctx context.Context, host component.Host) error {
	var err error
	c.store, err = store.Open(store.Options{
		Directory: c.cfg.Directory, MaxAge: c.cfg.MaxAge, MaxBytes: int64(c.cfg.MaxBytes), Logger: c.log,
	})
	if err != nil {
		return fmt.Errorf("directory: %w", err)
	}
	if client := c.cfg.Manual.Get(); client != nil {
		if c.manual, err = client.ToClient(ctx, host.GetExtensions(), c.set.TelemetrySettings); err != nil {
			return fmt.Errorf("manual: %w", err)
		}
	}
	c.server = httplisten.New(httplisten.Config{
		Key:             "console",
		HTTP:            c.cfg.HTTP,
		Handler:         c.measured(web.New(c.options(host))),
		WriteError:      writeError,
		MaxConnections:  maxConnections,
		MaxHeaderBytes:  maxHeader,
		ShutdownTimeout: shutdownTimeout,
		AllowedHosts:    c.names(),
		SocketMode:      0o600, // for the collector's own user
	})
	if err := c.observe(); err != nil {
		return err
	}
	if err := c.server.Start(ctx, host, c.set.TelemetrySettings); err != nil {
		return err
	}
	c.mu.Lock()
	c.running = true
	c.mu.Unlock()
	directory := c.cfg.Directory
	if absolute, err := filepath.Abs(directory); err == nil {
		directory = absolute
	}
	c.log.Info("console at "+address(c.cfg.HTTP, c.server.Addr()), zap.String("directory", directory))
	return nil
}

// options returns the options of the pages.
func (c *Console) options(host component.Host) web.Options {
	o := web.Options{
		Store: c.store, Logger: c.log, Version: c.set.BuildInfo.Version, TraceURL: c.cfg.TraceURL,
		CountRefused: func(reason string) { c.refused[reason].Add(1) }, Own: c.describe,
	}
	if path := c.cfg.PoliciesFile; path != "" {
		o.Policies = policyfile.New(path, c.cfg.Edit, readersOf(path, hotunitsextension.Find(host, c.log)))
	}
	if c.manual != nil {
		o.Profile, o.CanProfile = c.openGate, c.canOpen()
	}
	if c.cfg.Edit || c.manual != nil {
		o.Token = rand.Text()
	}
	return o
}

// readersOf returns a function that lists the current readers of a policy file. Readers
// may start and stop at any time, so the list can change between two calls.
func readersOf(path string, hot *hotunitsextension.HotUnits) func() []hotunitsextension.PolicyFile {
	return func() []hotunitsextension.PolicyFile {
		return slices.DeleteFunc(hot.PolicyFiles(), func(f hotunitsextension.PolicyFile) bool {
			own, err := filepath.Abs(f.Path)
			return err != nil || own != filepath.Clean(path)
		})
	}
}

// names returns the host names under which browsers can reach the server.
func (c *Console) names() []string {
	names := append([]string{}, c.cfg.AllowedHosts...) // not nil, so that other names are refused
	if name, err := os.Hostname(); err == nil && name != "" {
		names = append(names, name)
	}
	return names
}

// address returns the URL of the pages.
func address(cfg confighttp.ServerConfig, at net.Addr) string {
	if cfg.NetAddr.Transport == confignet.TransportTypeUnix {
		return "unix:" + at.String()
	}
	scheme := "http"
	if cfg.TLS.HasValue() {
		scheme = "https"
	}
	host, _, _ := net.SplitHostPort(cfg.NetAddr.Endpoint)
	bound, port, _ := net.SplitHostPort(at.String())
	if ip := net.ParseIP(cmp.Or(host, bound)); ip != nil && ip.IsUnspecified() {
		if name, err := os.Hostname(); err == nil {
			host = name
		}
	}
	return scheme + "://" + net.JoinHostPort(host, port)
}

// writeError writes the response to a request that the server rejects before the request
// reaches a page.
func writeError(w http.ResponseWriter, _ *http.Request, why string, status int) {
	h := w.Header()
	h.Set("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Cache-Control", "no-store")
	http.Error(w, why, status)
}

// measured returns a handler that calls next and records the duration of each request.
func (c *Console) measured(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		answer := httpsnoop.CaptureMetrics(next, w, r)
		page := cmp.Or(r.Pattern, "other") // the mux of the pages sets Pattern
		c.telemetry.ConsoleRequestDuration.Record(context.WithoutCancel(r.Context()), answer.Duration.Seconds(),
			metric.WithAttributes(attribute.String("page", page), attribute.Int(attr.HTTPStatus, answer.Code)))
	})
}

// observe registers the callbacks of the observable metrics.
func (c *Console) observe() error {
	return errors.Join(
		c.telemetry.RegisterConsoleStoreSizeCallback(func(_ context.Context, o metric.Int64Observer) error {
			o.Observe(c.store.Usage().Bytes)
			return nil
		}),
		c.telemetry.RegisterConsoleStoreDroppedCallback(func(_ context.Context, o metric.Int64Observer) error {
			for what, n := range c.store.Usage().Dropped {
				o.Observe(n, metric.WithAttributes(attribute.String("what", what)))
			}
			return nil
		}),
		c.telemetry.RegisterConsoleRefusedCallback(func(_ context.Context, o metric.Int64Observer) error {
			c.server.Stats().Observe(o)
			for of, n := range c.refused {
				o.Observe(int64(n.Load()), metric.WithAttributes(attribute.String("reason", of)))
			}
			return nil
		}),
	)
}

// Shutdown stops the server, waits for the last consumers, and closes the store.
// Shutdown may be called without Start, and more than once. It waits for the disk until
// ctx ends, but for at most 10 seconds.
func (c *Console) Shutdown(ctx context.Context) (err error) {
	c.stop.Do(func() {
		if c.server != nil {
			err = c.server.Shutdown(ctx)
		}
		if c.manual != nil {
			c.manual.CloseIdleConnections()
		}
		if c.store != nil {
			err = errors.Join(err, c.closeStore(ctx))
		}
		c.telemetry.Shutdown()
	})
	return err
}
