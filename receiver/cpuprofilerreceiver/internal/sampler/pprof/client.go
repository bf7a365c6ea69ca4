// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package pprof

import (
	"context"
	"fmt"
	"maps"
	"net"
	"net/http"
	"slices"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/config/configmiddleware"
)

// client returns confighttp's client for an endpoint. It connects to the endpoint's
// socket if one is configured. Each pull uses a new connection, so that the client
// detects a restart of the program at once.
func (cfg *Config) client(ctx context.Context, host component.Host, set component.TelemetrySettings) (*http.Client, error) {
	client := cfg.ClientConfig
	client.Timeout = 0 // each pull has its own timeout
	// Only a middleware can reach confighttp's transport.
	id := component.MustNewIDWithName("hotprofile", "pprof_transport")
	client.Middlewares = append(slices.Clone(client.Middlewares), configmiddleware.Config{ID: id})
	extensions := make(map[component.ID]component.Component)
	if host != nil {
		maps.Copy(extensions, host.GetExtensions())
	}
	extensions[id] = transport{socket: cfg.Socket}
	made, err := client.ToClient(ctx, extensions, set)
	if err != nil {
		return nil, err
	}
	made.CheckRedirect = SameHost
	return made, nil
}

// maxHeader is the maximum size of a response header in bytes.
const maxHeader = 64 << 10

// transport is an HTTP client middleware that configures the transport below it.
type transport struct {
	component.StartFunc
	component.ShutdownFunc
	socket string
}

// GetHTTPRoundTripper returns a function that configures a transport.
func (t transport) GetHTTPRoundTripper(context.Context) (func(context.Context, http.RoundTripper) (http.RoundTripper, error), error) {
	return func(_ context.Context, base http.RoundTripper) (http.RoundTripper, error) {
		to, ok := base.(*http.Transport)
		if !ok {
			return nil, fmt.Errorf("set up the connections to a pprof endpoint: %T is no HTTP transport", base)
		}
		to.DisableKeepAlives = true
		to.DisableCompression = true // profiles are already compressed
		to.MaxResponseHeaderBytes = maxHeader
		if t.socket != "" {
			to.Proxy = nil
			to.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
				return new(net.Dialer).DialContext(ctx, "unix", t.socket)
			}
		}
		return to, nil
	}, nil
}
