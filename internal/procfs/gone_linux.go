// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package procfs

import (
	"errors"

	"golang.org/x/sys/unix"
)

// isReaped reports whether the error is the kernel's answer for a file of a
// process that ended after the file was opened.
func isReaped(err error) bool { return errors.Is(err, unix.ESRCH) }
