// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package pprof

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"path"
	"runtime"
	"slices"
	"strings"
	"time"

	"go.opentelemetry.io/collector/config/confighttp"
	"go.opentelemetry.io/collector/config/configoptional"
	"go.opentelemetry.io/collector/confmap"

	"github.com/hotprofile/hotprofile/internal/configlog"
	"github.com/hotprofile/hotprofile/internal/otlpprofiles/attr"
	"github.com/hotprofile/hotprofile/internal/unixsocket"
	"github.com/hotprofile/hotprofile/internal/urls"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/processes"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/sampler"
)

// Config is one item of pprof_endpoints. It is an endpoint that serves the profiles of
// net/http/pprof.
type Config struct {
	// ClientConfig contains the keys of confighttp's client. The endpoint is a URL without
	// the name of a profile, such as http://localhost:6060/debug/pprof. Timeout is always 10
	// seconds. It is the time that a pull may take in addition to duration.
	ClientConfig confighttp.ClientConfig `mapstructure:",squash"`
	// Socket is the path of a Unix socket to connect to, instead of the endpoint's host.
	// The default endpoint is then http://localhost/debug/pprof.
	Socket string `mapstructure:"socket"`
	// When is hot or always. With hot, the endpoint is only pulled while the unit of its
	// process is hot, which needs a hot_units extension. The default is hot with that
	// extension, and always without it.
	When sampler.When `mapstructure:"when"`
	// Profiles lists the profiles to pull: profile (CPU), allocs, heap, goroutine,
	// threadcreate, block or mutex. The default is [profile].
	Profiles []string `mapstructure:"profiles"`
	// KeepSampled pulls profiles even if a sampler already measures the process. It applies
	// to the profile "profile" if the sampler "cpu" measures the process. It applies to the
	// profile "allocs" if the sampler "allocations" measures the process. The default is false.
	KeepSampled bool `mapstructure:"keep_sampled"`
	// Interval is the time between the starts of two rounds of pulls. It must be between 1s
	// and 24h. The default is 60s.
	Interval time.Duration `mapstructure:"interval"`
	// Duration is the length of the window of profile, allocs, block and mutex. It is in
	// whole seconds and at most interval. The default is 10s.
	Duration time.Duration `mapstructure:"duration"`
	// Target is the process that serves the endpoint, or the cgroup or container of this
	// process. Target is not required if Socket is set or if Resource names the unit. On
	// Linux and Windows, it is also not required for endpoints on the loopback interface,
	// because the kernel identifies the serving process.
	Target configoptional.Optional[processes.Target] `mapstructure:"target"`
	// Resource contains attributes to add to the resource of the profiles. These attributes
	// replace attributes of the process. Values are strings, whole numbers, true or false.
	Resource map[string]any `mapstructure:"resource"`

	// prevents unkeyed literal initialization
	_ struct{}
}

// SocketEndpoint is the default endpoint if Socket is set.
const SocketEndpoint = "http://localhost/debug/pprof"

// DefaultConfig returns the configuration of an endpoint if no keys are set.
func DefaultConfig() Config {
	client := confighttp.NewDefaultClientConfig()
	client.Timeout = 10 * time.Second
	return Config{
		ClientConfig: client,
		Profiles:     []string{"profile"},
		Interval:     time.Minute,
		Duration:     10 * time.Second,
		Target:       configoptional.Default(processes.Target{}),
	}
}

// Unmarshal sets the defaults for missing keys.
func (cfg *Config) Unmarshal(conf *confmap.Conf) error {
	*cfg = DefaultConfig()
	if conf.IsSet("profiles") {
		cfg.Profiles = nil // otherwise the items would replace only some items of the default
	}
	if err := conf.Unmarshal(cfg); err != nil {
		return err
	}
	if cfg.Socket != "" && cfg.ClientConfig.Endpoint == "" {
		cfg.ClientConfig.Endpoint = SocketEndpoint
	}
	return nil
}

