// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package symbolizer

import (
	"os"

	"github.com/hotprofile/hotprofile/internal/samples"
)

// OpenMapping opens the file behind a mapping. It never follows the path outside the
// process's own root, and opens only a regular file with the mapping's inode.
func OpenMapping(root string, m *samples.Mapping) (*os.File, error) {
	f, _, err := openMapping(root, m)
	return f, err
}

// VDSOPath is the path of the mapping of the vdso.
const VDSOPath = "[vdso]"
