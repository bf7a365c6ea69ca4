// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package unitmatch matches the attributes of a unit against the globs in a policy's match
// and exclude.
package unitmatch

import (
	"strings"

	"github.com/hotprofile/hotprofile/internal/cgroup"
	"github.com/hotprofile/hotprofile/internal/globs"
	"github.com/hotprofile/hotprofile/internal/otlpprofiles/attr"
)

// CgroupKey is the key for the path of a unit's cgroup. All other keys are resource
// attributes.
const CgroupKey = "cgroup"

// New returns a function that reports whether a value of the key matches the glob. A
// container's id also matches if it begins with the glob.
func New(key, glob string) (matches func(value string) bool, err error) {
	if key == CgroupKey {
		g, err := cgroup.ParseGlob(glob)
		if err != nil {
			return nil, err
		}
		return func(path string) bool { return path != "" && g.Match(path) }, nil
	}
	if err := globs.Check(glob); err != nil {
		return nil, err
	}
	prefix := key == attr.ContainerID && len(glob) >= cgroup.MinPrefix && !strings.ContainsAny(glob, `*?[{\`)
	return func(value string) bool {
		return prefix && strings.HasPrefix(value, glob) || globs.Match(glob, value)
	}, nil
}
