// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package procfs

import (
	"errors"
	"io/fs"
	"syscall"
)

// IsGone reports whether an error means that the process has ended, as opposed
// to a file that may not be read. ESRCH is the kernel's answer for a file that was
// opened before the process ended.
func IsGone(err error) bool { return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH) }
