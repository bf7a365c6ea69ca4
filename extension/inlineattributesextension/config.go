// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package inlineattributesextension

// Config is the configuration of the extension `inline_attributes`.
type Config struct {
	// Enabled enables the conversion of requests. The default is true. If Enabled is
	// false, requests are sent unchanged, so that one environment variable can select the
	// form of the attributes.
	Enabled bool `mapstructure:"enabled"`

	// prevents unkeyed literal initialization
	_ struct{}
}
