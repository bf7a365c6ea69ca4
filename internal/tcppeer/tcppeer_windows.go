// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package tcppeer finds the process at the other end of a TCP connection on this host.
package tcppeer

import (
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

// Find returns the process that holds the accepted end of a connection over the loopback.
func (*Finder) Find(ctx context.Context, c net.Conn) ([]int, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, maxWait, errors.New("Windows names no process that holds the connection"))
	defer cancel()
	for {
		all, err := sockets.ConnectionsWithContext(ctx, "tcp") // GetExtendedTcpTable
		for _, s := range all {
			if s.Pid != 0 && is(s.Laddr, c.RemoteAddr()) && is(s.Raddr, c.LocalAddr()) {
				return []int{int(s.Pid)}, nil
			}
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("find the process at the other end of %s: %w", c.RemoteAddr(), errors.Join(err, context.Cause(ctx)))
		case <-time.After(again):
		}
	}
}

// is reports whether two addresses are the same.
func is(a sockets.Addr, b net.Addr) bool {
	tcp, ok := b.(*net.TCPAddr)
	return ok && int(a.Port) == tcp.Port && tcp.IP.Equal(net.ParseIP(a.IP))
}
