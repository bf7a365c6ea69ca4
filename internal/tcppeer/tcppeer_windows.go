// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package tcppeer finds the process at the other end of a TCP connection on this host.
package tcppeer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	sockets "github.com/shirou/gopsutil/v4/net"
)

const (
	maxWait = 2 * time.Second // for the server to accept the connection
	again   = 20 * time.Millisecond
)

// A Finder finds the processes behind connections.
type Finder struct{}

// New returns a Finder.
func New(string) *Finder { return &Finder{} }

// Find returns the process that holds the accepted end of a loopback connection.
func (*Finder) Find(ctx context.Context, c net.Conn) ([]int, error) {
	ctx, cancel := context.WithTimeout(ctx, maxWait)
	defer cancel()
	for {
		pid, err := Holder(c.RemoteAddr(), c.LocalAddr())
		if err == nil {
			return []int{pid}, nil
		}
		select {
		case <-ctx.Done():
			return nil, err
		case <-time.After(again):
		}
	}
}

// Holder returns the pid of the process that owns a TCP socket. local is the local
// address of the socket, and remote is its remote address.
func Holder(local, remote net.Addr) (pid int, err error) {
	all, err := sockets.Connections("tcp") // GetExtendedTcpTable
	for _, s := range all {
		if s.Pid != 0 && is(s.Laddr, local) && is(s.Raddr, remote) {
			return int(s.Pid), nil
		}
	}
	return 0, fmt.Errorf("find the process that holds the connection from %s to %s: %w", local, remote, cmp.Or(err, errNone))
}

var errNone = errors.New("the list of connections has none")

// is reports whether two addresses are the same.
func is(a sockets.Addr, b net.Addr) bool {
	tcp, ok := b.(*net.TCPAddr)
	return ok && int(a.Port) == tcp.Port && tcp.IP.Equal(net.ParseIP(a.IP))
}
