// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package configlog

import (
	"fmt"
	"maps"
	"reflect"
	"strings"

	"go.opentelemetry.io/collector/confmap"
)

// CheckKeys returns an error if a configuration has a key that it would silently
// ignore. confighttp's configurations do that since 0.164. plain is a pointer to such
// a configuration, of a type without its methods. config is a struct that squashes it
// and has keys of its own beside it; nil where there are none.
func CheckKeys(conf *confmap.Conf, plain, config any) error {
	rest := maps.Clone(conf.ToStringMap())
	for _, key := range ownKeys(config) {
		delete(rest, key)
	}
	if err := confmap.NewFromStringMap(rest).Unmarshal(plain); err != nil {
		return fmt.Errorf("the keys of an HTTP client or server: %w", err)
	}
	return nil
}

// ownKeys returns the keys of a struct's fields, without those of squashed ones.
func ownKeys(config any) (keys []string) {
	if config == nil {
		return nil
	}
	for _, field := range reflect.VisibleFields(reflect.TypeOf(config)) {
		if key, _, _ := strings.Cut(field.Tag.Get("mapstructure"), ","); key != "" {
			keys = append(keys, key)
		}
	}
	return keys
}
