// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package cputriggerprocessor

import (
	"context"
	"crypto/tls"
	"net"

	"go.opentelemetry.io/collector/config/confighttp"
	"go.opentelemetry.io/collector/config/confignet"
	"golang.org/x/net/netutil"

	"github.com/hotprofile/hotprofile/internal/unixsocket"
)

// listenManual does what confighttp's listener does, with a Unix socket that is
// the collector's own user's from its first moment, and with the connections
// counted below TLS: above it, HTTP would not know of it and not speak HTTP/2.
func listenManual(ctx context.Context, cfg *confighttp.ServerConfig) (net.Listener, error) {
	var secure *tls.Config
	if cfg.TLS.HasValue() {
		var err error
		if secure, err = cfg.TLS.Get().LoadTLSConfig(ctx); err != nil {
			return nil, err
		}
		secure.NextProtos = []string{"h2", "http/1.1"}
	}
	var l net.Listener
	var err error
	if cfg.NetAddr.Transport == confignet.TransportTypeUnix {
		l, err = unixsocket.Listen(ctx, cfg.NetAddr.Endpoint, 0o600)
	} else {
		l, err = cfg.NetAddr.Listen(ctx)
	}
	if err != nil {
		return nil, err
	}
	l = netutil.LimitListener(l, maxManualConnections)
	if secure != nil {
		l = tls.NewListener(l, secure)
	}
	return l, nil
}
