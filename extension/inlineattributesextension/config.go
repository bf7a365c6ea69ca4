// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package inlineattributesextension

// Config is the configuration of `inline_attributes`.
type Config struct {
	// Enabled enables the conversion of requests. The default is true. If Enabled is
	// false, requests are sent unchanged. One environment variable can therefore select
	// the form of the attributes.
	Enabled bool `mapstructure:"enabled"`

	// prevents unkeyed literal initialization
	_ struct{}
}
