// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package inlineattributesextension

// Config is the configuration of `inline_attributes`.
type Config struct {
	// Enabled enables the conversion of requests. The default is true. If Enabled is
	// false, requests pass unchanged, so that one environment variable can select the
	// form.
	Enabled bool `mapstructure:"enabled"`

	// prevents unkeyed literal initialization
	_ struct{}
}
