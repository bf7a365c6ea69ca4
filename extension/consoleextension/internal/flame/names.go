// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package flame

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/hotprofile/hotprofile/internal/truncate"
)

// Clean makes a string safe to display within other text. It replaces control characters,
// and characters that reverse the writing direction, with their codes. Bytes that are not
// valid UTF-8 become U+FFFD.
func Clean(s string) string {
	if !strings.ContainsFunc(s, unprintable) && utf8.ValidString(s) {
		return s
	}
	var b strings.Builder
	for _, r := range strings.ToValidUTF8(s, "\uFFFD") {
		if unprintable(r) {
			fmt.Fprintf(&b, `\u%04x`, r)
		} else {
			b.WriteRune(r)
		}
	}
	return b.String()
}

func unprintable(r rune) bool {
	return unicode.In(r, unicode.Cc, unicode.Cf, unicode.Zl, unicode.Zp, unicode.Co)
}

const ellipsis = "…"

// Short truncates a string to at most n bytes. A truncated string ends with an ellipsis.
func Short(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return truncate.Cut(s, max(n-len(ellipsis), 0)) + ellipsis
}

// ShortPath truncates a path to at most n bytes. It keeps the end of the path.
func ShortPath(s string, n int) string {
	if len(s) <= n {
		return s
	}
	from := len(s) - max(n-len(ellipsis), 0)
	for from < len(s) && !utf8.RuneStart(s[from]) {
		from++
	}
	return ellipsis + s[from:]
}
