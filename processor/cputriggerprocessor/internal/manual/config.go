// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package manual

import (
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"time"

	"go.opentelemetry.io/collector/config/confighttp"

	"github.com/hotprofile/hotprofile/internal/httplisten"
)

// DefaultConfig returns the defaults of `manual`. Without an endpoint there is no
// server. Timeouts are short since requests are small.
func DefaultConfig() confighttp.ServerConfig {
	cfg := confighttp.NewDefaultServerConfig()
	cfg.ReadHeaderTimeout = 5 * time.Second
	cfg.ReadTimeout = 10 * time.Second
	cfg.WriteTimeout = 10 * time.Second
	cfg.IdleTimeout = 30 * time.Second //nolint:staticcheck // the key idle_timeout is a contract; keepalive is folded into it
	cfg.MaxRequestBodySize = maxBody
	cfg.CompressionAlgorithms = []string{""} // none
	return cfg
}

// Validate returns every fault, each with its key and what is allowed.
func Validate(cfg *confighttp.ServerConfig) error {
	if cfg.NetAddr.Endpoint == "" {
		if reflect.DeepEqual(*cfg, DefaultConfig()) {
			return nil
		}
		return errors.New("manual.endpoint: must be set for the other keys of manual, such as localhost:4041, or a path with transport: unix")
	}
	var errs []error
	fault := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if err := httplisten.ValidateAddr("manual.", cfg.NetAddr, "localhost:4041"); err != nil {
		errs = append(errs, err)
	}
	if cfg.CORS.HasValue() {
		for _, origin := range cfg.CORS.Get().AllowedOrigins {
			if err := http.NewCrossOriginProtection().AddTrustedOrigin(origin); err != nil {
				fault("manual.cors.allowed_origins: %q is not scheme://host[:port]; any website of another origin could open gates", origin)
			}
		}
	}
	return errors.Join(errs...)
}
