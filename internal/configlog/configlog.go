// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package configlog writes a component's whole configuration as a log field, as
// every component of ours says it once, at debug level.
package configlog

import (
	"fmt"
	"time"

	"go.opentelemetry.io/collector/confmap"
)

// Map is every value as it holds, by its key; durations as a configuration has
// them. Secrets are redacted by their types.
func Map(cfg any) (map[string]any, error) {
	conf := confmap.New()
	if err := conf.Marshal(cfg); err != nil {
		return nil, fmt.Errorf("write the configuration as a map: %w", err)
	}
	return readable(conf.ToStringMap()).(map[string]any), nil
}

// readable writes durations as text, all the way down.
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
	}
	return v
}
