// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package cputriggerprocessor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"strings"
	"syscall"
	"time"

	"go.opentelemetry.io/collector/config/confighttp"
	"go.opentelemetry.io/collector/config/confignet"
)

// dialStale is how long a socket's owner has to take a connection.
const dialStale = time.Second

// listenManual listens where the configuration says. A Unix socket is for the
// collector's own user, and closing it removes it.
func listenManual(ctx context.Context, cfg *confighttp.ServerConfig) (net.Listener, error) {
	path := cfg.NetAddr.Endpoint
	if cfg.NetAddr.Transport != confignet.TransportTypeUnix || strings.HasPrefix(path, "@") {
		return cfg.ToListener(ctx)
	}
	if err := removeStaleSocket(ctx, path); err != nil {
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

// removeStaleSocket removes a socket that an earlier run left behind: nothing
// else, and not one that is listened at.
func removeStaleSocket(ctx context.Context, path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if info.Mode().Type() != fs.ModeSocket {
		return fmt.Errorf("%s is there and is not a socket: remove it or choose another path", path)
	}
	dialer := net.Dialer{Timeout: dialStale}
	conn, err := dialer.DialContext(ctx, "unix", path)
	switch {
	case err == nil:
		return errors.Join(fmt.Errorf("%s is in use by another process: stop it or choose another path", path), conn.Close())
	case errors.Is(err, syscall.ECONNREFUSED):
		return os.Remove(path)
	default:
		return fmt.Errorf("find out whether the socket is still in use: %w", err)
	}
}
