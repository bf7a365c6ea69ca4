// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package httplisten

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// hasUnread reports whether unread bytes have arrived.
func hasUnread(c syscall.RawConn) bool {
	n := 0
	err := c.Control(func(fd uintptr) { n, _ = unix.IoctlGetInt(int(fd), unix.TIOCINQ) })
	return err == nil && n > 0
}
