// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package cpuprofilerreceiver

import (
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"time"

	"go.opentelemetry.io/collector/config/confighttp"
	"go.opentelemetry.io/collector/config/confignet"

	"github.com/hotprofile/hotprofile/internal/bytesize"
	"github.com/hotprofile/hotprofile/internal/httplisten"
	"github.com/hotprofile/hotprofile/internal/unixsocket"
)

// DotnetConfig is the server that takes the buffers of .NET services.
type DotnetConfig struct {
	// ServerConfig has all keys of confighttp's server. The endpoint is
	// localhost:4319 by default, or the path of a socket where transport is unix.
	// Bodies have 1 MiB at most by default, 16 MiB at most.
	ServerConfig confighttp.ServerConfig `mapstructure:",squash"`
	// SocketMode is the permissions of the socket's file, which say who may
	// connect. Default 0660. Without effect where transport is not unix.
	SocketMode SocketMode `mapstructure:"socket_mode"`
	// IncludeExportThread is whether samples of the profiler's own thread are
	// taken too. Default false.
	IncludeExportThread bool `mapstructure:"include_export_thread"`

	// prevents unkeyed literal initialization
	_ struct{}
}

// SocketMode is the permissions of a file, as chmod takes them.
type SocketMode uint32

// UnmarshalText reads octal digits.
func (m *SocketMode) UnmarshalText(text []byte) error {
	n, err := strconv.ParseUint(string(text), 8, 32)
	if err != nil {
		return fmt.Errorf("mode %q: want octal permissions such as 0660", text)
	}
	*m = SocketMode(n)
	return nil
}

// MarshalText writes octal digits.
func (m SocketMode) MarshalText() ([]byte, error) { return []byte(m.String()), nil }

// String is as chmod takes it, with a leading 0.
func (m SocketMode) String() string { return fmt.Sprintf("%04o", uint32(m)) }

// The bounds of a body. The lower one is a small buffer, the upper one far above
// the profiler's largest, which has 200 KiB and a little.
const (
	minDotnetBody = int64(bytesize.KiB)
	maxDotnetBody = int64(16 * bytesize.MiB)
)

func defaultDotnet() DotnetConfig {
	server := confighttp.NewDefaultServerConfig()
	server.NetAddr.Endpoint = "localhost:4319"
	// A buffer is small and whoever sends it is near: patience would only let
	// stalled senders keep others out.
	server.ReadHeaderTimeout = 5 * time.Second
	server.ReadTimeout = 10 * time.Second
	server.WriteTimeout = 10 * time.Second
	// Longer than HttpClient keeps a connection, so that it is the one to close.
	server.IdleTimeout = 2 * time.Minute
	server.MaxRequestBodySize = int64(bytesize.MiB)
	server.CompressionAlgorithms = []string{"", "gzip", "zstd"}
	return DotnetConfig{ServerConfig: server, SocketMode: 0o660}
}

// Validate reports every fault, each with its key and what is allowed.
func (c *DotnetConfig) Validate() error {
	var errs []error
	fault := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	at := c.ServerConfig.NetAddr
	if err := httplisten.ValidateAddr("", at, "localhost:4319"); err != nil {
		errs = append(errs, err)
	}
	if c.unix() && (at.Endpoint == "" || at.Endpoint == defaultDotnet().ServerConfig.NetAddr.Endpoint) {
		fault("endpoint: must be the path of a socket where transport is unix, such as /run/hotprofile/dotnet.sock")
	}
	if c.SocketMode > 0o777 {
		fault("socket_mode: %s is not between 0000 and 0777; write it in octal, such as 0660", c.SocketMode)
	}
	if size := c.ServerConfig.MaxRequestBodySize; size < minDotnetBody || size > maxDotnetBody {
		fault("max_request_body_size: %d is not between %d and %d", size, minDotnetBody, maxDotnetBody)
	}
	return errors.Join(errs...)
}

// mode is the permissions of the socket's file.
func (c *DotnetConfig) mode() fs.FileMode { return fs.FileMode(c.SocketMode).Perm() }

// unix says whether peers are processes of this host that the kernel names.
func (c *DotnetConfig) unix() bool {
	return c.ServerConfig.NetAddr.Transport == confignet.TransportTypeUnix
}

// guarded says whether the file's permissions say who may connect.
func (c *DotnetConfig) guarded() bool {
	return c.unix() && !unixsocket.Abstract(c.ServerConfig.NetAddr.Endpoint)
}