// Validate returns all errors, each with its key and the allowed values.
func (cfg *Config) Validate() error {
	var errs []error
	fault := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if err := checkURL(cfg.ClientConfig.Endpoint); err != nil {
		fault("endpoint: %w", err)
	}
	if cfg.Socket != "" && !unixsocket.Abstract(cfg.Socket) && !path.IsAbs(cfg.Socket) {
		fault("socket: %q is not an absolute path, such as /run/checkout/pprof.sock, nor an abstract name, such as @checkout", cfg.Socket)
	}
	if cfg.Socket != "" && cfg.ClientConfig.ProxyURL != "" {
		fault("proxy_url: there is no proxy on the way to a socket")
	}
	errs = append(errs, cfg.When.Check())
	if len(cfg.Profiles) == 0 {
		fault("profiles: names nothing to pull; leave it out for [profile]")
	}
	for i, name := range cfg.Profiles {
		if _, ok := KindOf(name); !ok {
			fault("profiles[%d]: %q is not one of %s", i, name, kindNames())
		} else if slices.Contains(cfg.Profiles[:i], name) {
			fault("profiles[%d]: %q is there twice", i, name)
		}
	}
	errs = append(errs, configlog.Between("interval", cfg.Interval, time.Second, 24*time.Hour))
	if cfg.Duration < time.Second || cfg.Duration > cfg.Interval || cfg.Duration%time.Second != 0 {
		fault("duration: %v is not whole seconds between 1s and interval (%v)", cfg.Duration, cfg.Interval)
	}
	if cfg.Target.HasValue() {
		if err := cfg.Target.Get().Check(); err != nil {
			fault("target: %w", err)
		}
	}
	if !cfg.identified() {
		fault("target: is needed to tell which process serves the endpoint: write one of target: {executable: /usr/local/bin/checkout}, target: {container_id: ID} or target: {cgroup: /PATH}; or set socket; or, on Linux and Windows, use an endpoint on the loopback; or resource with %s or, for another host, service.name", attr.ContainerID)
	}
	return errors.Join(append(errs, cfg.checkResource())...)
}

// identified reports whether the unit of the profiles is known.
func (cfg *Config) identified() bool {
	return cfg.Target.HasValue() || cfg.Socket != "" || cfg.named() || cfg.loopback() != ""
}

// named reports whether Resource names the unit.
func (cfg *Config) named() bool {
	return slices.ContainsFunc([]string{attr.ContainerID, attr.Cgroup, attr.ServiceName}, func(key string) bool {
		_, ok := cfg.Resource[key]
		return ok
	})
}

// loopback returns the address of an endpoint on the loopback interface. On Linux and
// Windows, the kernel identifies the process that listens there. loopback returns an empty
// string for other endpoints and systems.
func (cfg *Config) loopback() string {
	u, err := urls.Parse(cfg.ClientConfig.Endpoint, SocketEndpoint)
	if err != nil || !slices.Contains([]string{"linux", "windows"}, runtime.GOOS) || cfg.ClientConfig.ProxyURL != "" {
		return ""
	}
	if ip, err := netip.ParseAddr(u.Hostname()); u.Hostname() != "localhost" && (err != nil || !ip.IsLoopback()) {
		return ""
	}
	port := u.Port()
	if port == "" {
		port = u.Scheme // the name of a port, such as https
	}
	return net.JoinHostPort(u.Hostname(), port)
}

func checkURL(endpoint string) error {
	const example = "http://localhost:6060/debug/pprof"
	u, err := urls.Parse(endpoint, example)
	if err == nil && (u.RawQuery != "" || u.Fragment != "") {
		err = fmt.Errorf("%q must end with its path: what follows is added, such as %s", urls.Shown(endpoint), example)
	}
	return err
}

func kindNames() string {
	var names []string
	for _, k := range Kinds() {
		names = append(names, k.Name)
	}
	return strings.Join(names, ", ")
}

func (cfg *Config) checkResource() error {
	var errs []error
	for _, key := range slices.Sorted(maps.Keys(cfg.Resource)) {
		switch {
		case key == "":
			errs = append(errs, errors.New("resource: has an attribute without a key"))
		case key == attr.PID || key == attr.CreationTime:
			errs = append(errs, fmt.Errorf("resource: %s: name the process in target", key))
		case strings.HasPrefix(key, attr.Prefix):
			errs = append(errs, fmt.Errorf("resource: %s: is for cpu_trigger alone to set", key))
		}
		switch cfg.Resource[key].(type) {
		case string, bool, int, int64:
		default:
			errs = append(errs, fmt.Errorf("resource: %s: %v is not a string, a whole number, true or false", key, cfg.Resource[key]))
		}
	}
	return errors.Join(errs...)
}
