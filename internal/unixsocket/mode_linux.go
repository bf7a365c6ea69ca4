// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package unixsocket

import (
	"errors"
	"syscall"
)

// ownerOnly makes the file of a socket accessible to its owner alone before it is
// bound: Linux gives the file the mode of the socket. Without it the umask would
// decide for a moment who may connect.
func ownerOnly(_, _ string, c syscall.RawConn) error {
	var set error
	err := c.Control(func(fd uintptr) { set = syscall.Fchmod(int(fd), 0o600) })
	return errors.Join(err, set)
}
