// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package unixsocket

import (
	"errors"
	"fmt"
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// ownerOnly makes the file of a socket accessible to its owner alone before it is
// bound: Linux gives the file the mode of the socket. Without it the umask would
// decide for a moment who may connect.
func ownerOnly(_, _ string, c syscall.RawConn) error {
	var set error
	err := c.Control(func(fd uintptr) { set = syscall.Fchmod(int(fd), 0o600) })
	return errors.Join(err, set)
}

// Peer returns the process that connected, in this process's pid namespace (0 for one
// outside of that), and its user.
func Peer(c net.Conn) (pid, uid int, err error) {
	conn, ok := c.(*net.UnixConn)
	if !ok {
		return 0, 0, fmt.Errorf("ask the kernel who is at the other end: %T is no Unix socket", c)
	}
	raw, err := conn.SyscallConn()
	if err != nil {
		return 0, 0, fmt.Errorf("ask the kernel who is at the other end: %w", err)
	}
	var peer *unix.Ucred
	var asked error
	err = raw.Control(func(fd uintptr) { peer, asked = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	if err := errors.Join(err, asked); err != nil {
		return 0, 0, fmt.Errorf("ask the kernel who is at the other end: %w", err)
	}
	return int(peer.Pid), int(peer.Uid), nil
}
