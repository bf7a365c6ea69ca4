// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package configlog

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"time"

	"go.opentelemetry.io/collector/confmap"
)

// CheckDurations returns an error for each duration in a configuration that is a number
// without a unit, which would be nanoseconds. config is a value of the configuration's
// type.
func CheckDurations(conf *confmap.Conf, config any) error {
	return errors.Join(withoutUnit(reflect.TypeOf(config), conf.ToStringMap(), "")...)
}

// withoutUnit looks for such durations in what is configured for a type.
func withoutUnit(t reflect.Type, configured any, key string) (errs []error) {
	if t == reflect.TypeFor[time.Duration]() {
		if v := reflect.ValueOf(configured); v.CanInt() && v.Int() != 0 || v.CanFloat() {
			errs = append(errs, fmt.Errorf("%s: %v has no unit: write %[2]vs for seconds, or another unit such as ms, m or h", key, configured))
		}
		return errs
	}
	switch configured := configured.(type) {
	case []any:
		if t.Kind() == reflect.Slice {
			for i, item := range configured {
				errs = append(errs, withoutUnit(t.Elem(), item, fmt.Sprintf("%s[%d]", key, i))...)
			}
		}
	case map[string]any:
		if t.Kind() == reflect.Pointer {
			return withoutUnit(t.Elem(), configured, key)
		}
		if t.Kind() != reflect.Struct {
			return nil
		}
		if inner, ok := t.FieldByName("value"); ok && strings.HasPrefix(t.Name(), "Optional[") {
			return withoutUnit(inner.Type, configured, key)
		}
		for i := range t.NumField() {
			name, options, _ := strings.Cut(t.Field(i).Tag.Get("mapstructure"), ",")
			if options == "squash" {
				errs = append(errs, withoutUnit(t.Field(i).Type, configured, key)...)
			} else if value, ok := configured[name]; ok && name != "" {
				errs = append(errs, withoutUnit(t.Field(i).Type, value, strings.TrimPrefix(key+"."+name, "."))...)
			}
		}
	}
	return errs
}
