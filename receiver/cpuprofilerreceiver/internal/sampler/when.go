// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package sampler

import (
	"errors"
	"fmt"

	"github.com/hotprofile/hotprofile/extension/hotunitsextension"
)

// When selects what a sampler that costs more than others samples: the value of
// the key when.
type When string

// The values of when.
const (
	WhenHot    When = "hot"
	WhenAlways When = "always"
)

// Check returns an error for an unknown value.
func (w When) Check() error {
	if w != "" && w != WhenHot && w != WhenAlways {
		return fmt.Errorf("when: %q is not one of %s, %s", w, WhenHot, WhenAlways)
	}
	return nil
}

// Resolve reports whether a sampler samples hot units alone, and why; hot is nil
// without a hot_units extension.
func (w When) Resolve(hot *hotunitsextension.HotUnits) (isHot bool, why string, err error) {
	switch {
	case w == WhenHot && hot == nil:
		return false, "", errors.New("when: hot needs a hot_units extension: name one in extensions and in service.extensions, or write when: always")
	case w == WhenAlways:
		return false, "always", nil
	case w == "" && hot == nil:
		return false, "always, as there is no hot_units extension", nil
	case w == "":
		return true, "hot, as there is a hot_units extension", nil
	default:
		return true, "hot", nil
	}
}
