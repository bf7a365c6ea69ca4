// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package httplisten holds where and how servers listen: with connections bounded,
// and sockets of their own.
package httplisten

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"

	"go.opentelemetry.io/collector/config/confighttp"
	"golang.org/x/net/netutil"
)

// ValidateTCP says whether endpoint can be listened on, by its form; example is one
// that can.
func ValidateTCP(endpoint, example string) error {
	_, port, err := net.SplitHostPort(endpoint)
	if err == nil {
		_, err = net.LookupPort("tcp", port) // a number of 16 bits, or a service's name
	}
	if err != nil {
		return fmt.Errorf("%q is not host:port, such as %s", endpoint, example)
	}
	return nil
}

// Listen does what confighttp's listener does, on what listen returns and for at
// most so many connections. They are counted below TLS: above it, HTTP would not
// know of it and not speak HTTP/2.
func Listen(ctx context.Context, cfg *confighttp.ServerConfig, most int, listen func(context.Context) (net.Listener, error)) (net.Listener, error) {
	var secure *tls.Config
	if cfg.TLS.HasValue() {
		var err error
		if secure, err = cfg.TLS.Get().LoadTLSConfig(ctx); err != nil {
			return nil, err
		}
		secure.NextProtos = []string{"h2", "http/1.1"}
	}
	l, err := listen(ctx)
	if err != nil {
		return nil, err
	}
	l = netutil.LimitListener(l, most)
	if secure != nil {
		l = tls.NewListener(l, secure)
	}
	return l, nil
}
