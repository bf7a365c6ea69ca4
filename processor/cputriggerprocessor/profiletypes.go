// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package cputriggerprocessor

import (
	"fmt"
	"slices"
	"strings"

	"go.opentelemetry.io/collector/pdata/pprofile"

	"github.com/hotprofile/hotprofile/internal/otlpprofiles/dictionary"
)

// profileNames are the names of profile types that need no unit.
const profileNames = "cpu, wall, off_cpu, runqueue, alloc_objects, alloc_space"

// validateProfileType checks one entry of profile_types: a name, or a type with its
// unit.
func validateProfileType(s string) error {
	switch name, unit, ok := strings.Cut(s, "/"); {
	case ok && (name == "" || unit == "" || strings.Contains(unit, "/")):
		return fmt.Errorf("%q is not a type and a unit, as samples/count", s)
	case !ok && !slices.Contains(strings.Split(profileNames, ", "), s):
		return fmt.Errorf("%q is not one of %s, or a type and a unit as samples/count", s, profileNames)
	}
	return nil
}

// passesType reports whether the profile_types of a policy have the type of a
// profile.
func passesType(types []string, d pprofile.ProfilesDictionary, p pprofile.Profile) bool {
	if len(types) == 0 {
		return true
	}
	of := dictionary.NewReader(d).ProfileType(p)
	kind := of.Sample
	if kind == "samples" { // of what is in the period
		kind = of.Period
	}
	return slices.ContainsFunc(types, func(t string) bool {
		name, unit, typed := strings.Cut(t, "/")
		return !typed && name == kind || typed && name == of.Sample && unit == of.Unit
	})
}
