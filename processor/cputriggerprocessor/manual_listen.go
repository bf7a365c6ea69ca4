// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package cputriggerprocessor

import (
	"context"
	"net"

	"go.opentelemetry.io/collector/config/confighttp"
	"go.opentelemetry.io/collector/config/confignet"

	"github.com/hotprofile/hotprofile/internal/httplisten"
	"github.com/hotprofile/hotprofile/internal/unixsocket"
)

// listenManual listens at a Unix socket that is the collector's own user's from
// its first moment, or where confighttp does.
func listenManual(ctx context.Context, cfg *confighttp.ServerConfig) (net.Listener, error) {
	return httplisten.Listen(ctx, cfg, maxManualConnections, func(ctx context.Context) (net.Listener, error) {
		if cfg.NetAddr.Transport == confignet.TransportTypeUnix {
			return unixsocket.Listen(ctx, cfg.NetAddr.Endpoint, 0o600)
		}
		return cfg.NetAddr.Listen(ctx)
	})
}
