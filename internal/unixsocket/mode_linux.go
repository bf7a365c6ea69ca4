// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package unixsocket

import (
	"errors"
	"syscall"
)

// ownerOnly makes the file of a socket that is about to be bound the owner's
// alone: Linux gives the file the mode of the socket. Without it there would be
// a moment in which the umask alone decides who may connect.
func ownerOnly(_, _ string, c syscall.RawConn) error {
	var set error
	err := c.Control(func(fd uintptr) { set = syscall.Fchmod(int(fd), 0o600) })
	return errors.Join(err, set)
}
