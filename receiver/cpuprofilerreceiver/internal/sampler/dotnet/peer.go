// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package dotnet

import (
	"context"
	"net"
	"strconv"

	"github.com/hotprofile/hotprofile/internal/procfs"
	"github.com/hotprofile/hotprofile/internal/unixsocket"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/processes"
)

// Peer is the process that connected to a Unix socket.
type Peer struct {
	// Process has the pid in the collector's pid namespace; 0 for a process outside
	// of it.
	procfs.Process
	// Err is why one of these is unknown.
	Err error
}

type peerKey struct{}

// WithPeer returns a context for the requests of a connection that peers has
// accepted; for any other connection it returns ctx.
func WithPeer(ctx context.Context, c net.Conn) context.Context {
	if a, ok := c.RemoteAddr().(peerAddr); ok {
		return context.WithValue(ctx, peerKey{}, a.peer)
	}
	return ctx
}

// ConnOf returns a connection that has only a peer, for tests.
func ConnOf(p Peer) net.Conn { return peerConn{&net.UnixConn{}, p} }

// peers is a listener at a Unix socket that asks the kernel at once who connected: a
// pid that is looked up later may be another process's.
type peers struct {
	net.Listener
	identify func(pid int) (processes.Identity, error)
}

// Accept waits for the next connection.
func (l peers) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	p := Peer{}
	if p.PID, _, p.Err = unixsocket.Peer(c); p.Err == nil && p.PID != 0 {
		var who processes.Identity
		who, p.Err = l.identify(p.PID)
		p.Process = who.Process
	}
	return peerConn{c, p}, nil
}

// peerConn has its peer in its remote address, which the wrappers for limits and TLS
// pass on.
type peerConn struct {
	net.Conn
	peer Peer
}

// NetConn returns the connection below.
func (c peerConn) NetConn() net.Conn { return c.Conn }

func (c peerConn) RemoteAddr() net.Addr { return peerAddr{c.Conn.RemoteAddr(), c.peer} }

type peerAddr struct {
	net.Addr
	peer Peer
}

func (a peerAddr) String() string { return "process " + strconv.Itoa(a.peer.PID) }
