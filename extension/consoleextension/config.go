// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package consoleextension

import (
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"strings"
	"time"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/config/confighttp"
	"go.opentelemetry.io/collector/config/configoptional"
	"go.opentelemetry.io/collector/confmap"

	"github.com/hotprofile/hotprofile/extension/consoleextension/internal/web"
	"github.com/hotprofile/hotprofile/internal/bytesize"
	"github.com/hotprofile/hotprofile/internal/configlog"
	"github.com/hotprofile/hotprofile/internal/httplisten"
	"github.com/hotprofile/hotprofile/internal/urls"
)

// Config is the configuration of the extension `console`.
type Config struct {
	// HTTP configures the HTTP server of the console. The default endpoint is localhost:4042.
	// HTTP is not embedded, because Config would then inherit the method Unmarshal from HTTP.
	HTTP confighttp.ServerConfig `mapstructure:",squash"`
	// Directory is the directory of the store. It is created if it does not exist. The
	// default is the directory console in the first directory of ${STATE_DIRECTORY},
	// which systemd sets. Without ${STATE_DIRECTORY}, the default is ./console.
	Directory string `mapstructure:"directory"`
	// MaxAge is the time for which data is kept, from 10m to 720h. The default is 48h.
	MaxAge time.Duration `mapstructure:"max_age"`
	// MaxBytes is the maximum size of the store on disk. The oldest openings are removed
	// first. The minimum is 16MiB, and the default is 300MiB.
	MaxBytes bytesize.Size `mapstructure:"max_bytes"`
	// AllowedHosts lists further host names under which browsers can reach this server.
	// Localhost, the host of the endpoint, and the name of this host are always allowed.
	// The default is an empty list.
	AllowedHosts []string `mapstructure:"allowed_hosts"`
	// TraceURL is the URL of a trace in a tracing backend. It contains
	// {trace_id}, and optionally {span_id}. By default, TraceURL is empty, and
	// pages have no links to traces.
	TraceURL string `mapstructure:"trace_url"`
	// PoliciesFile is the file that is set as policies_from.file in cpu_trigger. By
	// default, PoliciesFile is empty, and pages do not show the file.
	PoliciesFile string `mapstructure:"policies_file"`
	// Edit allows the pages to write PoliciesFile. The default is false.
	Edit bool `mapstructure:"edit"`
	// Manual configures the client for the manual server of cpu_trigger. By default, Manual
	// has no endpoint, and the pages cannot open gates.
	Manual configoptional.Optional[confighttp.ClientConfig] `mapstructure:"manual"`

	// prevents unkeyed literal initialization
	_ struct{}
}

// Validate checks that values are within these limits.
const (
	minMaxAge        = 10 * time.Minute
	maxMaxAge        = 30 * 24 * time.Hour
	minMaxBytes      = 16 * bytesize.MiB
	maxMaxBytes      = bytesize.TiB
	maxAllowedHosts  = 64
	maxManualTimeout = time.Minute
)

// These constants limit the duration of a request and of its response, and the size of a
// request body.
const (
	readTimeout  = 10 * time.Second
	writeTimeout = time.Minute // for sending a large profile to a slow browser
	maxBody      = 1 << 20     // URL encoding may triple a policy file of 256 KiB in a form
)

// createDefaultConfig returns the default configuration for an environment.
func createDefaultConfig(getenv func(string) string) component.Config {
	directory := "console"
	// If a systemd unit has several directories in StateDirectory=, systemd
	// joins their paths like a PATH.
	if dirs := filepath.SplitList(getenv("STATE_DIRECTORY")); len(dirs) > 0 && dirs[0] != "" {
		directory = filepath.Join(dirs[0], "console")
	}
	server := confighttp.NewDefaultServerConfig()
	server.NetAddr.Endpoint = "localhost:4042"
	server.ReadHeaderTimeout = 5 * time.Second
	server.ReadTimeout = readTimeout
	server.WriteTimeout = writeTimeout
	server.Keepalive = configoptional.Some(confighttp.KeepaliveServerConfig{IdleTimeout: time.Minute})
	server.MaxRequestBodySize = maxBody
	server.CompressionAlgorithms = []string{""} // no compression of requests
	client := confighttp.NewDefaultClientConfig()
	client.Timeout = 5 * time.Second
	return &Config{
		HTTP:      server,
		Directory: directory,
		MaxAge:    48 * time.Hour,
		MaxBytes:  300 * bytesize.MiB,
		Manual:    configoptional.Default(client),
	}
}

// Unmarshal refuses unknown keys, and durations without a unit.
func (c *Config) Unmarshal(conf *confmap.Conf) error {
	return configlog.Unmarshal(conf, c)
}

// Validate returns every fault, each with its key and the allowed values.
func (c *Config) Validate() error {
	var errs []error
	fault := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	errs = append(errs, httplisten.ValidateAddr("", c.HTTP.NetAddr, "localhost:4042"))
	if c.Directory == "" {
		fault("directory: must not be empty")
	}
	errs = append(errs, configlog.Between("max_age", c.MaxAge, minMaxAge, maxMaxAge))
	errs = append(errs, configlog.Between("max_bytes", c.MaxBytes, minMaxBytes, maxMaxBytes))
	if n := len(c.AllowedHosts); n > maxAllowedHosts {
		fault("allowed_hosts: has %d names, must have at most %d", n, maxAllowedHosts)
	}
	for i, host := range c.AllowedHosts {
		if !isHostName(host) {
			fault("allowed_hosts[%d]: %q is not a host's name, such as console.example.com, without a port", i, host)
		}
	}
	if c.TraceURL != "" && !web.IsTraceURL(c.TraceURL) {
		fault("trace_url: %q is not http://… or https://… with {trace_id}, such as https://tempo.example.com/trace/{trace_id}", urls.Redacted(c.TraceURL))
	}
	if c.PoliciesFile != "" && !filepath.IsAbs(c.PoliciesFile) {
		fault("policies_file: %q is not an absolute path", c.PoliciesFile)
	}
	if c.Edit && c.PoliciesFile == "" {
		fault("edit: goes only with policies_file")
	}
	return errors.Join(append(errs, c.validateManual()...)...)
}

// validateManual returns errors without the URL, because the URL may contain a secret.
func (c *Config) validateManual() (errs []error) {
	client := c.Manual.Get()
	if client == nil {
		return nil
	}
	fault := func(format string, args ...any) { errs = append(errs, fmt.Errorf("manual."+format, args...)) }
	u, err := urls.Parse(client.Endpoint, "http://localhost:4041, where manual of cpu_trigger listens")
	switch {
	case err != nil:
		fault("endpoint: %w", err)
	case strings.Trim(u.Path, "/") != "" || u.RawQuery != "":
		fault("endpoint: must have no path: it is only http://HOST:PORT")
	}
	if t := client.Timeout; t <= 0 || t > maxManualTimeout {
		fault("timeout: %v is not above 0 and up to %v", t, maxManualTimeout)
	}
	return errs
}

// isHostName reports whether a string is a valid host name without a port. The host does
// not have to exist.
func isHostName(name string) bool {
	if name == "" || len(name) > 253 || strings.ContainsAny(name, "/:@*?#[] ") {
		return false
	}
	_, err := netip.ParseAddr(name)
	return err != nil // addresses are allowed anyway
}

// isLoopback reports whether a host is localhost or a loopback address.
func isLoopback(host string) bool {
	ip, err := netip.ParseAddr(host)
	return strings.EqualFold(host, "localhost") || err == nil && ip.Unmap().IsLoopback()
}
