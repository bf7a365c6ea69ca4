// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package dotnet

import (
	"context"
	"net"
	"strconv"

	"github.com/hotprofile/hotprofile/internal/procfs"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/processes"
)

// Client is the process that connected to a Unix socket or, on Windows,
// over the loopback.
type Client struct {
	// Process contains the pid in the collector's pid namespace. The pid is 0 for a process
	// outside of this namespace.
	procfs.Process
	// Err is the reason why a part of Process is unknown.
	Err error
}

type clientKey struct{}

// WithClient returns a context with the client, for requests on a connection of a
// clientListener. For other connections it returns ctx.
func WithClient(ctx context.Context, c net.Conn) context.Context {
	if a, ok := c.RemoteAddr().(clientAddr); ok {
		return context.WithValue(ctx, clientKey{}, a.client)
	}
	return ctx
}

// ConnOf returns a connection that consists only of a client, for tests.
func ConnOf(p Client) net.Conn { return clientConn{&net.UnixConn{}, p} }

// clientListener asks the kernel for the process of a connection at once, because the pid
// may later belong to another process.
type clientListener struct {
	net.Listener
	identify func(pid int) (processes.Identity, error)
}

// Accept waits for the next connection.
func (l clientListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	pid, known, err := peer(c)
	if !known {
		return c, nil
	}
	p := Client{Process: procfs.Process{PID: pid}, Err: err}
	if err == nil && pid != 0 {
		var who processes.Identity
		who, p.Err = l.identify(p.PID)
		p.Process = who.Process
	}
	return clientConn{c, p}, nil
}

// clientConn stores its client in its remote address, because the wrappers for limits and
// TLS preserve that address.
type clientConn struct {
	net.Conn
	client Client
}

// NetConn returns the wrapped connection.
func (c clientConn) NetConn() net.Conn { return c.Conn }

func (c clientConn) RemoteAddr() net.Addr { return clientAddr{c.Conn.RemoteAddr(), c.client} }

type clientAddr struct {
	net.Addr
	client Client
}

func (a clientAddr) String() string { return "process " + strconv.Itoa(a.client.PID) }
