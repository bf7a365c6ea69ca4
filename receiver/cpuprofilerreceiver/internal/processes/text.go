// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package processes

import (
	"strings"

	"github.com/hotprofile/hotprofile/internal/texts"
)

// text turns untrusted bytes into a string that may go into a profile. The string is valid
// UTF-8 of at most limit bytes.
func text(b []byte, limit int) string {
	return strings.ToValidUTF8(texts.Cut(string(b[:min(len(b), limit+1)]), limit), "\uFFFD")
}
