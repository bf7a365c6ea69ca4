// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package inlineattributesextension

// Config is the configuration of `inline_attributes`.
type Config struct {
	// Enabled is whether requests are rewritten. Default true. If it is false, requests
	// pass unchanged, so that one variable chooses the form.
	Enabled bool `mapstructure:"enabled"`

	// prevents unkeyed literal initialization
	_ struct{}
}
