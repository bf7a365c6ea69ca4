// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package languagesextension

import (
	"context"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/extension"

	"github.com/hotprofile/hotprofile/extension/languagesextension/internal/metadata"
)

// Config is the configuration of the extension `languages`. It has no keys.
type Config struct{}

// NewFactory returns the factory of the extension `languages`.
func NewFactory() extension.Factory {
	return extension.NewFactory(
		metadata.Type,
		func() component.Config { return &Config{} },
		func(context.Context, extension.Settings, component.Config) (extension.Extension, error) {
			return idle{}, nil
		},
		metadata.ExtensionStability,
	)
}

// idle is the extension. Start and Shutdown have no effect, because it is enough to
// link the package.
type idle struct {
	component.StartFunc
	component.ShutdownFunc
}
