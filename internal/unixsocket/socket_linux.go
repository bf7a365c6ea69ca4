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

// ownerOnly makes a socket's file accessible only to its owner before the socket is bound.
// Linux gives the file the mode of the socket. Otherwise the umask would briefly decide who
// may connect.
func ownerOnly(_, _ string, c syscall.RawConn) error {
	var set error
	err := c.Control(func(fd uintptr) { set = syscall.Fchmod(int(fd), 0o600) })
	return errors.Join(err, set)
}

// Peer returns the pid and the user id of the process that connected. The pid is in this
// process's pid namespace, or 0 if the process is outside the namespace.
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
