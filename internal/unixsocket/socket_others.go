// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package unixsocket

import (
	"errors"
	"net"
	"syscall"
)

// ownerOnly has no effect, because it needs Linux. The umask decides who may connect
// until the mode of the file is set.
func ownerOnly(_, _ string, _ syscall.RawConn) error { return nil }

// Peer always fails, because it needs Linux.
func Peer(net.Conn) (pid, uid int, err error) {
	return 0, 0, errors.New("ask the kernel who is at the other end: needs Linux")
}
