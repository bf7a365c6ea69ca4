// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package cputriggerprocessor

import (
	"fmt"
	"strings"
)

// profileType is one entry of profile_types: a name, or a type with its unit.
type profileType struct{ name, unit string }

// profileNames are the names that stand for a profile type without its unit.
const profileNames = "cpu, wall, off_cpu, runqueue, alloc_objects, alloc_space"

func parseProfileType(s string) (profileType, error) {
	if name, unit, ok := strings.Cut(s, "/"); ok {
		if name == "" || unit == "" || strings.Contains(unit, "/") {
			return profileType{}, fmt.Errorf("%q is not a type and a unit, as samples/count", s)
		}
		return profileType{name: name, unit: unit}, nil
	}
	for name := range strings.SplitSeq(profileNames, ", ") {
		if name == s {
			return profileType{name: name}, nil
		}
	}
	return profileType{}, fmt.Errorf("%q is not one of %s, or a type and a unit as samples/count", s, profileNames)
}
