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

// ownerOnly makes the file of a socket accessible only to its owner. It is called before
// the socket is bound, because Linux creates the file with the mode of the socket.
// Without ownerOnly, the umask would briefly decide who may connect.
func ownerOnly(_, _ string, c syscall.RawConn) error {
	var set error
	err := c.Control(func(fd uintptr) { set = syscall.Fchmod(int(fd), 0o600) })
	return errors.Join(err, set)
}

// Peer returns the pid and the user id of the process that connected. The pid is
// the pid in the namespace of this process. If the connected process is outside
// this namespace, the pid is 0.
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
