// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package manual

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"reflect"
	"slices"
	"time"

	"go.opentelemetry.io/collector/config/confighttp"
	"go.opentelemetry.io/collector/config/configoptional"

	"github.com/hotprofile/hotprofile/internal/httplisten"
)

// Config configures the server.
type Config struct {
	// HTTP configures the server itself. It is not embedded, because Config would then
	// inherit its Unmarshal method.
	HTTP confighttp.ServerConfig `mapstructure:",squash"`

	// Alerts configures openings by alerts, which Alertmanager posts.
	Alerts AlertsConfig `mapstructure:"alerts"`

	// prevents unkeyed literal initialization
	_ struct{}
}

// AlertsConfig configures openings by alerts.
type AlertsConfig struct {
	// Duration is the time for which an alert opens a gate, from 1s to 24h. Zero, the
	// default, means the duration of the first policy.
	Duration time.Duration `mapstructure:"duration"`
	// Labels maps the label names of alerts to the names of resource attributes of a unit's
	// profiles. An alert label may also map to cgroup. A configured map replaces all default
	// labels.
	Labels map[string]string `mapstructure:"labels"`

	// prevents unkeyed literal initialization
	_ struct{}
}

// maxLabels limits the labels in a configuration.
const maxLabels = 32

// DefaultConfig returns the defaults of `manual`. The defaults contain no endpoint, so no
// server is started. Timeouts are short because requests are small.
func DefaultConfig() Config {
	cfg := confighttp.NewDefaultServerConfig()
	cfg.ReadHeaderTimeout = 5 * time.Second
	cfg.ReadTimeout = 10 * time.Second
	cfg.WriteTimeout = 10 * time.Second
	cfg.Keepalive = configoptional.Some(confighttp.KeepaliveServerConfig{IdleTimeout: 30 * time.Second})
	cfg.MaxRequestBodySize = maxAlertsBody   // each path has its own limit
	cfg.CompressionAlgorithms = []string{""} // no compression
	return Config{HTTP: cfg}
}

// Validate returns all faults. Each fault contains its key and the allowed values.
func Validate(cfg *Config) error {
	if cfg.HTTP.NetAddr.Endpoint == "" {
		if reflect.DeepEqual(*cfg, DefaultConfig()) {
			return nil
		}
		return errors.New("manual.endpoint: must be set for the other keys of manual, such as localhost:4041, or a path with transport: unix")
	}
	var errs []error
	fault := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	errs = append(errs, httplisten.ValidateAddr("manual.", cfg.HTTP.NetAddr, "localhost:4041"))
	if cfg.HTTP.CORS.HasValue() {
		for _, origin := range cfg.HTTP.CORS.Get().AllowedOrigins {
			if err := http.NewCrossOriginProtection().AddTrustedOrigin(origin); err != nil {
				fault("manual.cors.allowed_origins: %q is not scheme://host[:port]; any website of another origin could open gates", origin)
			}
		}
	}
	if d := cfg.Alerts.Duration; d != 0 && (d < minDuration || d > maxDuration) {
		fault("manual.alerts.duration: %v is not between %v and %v; 0s is that of the first policy", d, minDuration, maxDuration)
	}
	if n := len(cfg.Alerts.Labels); n > maxLabels {
		fault("manual.alerts.labels: has %d labels, must have at most %d", n, maxLabels)
	}
	which := len(cfg.Alerts.Labels) == 0
	for _, label := range slices.Sorted(maps.Keys(cfg.Alerts.Labels)) {
		attribute := cfg.Alerts.Labels[label]
		if label == "" || attribute == "" {
			fault("manual.alerts.labels: %q: %q must be a label's name and an attribute, such as pod: k8s.pod.name", label, attribute)
		}
		which = which || !isBroad(attribute)
	}
	if !which {
		fault("manual.alerts.labels: must have one that names a unit, such as container_id: container.id or pod: k8s.pod.name")
	}
	return errors.Join(errs...)
}
