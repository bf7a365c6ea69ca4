// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package configlog

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"go.opentelemetry.io/collector/config/confighttp"
	"go.opentelemetry.io/collector/confmap"
)

// Check returns an error for each unknown key of a configuration, and for each duration
// without a unit, which would count as nanoseconds. config is a value of the
// configuration's type. confmap alone is not enough, because confighttp's configurations
// ignore unknown keys, and because confmap's errors contain one line per level and the
// names of Go types.
func Check(conf *confmap.Conf, config any) error {
	return errors.Join(place{}.faults(reflect.TypeOf(config), conf.ToStringMap())...)
}

// Unmarshal decodes a configuration. If Check returns errors, Unmarshal returns
// these errors and decodes nothing.
func Unmarshal[T any](conf *confmap.Conf, config *T) error {
	if err := Check(conf, *config); err != nil {
		return err
	}
	return conf.Unmarshal(config)
}

// Between returns an error if the value of a key is not between least and most.
func Between[T cmp.Ordered](key string, got, least, most T) error {
	if got < least || got > most {
		return fmt.Errorf("%s: %v is not between %v and %v", key, got, least, most)
	}
	return nil
}

// OneOf returns an error if the value of a key is not allowed.
func OneOf[T ~string](key string, allowed []T, got T) error {
	if !slices.Contains(allowed, got) {
		return fmt.Errorf("%s: %q is not one of %s", key, got, strings.ReplaceAll(strings.Trim(fmt.Sprint(allowed), "[]"), " ", ", "))
	}
	return nil
}

// EachOneOf returns an error for each item of list that is not in allowed.
func EachOneOf[T ~string](key string, allowed, list []T) error {
	var errs []error
	for i, got := range list {
		errs = append(errs, OneOf(fmt.Sprintf("%s[%d]", key, i), allowed, got))
	}
	return errors.Join(errs...)
}

// Gone returns an error if the configuration contains a key of an earlier
// version. gone maps each such key to the behaviour that replaces it. Nested keys
// contain confmap's delimiter. A key of a list is a key of each of its items.
func Gone(conf *confmap.Conf, gone map[string]string) error {
	configured := conf.ToStringMap()
	for _, key := range slices.Sorted(maps.Keys(gone)) {
		if at, ok := (place{}).find(configured, strings.Split(key, confmap.KeyDelimiter)); ok {
			return fmt.Errorf("%s: this key is gone, remove it: %s", at.key, gone[key])
		}
	}
	return nil
}

// place identifies a value in a configuration.
type place struct {
	key string
	// name is the name of the innermost named list item that contains the place. If there
	// is no such item, name is empty.
	name string
}

func (p place) below(key string) place {
	p.key = strings.TrimPrefix(p.key+"."+key, ".")
	return p
}

// find returns the first place below p at which a key is configured. path contains the
// key and the keys around it.
func (p place) find(configured any, path []string) (place, bool) {
	switch configured := configured.(type) {
	case []any:
		for i, item := range configured {
			if at, ok := (place{key: fmt.Sprintf("%s[%d]", p.key, i)}).find(item, path); ok {
				return at, true
			}
		}
	case map[string]any:
		inner, ok := configured[path[0]]
		if p = p.below(path[0]); ok && len(path) > 1 {
			return p.find(inner, path[1:])
		}
		return p, ok
	}
	return place{}, false
}

// faults returns the faults in a configured value. t is the type that
// the value is decoded to.
func (p place) faults(t reflect.Type, configured any) (errs []error) {
	switch configured := configured.(type) {
	case []any:
		if t.Kind() == reflect.Slice {
			for i, item := range configured {
				at := place{fmt.Sprintf("%s[%d]", p.key, i), p.name}
				keys, _ := item.(map[string]any)
				if name, ok := keys["name"].(string); ok {
					at.name = name
				}
				errs = append(errs, at.faults(t.Elem(), item)...)
			}
		}
	case map[string]any:
		for t.Kind() == reflect.Pointer {
			t = t.Elem()
		}
		optional := isOptional(t)
		if optional {
			inner, _ := t.FieldByName("value")
			t = inner.Type
		}
		if t.Kind() != reflect.Struct {
			return nil
		}
		known, strict := keysOf(t), isStrict(t)
		for _, key := range slices.Sorted(maps.Keys(configured)) {
			if field, ok := known[key]; ok {
				errs = append(errs, p.below(key).faults(field, configured[key])...)
			} else if strict && (!optional || key != "enabled") {
				errs = append(errs, p.unknown(key, known))
			}
		}
	default:
		v := reflect.ValueOf(configured)
		if t == reflect.TypeFor[time.Duration]() && (v.CanInt() && v.Int() != 0 || v.CanFloat()) {
			errs = append(errs, fmt.Errorf("%s: %v has no unit: write %[2]vs for seconds, or another unit such as ms, m or h", p.key, configured))
		}
	}
	return errs
}

// unknown returns the error for an unknown key.
func (p place) unknown(key string, known map[string]reflect.Type) error {
	of := ""
	if p.name != "" {
		of = fmt.Sprintf(" of %q", p.name)
	}
	keys := slices.Sorted(maps.Keys(known))
	help := "the keys are " + strings.Join(keys, ", ")
	if nearest, distance := Nearest(key, keys); distance <= max(2, len(key)/3) {
		help = fmt.Sprintf("did you mean %q?", nearest)
	}
	return fmt.Errorf("%s: unknown key%s: %s", p.below(key).key, of, help)
}

// isOptional reports whether a type is a configoptional.Optional.
func isOptional(t reflect.Type) bool {
	return strings.HasPrefix(t.Name(), "Optional[") && strings.HasSuffix(t.PkgPath(), "/configoptional")
}

// isStrict reports whether the fields of a type are its only valid keys. Third-party
// types with their own Unmarshal may accept further keys.
func isStrict(t reflect.Type) bool {
	const own = "github.com/hotprofile/hotprofile/"
	return strings.HasPrefix(t.PkgPath(), own) || t.PkgPath() == reflect.TypeFor[confighttp.ClientConfig]().PkgPath() ||
		!reflect.PointerTo(t).Implements(reflect.TypeFor[confmap.Unmarshaler]())
}

// keysOf returns the keys of a struct and their types.
func keysOf(t reflect.Type) map[string]reflect.Type {
	keys := make(map[string]reflect.Type)
	for i := range t.NumField() {
		field := t.Field(i)
		key, options, _ := strings.Cut(field.Tag.Get("mapstructure"), ",")
		switch {
		case options == "squash":
			maps.Copy(keys, keysOf(field.Type))
		case key != "" && key != "-":
			keys[key] = field.Type
		}
	}
	return keys
}
