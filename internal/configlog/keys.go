// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package configlog

import (
	"fmt"
	"maps"
	"slices"

	"go.opentelemetry.io/collector/confmap"
)

// CheckKeys returns an error if a configuration has a key that it would silently
// ignore. confighttp's configurations do that since 0.164. plain is a pointer to such
// a configuration, of a type without its methods; own are the keys beside it.
func CheckKeys(conf *confmap.Conf, plain any, own ...string) error {
	rest := maps.Clone(conf.ToStringMap())
	maps.DeleteFunc(rest, func(key string, _ any) bool { return slices.Contains(own, key) })
	if err := confmap.NewFromStringMap(rest).Unmarshal(plain); err != nil {
		return fmt.Errorf("the keys of an HTTP client or server: %w", err)
	}
	return nil
}
