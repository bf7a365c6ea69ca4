// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package truncate truncates strings.
package truncate

import (
	"strings"
	"unicode/utf8"
)

// Short truncates a string to at most n bytes. If it truncates the string, it appends "…" to
// the result.
func Short(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return Cut(s, n) + "…"
}

// Cut truncates a string to at most n bytes. It does not split a character. If Cut truncates
// the string, it returns a copy, so that the original can be freed.
func Cut(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for back := range min(n+1, utf8.UTFMax) {
		if utf8.RuneStart(s[n-back]) {
			return strings.Clone(s[:n-back])
		}
	}
	return strings.Clone(s[:n]) // the text is not UTF-8
}
