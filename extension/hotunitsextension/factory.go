// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package hotunitsextension is the extension `hot_units`: the set of units that
// are hot now. `cpu_trigger` publishes it and `cpu_profiler` watches it; both find
// the extension through their host. It is the only thing that flows against the
// direction of the data. It does not know why a unit is hot.
//
// Beside that, components publish events there (what was decided and done), which
// others subscribe to and webhooks post, serve readings to whoever asks, and name the
// files that they read policies from.
package hotunitsextension

import (
	"context"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/extension"

	"github.com/hotprofile/hotprofile/extension/hotunitsextension/internal/metadata"
)

// NewFactory returns the factory of `hot_units`.
func NewFactory() extension.Factory {
	return extension.NewFactory(
		metadata.Type,
		func() component.Config { return &Config{} },
		func(_ context.Context, set extension.Settings, cfg component.Config) (extension.Extension, error) {
			return newExtension(set, cfg.(*Config))
		},
		metadata.ExtensionStability,
	)
}

//go:generate go tool -modfile=../../internal/tools/go.mod mdatagen metadata.yaml
