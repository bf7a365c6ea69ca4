// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !windows

package dotnet

import (
	"net"

	"github.com/hotprofile/hotprofile/internal/unixsocket"
)

// peer returns the process at the other end of a Unix socket. For other connections, known
// is false.
func peer(c net.Conn) (pid int, known bool, err error) {
	if c.LocalAddr().Network() != "unix" {
		return 0, false, nil
	}
	pid, _, err = unixsocket.Peer(c)
	return pid, true, err
}
