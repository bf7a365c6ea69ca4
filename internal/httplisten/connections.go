// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package httplisten

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/hotprofile/hotprofile/internal/cgroup"
	"github.com/hotprofile/hotprofile/internal/procfs"
	"github.com/hotprofile/hotprofile/internal/token"
	"github.com/hotprofile/hotprofile/internal/unixsocket"
)

// ofClient returns the maximum number of connections of a client if there are no other
// clients. all is the maximum number of all connections.
func ofClient(all int) int { return max(1, all/2) }

// ofUser returns the maximum number of connections of one user's processes on a Unix
// socket. This limit does not apply to user 0 in containers, because each container is
// a separate client. all is the maximum number of connections in total.
func ofUser(all int) int { return max(1, all*3/4) }

// client identifies the remote end of a connection. If a field is empty,
// its limit does not apply.
type client struct {
	user string // on a Unix socket
	name string // the cgroup or process on a Unix socket, or the address over TCP
}

func (p client) String() string {
	if p.name == "" {
		return "this host"
	}
	return p.name
}

// clientOf returns the client of a kernel connection. Loopback connections have an empty
// client, because their addresses do not identify a process of this host. An IPv6 /64 is
// one client.
func clientOf(c net.Conn, cgroups *cgroup.Tree) client {
	if c, ok := c.(*net.UnixConn); ok {
		pid, uid, err := unixsocket.Peer(c)
		if err != nil {
			return client{user: "unknown", name: "unknown"}
		}
		return clientOnHost(pid, uid, cgroups)
	}
	at, err := netip.ParseAddrPort(c.RemoteAddr().String())
	switch ip := at.Addr().Unmap(); {
	case err != nil:
		return client{name: "unknown"}
	case ip.IsLoopback():
		return client{}
	case ip.Is6():
		prefix, _ := ip.Prefix(64)
		return client{name: prefix.String()}
	default:
		return client{name: ip.String()}
	}
}

// clientOnHost returns the client of a process. The client is the container or the service
// of the process, so a fork does not create a new client. If the process has already
// ended, its cgroup is unknown. All such processes of a user count as one client.
func clientOnHost(pid, uid int, cgroups *cgroup.Tree) client {
	user := fmt.Sprintf("user %d", uid)
	process := client{user: user, name: fmt.Sprintf("process %d of %s", pid, user)}
	if cgroups == nil || pid == 0 {
		return process
	}
	paths, err := cgroups.PathsOf(pid)
	if procfs.IsGone(err) {
		return client{user: user, name: "ended processes of " + user}
	}
	group := cgroups.GroupOf(paths)
	switch {
	case err != nil || group.ProcessOnly():
		return process
	case uid == 0 && group.ContainerID != "":
		user = ""
	}
	return client{user: user, name: "cgroup " + group.Cgroup}
}

// Stats counts the connections and requests that were affected by a server's limits.
type Stats struct {
	// GaveWay is the number of idle connections that were closed in favour of new
	// connections. Refused is the number of new connections that were closed because the
	// client or user had reached its limit and had no idle connection.
	GaveWay, Refused uint64
	// WrongHost is the number of requests whose Host was not allowed.
	WrongHost uint64
}

// Observe reports each count, with the reason as an attribute.
func (s Stats) Observe(o metric.Int64Observer) {
	for reason, n := range map[string]uint64{"host": s.WrongHost, "peer": s.Refused, "idle": s.GaveWay} {
		o.Observe(int64(n), metric.WithAttributes(attribute.String("reason", reason)))
	}
}

// connections is a listener that limits the number of connections in total, per client and
// per user. A client may have at most as many connections as there are free places. The
// first client therefore gets at most half of all connections, and the second client at
// most half of the rest, so there is always room for another client.
//
// When a limit is reached, the listener closes an idle connection to make room for the new
// connection. It chooses an idle connection of the same user, or of the client with the
// most connections. This client must have at least as many connections as the client of
// the new connection. A connection with unread bytes is not idle, even before its request
// begins.
//
// If no connection is idle, the new connection is closed. However, the first connection of
// a client waits, unless its user has reached the limit. Later connections then wait
// behind the first connection in the kernel's queue.
//
// Invariants:
//   - conns contains each connection that was accepted and not closed, at most max
//   - byClient and byUser count the connections, and contain no count of 0
type connections struct {
	net.Listener
	max     int
	cgroups *cgroup.Tree                    // if nil, clients on a Unix socket are processes
	about   func(net.Conn) (key, value any) // Config.About
	onLimit func(p client, gaveWay bool)

	mu       sync.Mutex
	conns    map[*conn]struct{}
	byClient map[string]int
	byUser   map[string]int
	moment   int64 // logical clock that orders events
	closed   bool
	stats    Stats
	change   chan struct{} // gets a token when a connection becomes idle or closes, or the listener closes
}

func newConnections(most int, cgroups *cgroup.Tree, onLimit func(p client, gaveWay bool)) *connections {
	return &connections{
		max: most, cgroups: cgroups, onLimit: onLimit,
		conns: map[*conn]struct{}{}, byClient: map[string]int{}, byUser: map[string]int{}, change: make(chan struct{}, 1),
	}
}

// conn is an accepted connection.
type conn struct {
	net.Conn
	of     *connections
	client client
	raw    syscall.RawConn // nil if not available
	// key and value are the result of connections.about.
	key, value any

	idleSince atomic.Int64 // value of connections.moment when it became idle; 0 during a request
}

