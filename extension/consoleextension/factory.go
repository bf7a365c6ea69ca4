// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package consoleextension

import (
	"context"
	"os"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/extension"

	"github.com/hotprofile/hotprofile/extension/consoleextension/internal/metadata"
)

// NewFactory returns the factory of the extension `console`.
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
