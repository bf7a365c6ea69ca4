// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package texts cuts texts, and finds the text that another one was meant to be.
package texts

import (
	"strings"
	"unicode/utf8"
)

// Short returns the beginning of a text in at most n bytes, with "…" after it where it was
// cut.
func Short(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return Cut(s, n) + "…"
}

// Cut returns the beginning of a text in at most n bytes, without a part of a character
// at its end. What was cut is a copy, so that the rest can be freed.
func Cut(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for back := range min(n+1, utf8.UTFMax) {
		if utf8.RuneStart(s[n-back]) {
			return strings.Clone(s[:n-back])
		}
	}
	return strings.Clone(s[:n]) // it is not UTF-8
}
