// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package procfs

import (
	"errors"
	"io/fs"
)

// IsGone reports whether an error means that the process has ended, as opposed
// to a file that may not be read.
func IsGone(err error) bool { return errors.Is(err, fs.ErrNotExist) || isReaped(err) }
