// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package consoleextension is the extension `console`. It records in a directory which
// units were hot, when and why, together with their profiles. It serves web pages about
// these units. The exporter `console` passes OTLP data to the extension.
//
// internal/intake converts OTLP for the store, internal/store keeps the data, and
// internal/web serves the pages.
package consoleextension

import (
	"context"
	"os"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/extension"

	"github.com/hotprofile/hotprofile/extension/consoleextension/internal/metadata"
)

// NewFactory returns the factory of `console`.
func NewFactory() extension.Factory {
	return extension.NewFactory(
		metadata.Type,
		func() component.Config { return createDefaultConfig(os.Getenv) },
		func(_ context.Context, set extension.Settings, cfg component.Config) (extension.Extension, error) {
			return newConsole(set, cfg.(*Config))
		},
		metadata.ExtensionStability,
	)
}

//go:generate go tool -modfile=../../internal/tools/go.mod mdatagen metadata.yaml
