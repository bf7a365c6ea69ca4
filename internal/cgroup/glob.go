// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"fmt"
	"strings"

	"github.com/bmatcuk/doublestar/v4"
)

// A Glob matches cgroups by path: * within a name, ** across names.
type Glob struct{ pattern string }

// ParseGlob checks a pattern. A missing leading slash is added.
func ParseGlob(pattern string) (*Glob, error) {
	p := strings.TrimSuffix(pattern, "/")
	if !strings.HasPrefix(p, "/") {
		p = "/" + p
	}
	if pattern == "" || !doublestar.ValidatePattern(p) {
		return nil, fmt.Errorf("%q is not a valid glob of a cgroup's path: * matches within a name, ** across names, [a-z] and {a,b} alternatives, \\ escapes the next character", pattern)
	}
	return &Glob{pattern: p}, nil
}

// String returns the pattern.
func (g *Glob) String() string { return g.pattern }

// Match reports whether the glob matches the path or any cgroup above it, so that
// everything under a matched cgroup matches too. A path that equals the pattern
// matches, whatever characters systemd escaped in it.
func (g *Glob) Match(path string) bool {
	if Under(path, g.pattern) {
		return true
	}
	for end := 1; end <= len(path); end++ {
		if end == len(path) || path[end] == '/' {
			if g.matches(path[:end]) {
				return true
			}
		}
	}
	return false
}

// matches reports whether the glob matches the path itself.
func (g *Glob) matches(path string) bool {
	return path == g.pattern || doublestar.MatchUnvalidated(g.pattern, path)
}
