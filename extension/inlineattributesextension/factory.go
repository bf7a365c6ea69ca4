// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package inlineattributesextension

import (
	"context"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/extension"

	"github.com/hotprofile/hotprofile/extension/inlineattributesextension/internal/metadata"
)

// NewFactory returns the factory of the extension `inline_attributes`.
func NewFactory() extension.Factory {
	return extension.NewFactory(
		metadata.Type,
		func() component.Config { return &Config{Enabled: true} },
		func(_ context.Context, _ extension.Settings, cfg component.Config) (extension.Extension, error) {
			return newExtension(cfg.(*Config)), nil
		},
		metadata.ExtensionStability,
	)
}
