// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package unixsocket listens on Unix sockets for servers that are restarted. It
// replaces the socket of an earlier run. On Linux, only users whom the socket's
// mode permits can ever connect.
package unixsocket

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
)

// dialStale is the maximum time to find out whether a process still listens on a socket.
const dialStale = time.Second

// Abstract reports whether an endpoint is a name in Linux's abstract namespace. Such a socket
// has no file and no permissions, so every process in the network namespace may connect.
func Abstract(path string) bool { return strings.HasPrefix(path, "@") }

// Listen listens at path. mode is the mode of the socket's file. Closing the listener
// removes the file.
func Listen(ctx context.Context, path string, mode fs.FileMode) (net.Listener, error) {
	if Abstract(path) {
		return new(net.ListenConfig).Listen(ctx, "unix", path)
	}
	if err := removeStale(ctx, path); err != nil {
		return nil, err
	}
	config := net.ListenConfig{Control: ownerOnly}
	l, err := config.Listen(ctx, "unix", path)
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(path, mode.Perm()); err != nil {
		return nil, errors.Join(fmt.Errorf("set who may connect to the socket: %w", err), l.Close())
	}
	return l, nil
}

// removeStale removes the socket of an earlier run. It returns an error for other files,
// and for a socket on which a process still listens.
func removeStale(ctx context.Context, path string) error {
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
