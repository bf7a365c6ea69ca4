// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package processes

import (
	"strings"

	"github.com/hotprofile/hotprofile/internal/texts"
)

// text converts untrusted bytes to a string that is safe to export. It uses at most limit
// bytes of b. Replaced invalid bytes may make the string longer.
func text(b []byte, limit int) string {
	return strings.ToValidUTF8(texts.Cut(string(b[:min(len(b), limit+1)]), limit), "\uFFFD")
}
