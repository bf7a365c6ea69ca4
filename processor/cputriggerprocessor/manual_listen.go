// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package cputriggerprocessor

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"

	"go.opentelemetry.io/collector/config/confighttp"
	"go.opentelemetry.io/collector/config/confignet"

	"github.com/hotprofile/hotprofile/internal/unixsocket"
)

// listenManual listens where the configuration says. A Unix socket is for the
// collector's own user, and closing it removes it.
func listenManual(ctx context.Context, cfg *confighttp.ServerConfig) (net.Listener, error) {
	path := cfg.NetAddr.Endpoint
	if cfg.NetAddr.Transport != confignet.TransportTypeUnix || unixsocket.Abstract(path) {
		return cfg.ToListener(ctx)
	}
	if err := unixsocket.RemoveStale(ctx, path); err != nil {
		return nil, err
	}
	l, err := cfg.ToListener(ctx)
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, errors.Join(fmt.Errorf("keep others from the socket: %w", err), l.Close())
	}
	return l, nil
}
