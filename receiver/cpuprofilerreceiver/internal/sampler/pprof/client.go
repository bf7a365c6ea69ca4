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

// client is confighttp's client, with the connections of an endpoint: to its
// socket where it has one, and a new one for each pull, which tells at once that a
// program was restarted.
func (cfg *Config) client(ctx context.Context, host component.Host, set component.TelemetrySettings) (*http.Client, error) {
	client := cfg.ClientConfig
	client.Timeout = 0 // each pull has its own
	client.DisableKeepAlives = true
	// confighttp lets nobody but a middleware at its transport.
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

// maxHeader bounds the head of an answer.
const maxHeader = 64 << 10

// transport is an HTTP client middleware that is told what it wraps, and sets that
// up.
type transport struct {
	component.StartFunc
	component.ShutdownFunc
	socket string
}

// GetHTTPRoundTripper returns what sets a transport up.
func (t transport) GetHTTPRoundTripper(context.Context) (func(context.Context, http.RoundTripper) (http.RoundTripper, error), error) {
	return func(_ context.Context, base http.RoundTripper) (http.RoundTripper, error) {
		to, ok := base.(*http.Transport)
		if !ok {
			return nil, fmt.Errorf("set up the connections to a pprof endpoint: %T is no HTTP transport", base)
		}
		to.DisableCompression = true // profiles are compressed by themselves
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
