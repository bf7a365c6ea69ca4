// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package consoleextension is the extension `console`: it keeps what was hot, when and
// why in a directory, with the profiles, and serves web pages that show it. The exporter
// `console` writes into it what comes as OTLP.
//
// Rooms below: internal/intake turns OTLP into what internal/store keeps, and
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
