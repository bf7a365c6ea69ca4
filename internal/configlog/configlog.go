// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package configlog converts a component's configuration to a log field. Each
// component logs its configuration once, at debug level. The package also
// checks the keys of configurations.
package configlog

import (
	"fmt"
	"time"

	"go.opentelemetry.io/collector/confmap"

	"github.com/hotprofile/hotprofile/internal/urls"
)

// Map returns the effective value of each key. Durations are converted to text.
// Secrets are redacted by their types.
func Map(cfg any) (map[string]any, error) {
	conf := confmap.New()
	if err := conf.Marshal(cfg); err != nil {
		return nil, fmt.Errorf("convert the configuration to a map: %w", err)
	}
	return readable(conf.ToStringMap()).(map[string]any), nil
}

// readable converts durations to text, and removes the secrets from URLs.
// It does this at every level.
func readable(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for key := range v {
			v[key] = readable(v[key])
		}
	case []any:
		for i := range v {
			v[i] = readable(v[i])
		}
	case time.Duration:
		return v.String()
	case string:
		return urls.Redacted(v)
	}
	return v
}
