// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package dotnet

import (
	"net"

	"github.com/hotprofile/hotprofile/internal/tcppeer"
)

// peer returns the process at the other end of a connection over the loopback interface. For
// other connections, known is false.
func peer(c net.Conn) (pid int, known bool, err error) {
	if tcp, ok := c.RemoteAddr().(*net.TCPAddr); !ok || !tcp.IP.IsLoopback() {
		return 0, false, nil
	}
	pid, err = tcppeer.Holder(c.RemoteAddr(), c.LocalAddr())
	return pid, true, err
}
