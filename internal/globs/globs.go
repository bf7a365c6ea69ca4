// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package globs validates and matches the globs in configurations.
package globs

import (
	"fmt"

	"github.com/bmatcuk/doublestar/v4"
)

const (
	// maxLength is the maximum length of a glob in bytes.
	maxLength = 1024
	// maxChoices is the maximum number of combinations of a glob's alternatives. The
	// number is limited because the matcher tries each combination.
	maxChoices = 256
)

// Check returns an error if a string is not a valid glob, or is a glob that cannot be
// matched quickly.
func Check(glob string) error {
	switch {
	case glob == "" || !doublestar.ValidatePattern(glob):
		return fmt.Errorf("%q is not a glob: * matches within a name and ** across /, ? one character, [a-z] and {a,b} choose, \\ escapes the next character", glob)
	case len(glob) > maxLength:
		return fmt.Errorf("a glob of %d bytes is too long: use at most %d, or several globs", len(glob), maxLength)
	case choices(glob) > maxChoices:
		return fmt.Errorf("%q has more than %d combinations of its alternatives in braces, and matching tries them all: use fewer, or several globs", glob, maxChoices)
	}
	return nil
}

// Match reports whether a valid glob matches a string. A string that equals the glob
// always matches.
func Match(glob, text string) bool { return glob == text || doublestar.MatchUnvalidated(glob, text) }

// choices returns the number of combinations of a valid glob's alternatives.
func choices(glob string) int {
	type level struct{ before, product int }
	levels := []level{{product: 1}}
	for i := 0; i < len(glob); i++ {
		top := &levels[len(levels)-1]
		switch glob[i] {
		case '\\':
			i++
		case '[':
			for i++; i < len(glob) && glob[i] != ']'; i++ {
				if glob[i] == '\\' {
					i++
				}
			}
		case '{':
			levels = append(levels, level{product: 1})
		case ',':
			if len(levels) > 1 {
				*top = level{min(top.before+top.product, maxChoices+1), 1}
			}
		case '}':
			if len(levels) > 1 {
				levels = levels[:len(levels)-1]
				outer := &levels[len(levels)-1]
				outer.product = min(outer.product*(top.before+top.product), maxChoices+1)
			}
		}
	}
	return levels[0].product
}
