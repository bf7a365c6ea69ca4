// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package dotnet

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"go.opentelemetry.io/collector/config/confighttp"
	"go.opentelemetry.io/collector/config/confignet"
	"go.opentelemetry.io/collector/config/configoptional"
	"go.opentelemetry.io/collector/confmap"

	"github.com/hotprofile/hotprofile/internal/bytesize"
	"github.com/hotprofile/hotprofile/internal/httplisten"
)

// Config is the block dotnet of the configuration. It configures the server that receives
// buffers from .NET services.
type Config struct {
	// ServerConfig contains the keys of confighttp's server. The default endpoint is
	// localhost:4319. With transport unix, the endpoint is the path of a socket.
	// MaxRequestBodySize is always maxBody.
	ServerConfig confighttp.ServerConfig `mapstructure:",squash"`
	// SocketMode is the file mode of the socket, which decides who may connect. The
	// default is 0660. SocketMode has an effect only if transport is unix.
	SocketMode SocketMode `mapstructure:"socket_mode"`

	// prevents unkeyed literal initialization
	_ struct{}
}

// Unmarshal ignores unknown keys, because the receiver's configuration has already refused
// them.
func (cfg *Config) Unmarshal(conf *confmap.Conf) error {
	return conf.Unmarshal(cfg, confmap.WithIgnoreUnused())
}

// SocketMode is a file mode in the octal form that chmod accepts.
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

// MarshalText returns octal digits.
func (m SocketMode) MarshalText() ([]byte, error) { return []byte(m.String()), nil }

// String returns octal digits with a leading 0.
func (m SocketMode) String() string { return fmt.Sprintf("%04o", uint32(m)) }

// maxBody is the maximum size of a body in bytes, both as sent and decompressed. The
// largest buffer of the profiler is slightly larger than 200 KiB.
const maxBody = int64(bytesize.MiB)

// compressions lists the accepted compressions of a body.
var compressions = []string{"", "gzip"}

// DefaultConfig returns the configuration of an empty dotnet block.
func DefaultConfig() Config {
	server := confighttp.NewDefaultServerConfig()
	server.NetAddr.Endpoint = "localhost:4319"
	// A buffer is small, and its sender is near. With longer timeouts, stalled senders
	// would only block other senders for longer.
	server.ReadHeaderTimeout = 5 * time.Second
	server.ReadTimeout = 10 * time.Second
	server.WriteTimeout = 10 * time.Second
	// The timeout is longer than the timeout of HttpClient, so that HttpClient closes
	// idle connections.
	server.Keepalive = configoptional.Some(confighttp.KeepaliveServerConfig{IdleTimeout: 2 * time.Minute})
	server.MaxRequestBodySize = maxBody
	server.CompressionAlgorithms = slices.Clone(compressions)
	return Config{ServerConfig: server, SocketMode: 0o660}
}

// Validate returns all errors, each with its key and the allowed values.
func (c *Config) Validate() error {
	var errs []error
	fault := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	at := c.ServerConfig.NetAddr
	errs = append(errs, httplisten.ValidateAddr("", at, "localhost:4319"))
	if c.unix() && (at.Endpoint == "" || at.Endpoint == DefaultConfig().ServerConfig.NetAddr.Endpoint) {
		fault("endpoint: must be the path of a socket where transport is unix, such as /run/hotprofile/dotnet.sock")
	}
	if c.SocketMode > 0o777 {
		fault("socket_mode: %s is not between 0000 and 0777; write it in octal, such as 0660", c.SocketMode)
	}
	for _, name := range c.ServerConfig.CompressionAlgorithms {
		if !slices.Contains(compressions, name) { // the memory of other decoders is not bounded
			fault("compression_algorithms: %q is not one of gzip and \"\", no compression", name)
		}
	}
	return errors.Join(errs...)
}

// unix reports whether clients connect over a Unix socket, so that the kernel identifies
// them.
func (c *Config) unix() bool {
	return c.ServerConfig.NetAddr.Transport == confignet.TransportTypeUnix
}
