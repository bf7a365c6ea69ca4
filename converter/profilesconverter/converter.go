// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package profilesconverter enables profiles pipelines without the flag
// --feature-gates=service.profilesSupport. It does not change the configuration.
package profilesconverter

import (
	"context"
	"fmt"
	"strings"

	"go.opentelemetry.io/collector/confmap"
	"go.opentelemetry.io/collector/featuregate"
)

// gate is the feature gate that the collector requires for pipelines of profiles.
const gate = "service.profilesSupport"

// NewFactory returns the factory of the converter, for the Collector Builder.
func NewFactory() confmap.ConverterFactory {
	return confmap.NewConverterFactory(func(confmap.ConverterSettings) confmap.Converter {
		return converter{featuregate.GlobalRegistry()}
	})
}

type converter struct{ gates *featuregate.Registry }

// Convert enables the feature gate if a pipeline of profiles is configured. Converters run
// before the configuration is validated.
func (c converter) Convert(_ context.Context, conf *confmap.Conf) error {
	pipelines, _ := conf.Get("service::pipelines").(map[string]any)
	for id := range pipelines {
		if signal, _, _ := strings.Cut(id, "/"); strings.TrimSpace(signal) != "profiles" {
			continue
		}
		if err := c.gates.Set(gate, true); err != nil {
			return fmt.Errorf("enable pipelines of profiles: %w", err)
		}
		return nil
	}
	return nil
}
