// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package inlineattributesextension

// Config is the configuration of `inline_attributes`.
type Config struct {
	// Enabled is whether requests are rewritten. Default true. With false they pass
	// as the exporter wrote them, so that one variable chooses the form.
	Enabled bool `mapstructure:"enabled"`

	// prevents unkeyed literal initialization
	_ struct{}
}
