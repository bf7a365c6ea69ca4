// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package cputriggerprocessor

import (
	"fmt"
	"strings"

	"go.opentelemetry.io/collector/pdata/pprofile"
)

// profileType is one entry of profile_types: a name, or a type with its unit.
type profileType struct{ name, unit string }

// profileNames are the names of profile types that need no unit.
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

// passesType reports whether the profile_types of a policy have the type of a
// profile.
func passesType(types []profileType, d pprofile.ProfilesDictionary, p pprofile.Profile) bool {
	if len(types) == 0 {
		return true
	}
	str := func(i int32) string {
		if i < 0 || int(i) >= d.StringTable().Len() {
			return ""
		}
		return d.StringTable().At(int(i))
	}
	name, unit := str(p.SampleType().TypeStrindex()), str(p.SampleType().UnitStrindex())
	kind := name
	if name == "samples" { // of what is in the period
		kind = str(p.PeriodType().TypeStrindex())
	}
	for _, t := range types {
		if t.unit == "" && t.name == kind || t.unit != "" && t.name == name && t.unit == unit {
			return true
		}
	}
	return false
}