// Read reads bytes of a request. The first byte marks the connection as busy.
func (c *conn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if n > 0 && c.idleSince.Load() != 0 {
		c.idleSince.Store(0)
	}
	return n, err
}

// Close closes the connection.
func (c *conn) Close() error {
	err := c.Conn.Close()
	c.of.remove(c)
	return err
}

// Accept returns the next connection that is within the limits.
func (l *connections) Accept() (net.Conn, error) {
	for {
		accepted, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		c := l.newConn(accepted)
		for {
			admitted, victim := l.admit(c)
			if victim != nil {
				l.onLimit(victim.client, true)
				_ = victim.Close()
				continue
			}
			if admitted {
				return c, nil
			}
			if !l.wait(c) {
				break
			}
		}
	}
}

func (l *connections) newConn(accepted net.Conn) *conn {
	c := &conn{Conn: accepted, of: l, client: clientOf(accepted, l.cgroups)}
	if below, ok := accepted.(syscall.Conn); ok {
		c.raw, _ = below.SyscallConn()
	}
	if l.about != nil {
		c.key, c.value = l.about(accepted)
	}
	return c
}

// connOf returns the conn behind a connection of the http.Server, which may be a TLS
// connection.
func connOf(c net.Conn) *conn {
	if secure, ok := c.(*tls.Conn); ok {
		c = secure.NetConn()
	}
	return c.(*conn)
}

// connContext is the ConnContext of the http.Server.
func connContext(ctx context.Context, c net.Conn) context.Context {
	if mine := connOf(c); mine.key != nil {
		return context.WithValue(ctx, mine.key, mine.value)
	}
	return ctx
}

// admit adds a connection if the limits allow the connection. Otherwise, admit returns
// the idle connection that must be closed in favour of the new connection. If there is no
// such connection, victim is nil.
func (l *connections) admit(c *conn) (admitted bool, victim *conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.clientFull(c.client):
		own := l.byClient[c.client.name]
		victim = l.idlest(func(other *conn) bool { return l.byClient[other.client.name] >= own })
	case l.userFull(c.client):
		victim = l.idlest(func(other *conn) bool { return other.client.user == c.client.user })
	case len(l.conns) >= l.max:
		victim = l.idlest(func(*conn) bool { return true })
	default:
		c.idleSince.Store(l.next())
		l.conns[c] = struct{}{}
		l.byClient[c.client.name]++
		l.byUser[c.client.user]++
		return true, nil
	}
	if victim != nil {
		l.stats.GaveWay++
		l.drop(victim)
	}
	return false, victim
}

func (l *connections) next() int64 {
	l.moment++
	return l.moment
}

// clientFull reports whether a client has at least as many connections as there are free
// places. If a client has no name or no connection, clientFull returns false.
func (l *connections) clientFull(p client) bool {
	own := l.byClient[p.name]
	return p.name != "" && own > 0 && own >= l.max-len(l.conns)
}

func (l *connections) userFull(p client) bool {
	return p.user != "" && l.byUser[p.user] >= ofUser(l.max)
}

// idlest returns the idle connection to close, among the connections for which selected
// returns true. It prefers the client with the most connections, and then the connection
// that has been idle for longest. A connection with unread bytes is not idle, because a
// request is arriving. If there is no idle connection, idlest returns nil.
func (l *connections) idlest(selected func(*conn) bool) (out *conn) {
	most, first := 0, int64(0)
	for c := range l.conns {
		since, n := c.idleSince.Load(), l.byClient[c.client.name]
		switch {
		case since == 0 || !selected(c):
		case out != nil && (n < most || n == most && since > first):
		case c.raw != nil && hasUnread(c.raw): // last, because it is a system call
		default:
			out, most, first = c, n, since
		}
	}
	return out
}

// wait waits until another connection is idle or closed. If the client or
// user has reached its limit, or the listener is closed, wait closes the
// connection and returns false.
func (l *connections) wait(c *conn) bool {
	l.mu.Lock()
	full, closed := l.clientFull(c.client) || l.userFull(c.client), l.closed
	if full {
		l.stats.Refused++
	}
	l.mu.Unlock()
	if full {
		l.onLimit(c.client, false)
	}
	if full || closed {
		_ = c.Conn.Close()
		return false
	}
	<-l.change
	return true
}

func (l *connections) notify() { token.Put(l.change) }

func (l *connections) remove(c *conn) {
	l.mu.Lock()
	l.drop(c)
	l.mu.Unlock()
	l.notify()
}

// drop stops counting a connection.
func (l *connections) drop(c *conn) {
	if _, ok := l.conns[c]; !ok {
		return
	}
	delete(l.conns, c)
	less(l.byClient, c.client.name)
	less(l.byUser, c.client.user)
}

func less(counts map[string]int, key string) {
	if counts[key]--; counts[key] == 0 {
		delete(counts, key)
	}
}

// Close closes the listener.
func (l *connections) Close() error {
	l.mu.Lock()
	l.closed = true
	l.mu.Unlock()
	l.notify()
	return l.Listener.Close()
}

// setState is the ConnState callback of the http.Server. A connection is idle before its
// first request and between two requests.
func (l *connections) setState(c net.Conn, state http.ConnState) {
	switch state {
	case http.StateIdle:
		l.mu.Lock()
		connOf(c).idleSince.Store(l.next())
		l.mu.Unlock()
		l.notify()
	case http.StateActive:
		connOf(c).idleSince.Store(0)
	}
}
