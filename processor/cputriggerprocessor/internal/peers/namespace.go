// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package peers

import (
	"errors"
	"maps"
	"net/netip"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/hotprofile/hotprofile/internal/cgroup"
	"github.com/hotprofile/hotprofile/internal/procfs"
	"github.com/hotprofile/hotprofile/internal/sockdiag"
)

// namespace is a network namespace that contains units.
type namespace struct {
	id        procfs.Namespace
	it        *sockdiag.Namespace
	units     []*unit
	conns     map[uint64]*conn  // sockets of followed units, by socket cookie
	foreign   map[uint64]uint64 // other sockets: number of the last call of Look that saw the socket, by socket cookie
	listening map[uint16]*unit  // owners of listening TCP ports; nil: not a followed unit
	makers    map[uint16]uint64 // by listening port, the cgroup in which the socket was created
	fresh     []fresh
	began     bool      // at least one dump was complete
	partial   bool      // the last dump was incomplete, so sockets that are new in the next dump may be old
	readAt    time.Time // when the last dump began
}

// conn is the last known state of a unit's socket.
type conn struct {
	owner     *unit
	peer      *peer // nil for a listening socket
	last      sockdiag.TCPInfo
	connected bool
	outbound  bool
	seen      uint64 // number of the last call of Look that saw the socket
}

// fresh is a socket whose owner is not known yet.
type fresh struct {
	sockdiag.Socket
	old bool // an earlier call of Look saw the socket
}

func newNamespace(id procfs.Namespace, it *sockdiag.Namespace) *namespace {
	return &namespace{id: id, it: it, conns: map[uint64]*conn{}, foreign: map[uint64]uint64{}, listening: map[uint16]*unit{}, makers: map[uint16]uint64{}}
}

// add adds a unit to the namespace. Sockets without an owner may belong to the new unit,
// so add makes the next call of Look check these sockets again.
func (ns *namespace) add(u *unit) {
	u.ns, u.began = ns, false
	ns.units = append(ns.units, u)
	clear(ns.foreign)
}

func (ns *namespace) remove(u *unit) {
	ns.units = slices.DeleteFunc(ns.units, func(other *unit) bool { return other == u })
	for cookie, c := range ns.conns {
		if c.owner == u {
			ns.drop(cookie, c)
		}
	}
}

// drop forgets a connection.
func (ns *namespace) drop(cookie uint64, c *conn) {
	if c.peer != nil {
		c.peer.conns--
	}
	delete(ns.conns, cookie)
}

// only returns the unit that owns all sockets of the
// namespace. It returns nil if there is no such unit.
func (ns *namespace) only() *unit {
	if len(ns.units) == 1 && ns.units[0].exclusive {
		return ns.units[0]
	}
	return nil
}

// read reads the current sockets, and the final counts of closed connections. n is the
// number of current sockets that were read.
func (ns *namespace) read(f *Follower, l sockdiag.Limits) (n int, err error) {
	again, began := f.look%resolveEvery == 0, time.Now()
	ns.fresh = ns.fresh[:0]
	clear(ns.makers)
	listening := make(map[uint16]*unit, len(ns.listening))
	err = ns.it.Each(l, func(s *sockdiag.Socket) {
		n++
		if s.Protocol == sockdiag.TCP && !s.HasTCP {
			return // the connection is closed, and only its addresses are left
		}
		c := ns.conns[s.Cookie]
		if s.State == sockdiag.Listen {
			ns.makers[s.Local.Port()] = s.Cgroup
			var owner *unit
			if c != nil {
				owner = c.owner
			}
			listen(listening, s.Local.Port(), owner)
		}
		switch _, foreign := ns.foreign[s.Cookie]; {
		case foreign && !again:
			ns.foreign[s.Cookie] = f.look
		case c == nil:
			ns.fresh = append(ns.fresh, fresh{*s, foreign})
		case c.seen == f.look: // a dump may contain a socket twice
		default:
			if c.seen = f.look; c.peer != nil {
				c.see(s)
			}
		}
	})
	whole := err == nil
	if !whole {
		for port, u := range ns.listening {
			if _, ok := listening[port]; !ok {
				listening[port] = u
			}
		}
	}
	ns.listening = listening
	ns.claim(f)
	if cap(ns.fresh) > 10_000 {
		ns.fresh = nil // releases its memory
	}
	if whole {
		ns.sweep(f)
	}
	ns.partial = !whole
	defer func() { ns.readAt = began }()
	ns.readClosed(f, sockdiag.Limits{Sockets: maxClosed, Deadline: time.Now().Add(maxLook)})
	if whole {
		ns.began = true
		for _, u := range ns.units {
			u.began = true
		}
	}
	return n, err
}

// listen records the owner of a listening port. If several units listen on different
// addresses of the same port, the first followed unit becomes the owner.
func listen(ports map[uint16]*unit, port uint16, owner *unit) {
	if ports[port] == nil {
		ports[port] = owner
	}
}

// claim finds the owners of fresh sockets. It starts with listening sockets, because they
// determine the direction of the connections.
func (ns *namespace) claim(f *Follower) {
	if len(ns.fresh) == 0 {
		return
	}
	of, sure := ns.owners(f)
	for pass := range 2 {
		for i := range ns.fresh {
			s := &ns.fresh[i]
			if listens := s.State == sockdiag.Listen; listens != (pass == 0) {
				continue
			}
			owner := of(&s.Socket)
			if pass == 0 {
				listen(ns.listening, s.Local.Port(), owner)
			}
			if owner == nil && s.Inode == 0 && s.State != sockdiag.Listen {
				if port, ok := ns.listening[s.Local.Port()]; ok {
					owner = port // no process has accepted the connection yet
				}
			}
			ns.begin(f, s, owner, sure)
		}
	}
}

// begin starts to follow a fresh socket.
func (ns *namespace) begin(f *Follower, s *fresh, owner *unit, sure bool) {
	delete(ns.foreign, s.Cookie)
	switch {
	case ns.conns[s.Cookie] != nil:
		return // a dump may contain a socket twice
	case owner == nil && (s.Inode == 0 || !sure) && s.State != sockdiag.Listen:
		return // the next call of Look checks the socket again
	case owner == nil:
		ns.foreign[s.Cookie] = f.look
		return
	}
	c := &conn{owner: owner, seen: f.look}
	ns.conns[s.Cookie] = c
	if s.State == sockdiag.Listen {
		return
	}
	ns.join(f, c, &s.Socket)
	if s.old || ns.partial || !owner.began {
		c.last, c.connected = s.TCP, s.State != sockdiag.SynSent // its earlier traffic must not be counted now
	}
	c.see(&s.Socket)
}

// join finds the peer of a connection.
func (ns *namespace) join(f *Follower, c *conn, s *sockdiag.Socket) {
	_, called := ns.listening[s.Local.Port()]
	c.outbound = !called || s.Protocol != sockdiag.TCP
	k := key{addr: s.Remote.Addr(), port: s.Remote.Port(), protocol: s.Protocol, outbound: c.outbound}
	if !c.outbound {
		k.port = s.Local.Port()
	}
	c.peer = f.peerOf(c.owner, k)
	c.peer.conns++
}

// see adds the traffic of a connection since it was last read, and records
// its current state.
func (c *conn) see(s *sockdiag.Socket) {
	bytes := c.grow(s)
	p := c.peer
	if s.State == sockdiag.SynSent {
		return
	}
	if !c.connected && s.Protocol == sockdiag.TCP {
		p.step.connects++
	}
	c.connected = true
	if s.State == sockdiag.Established || s.State == sockdiag.CloseWait { // in other states, the program has closed the connection
		p.connections++
	}
	p.sendQueue += int64(s.SendQueue)
	p.receiveQueue += int64(s.ReceiveQueue)
	c.addRTT(s, bytes)
}

// addRTT adds a round-trip time to the means of the peer and of the unit, weighted by
// bytes.
func (c *conn) addRTT(s *sockdiag.Socket, bytes uint64) {
	if !s.HasTCP || s.TCP.RTT <= 0 {
		return
	}
	rtt, weight, p, tcp := s.TCP.RTT.Seconds(), float64(bytes), c.peer, &c.owner.tcp
	p.rtt += (weight + 1) * rtt
	p.variation += (weight + 1) * s.TCP.RTTVar.Seconds()
	p.weight += weight + 1
	tcp.RoundTrip += weight * rtt
	tcp.Bytes += weight
}

// grow adds the growth of a connection's counts to its peer. It returns the number of bytes
// that were sent and received.
func (c *conn) grow(s *sockdiag.Socket) (bytes uint64) {
	if !s.HasTCP {
		return 0
	}
	t, last, step := &s.TCP, &c.last, &c.peer.step
	sent, received := since(t.Sent, last.Sent), since(t.Received, last.Received)
	step.sent += int64(sent)
	step.received += int64(received)
	step.segments += int64(t.SegmentsSent - last.SegmentsSent) // these counters wrap around
	step.retransmits += int64(t.Retransmits - last.Retransmits)
	busy := since(t.Busy, last.Busy)
	window, buffer := since(t.ReceiverWindow, last.ReceiverWindow), since(t.SendBuf, last.SendBuf)
	step.window += window
	step.buffer += buffer
	step.network += max(0, busy-window-buffer)
	c.last = *t
	return sent + received
}

// since returns the growth of a count. It returns 0 if the count decreased.
func since[T uint64 | time.Duration](now, before T) T {
	if now < before {
		return 0
	}
	return now - before
}

// sweep forgets the sockets that the last missedLooks calls of Look did not see.
func (ns *namespace) sweep(f *Follower) {
	for cookie, c := range ns.conns {
		if f.look-c.seen >= missedLooks {
			ns.drop(cookie, c)
		}
	}
	maps.DeleteFunc(ns.foreign, func(_, seen uint64) bool { return f.look-seen >= missedLooks })
}

// readClosed reads the final counts of closed connections.
func (ns *namespace) readClosed(f *Follower, l sockdiag.Limits) {
	lost, err := ns.it.Closed(l, func(s *sockdiag.Socket) { ns.closed(f, s) })
	if lost {
		f.cfg.AddLost(LostClosed, 1)
	}
	if err != nil {
		f.logOnce("cannot read closed connections", zap.Error(err))
	}
}

// closed adds the final counts of one closed connection.
func (ns *namespace) closed(f *Follower, s *sockdiag.Socket) {
	established := s.TCP.RTT > 0 || s.TCP.Sent > 0 || s.TCP.Received > 0
	_, foreign := ns.foreign[s.Cookie]
	delete(ns.foreign, s.Cookie)
	c := ns.conns[s.Cookie]
	if c == nil {
		switch {
		case foreign, !ns.began, !s.Remote.IsValid(), s.Remote.Port() == 0:
			return // the connection belongs to another unit, may be older than the first dump, or never had a peer
		case established && s.TCP.LastAck > time.Since(ns.readAt)+time.Second:
			return // the connection was reset long ago and closed only now, so it was already counted
		}
		owner, called := ns.listening[s.Local.Port()]
		if !called {
			owner = ns.only()
			if owner == nil {
				f.cfg.AddLost(LostUnknown, 1)
			}
		}
		if owner == nil || !owner.began {
			return
		}
		c = &conn{owner: owner}
		ns.join(f, c, s)
		if ns.partial {
			c.last, c.connected = s.TCP, true // the connection may be older than the last dump
		}
	}
	ns.drop(s.Cookie, c)
	if c.peer == nil {
		return
	}
	bytes := c.grow(s)
	switch {
	case c.connected:
	case established || !c.outbound:
		c.peer.step.connects++
	default:
		c.peer.step.failures++
		return
	}
	c.addRTT(s, bytes)
}

// owners returns a function that returns the owner of a socket. If sure is true, a socket
// without an owner belongs to no unit. Otherwise some open files could not be read.
func (ns *namespace) owners(f *Follower) (of func(*sockdiag.Socket) *unit, sure bool) {
	if u := ns.only(); u != nil {
		return func(*sockdiag.Socket) *unit { return u }, true
	}
	sure = true
	byCgroup, byInode := ns.units[:0:0], ns.units[:0:0]
	for _, u := range ns.units {
		if u.ids != nil {
			byCgroup = append(byCgroup, u)
		} else {
			byInode = append(byInode, u)
		}
	}
	held := map[uint32]*unit{}
	deadline := time.Now().Add(maxLook / 2)
	for _, u := range byInode {
		inodes, whole := f.inodes(u, deadline)
		sure = sure && whole
		for inode := range inodes {
			held[inode] = u
		}
	}
	return func(s *sockdiag.Socket) *unit {
		for _, u := range byCgroup {
			if s.Cgroup != 0 && u.ids[s.Cgroup] {
				return u
			}
		}
		return held[s.Inode]
	}, sure
}

// inodes returns the inodes of the sockets that the processes of a unit have open. whole
// reports whether all open files of the processes were read.
func (f *Follower) inodes(u *unit, deadline time.Time) (inodes map[uint32]bool, whole bool) {
	inodes = map[uint32]bool{}
	pids := map[int]bool{u.Process.PID: true}
	if u.Process.PID == 0 {
		var err error
		if pids, err = f.cfg.Tree.Processes(u.Group); err != nil {
			return inodes, isGone(err) || errors.Is(err, cgroup.TooManyProcesses)
		}
	}
	whole = true
	for pid := range pids {
		whole = f.procfs.AddSockets(inodes, pid, maxSockets, deadline) && whole
		if !time.Now().Before(deadline) {
			return inodes, false
		}
	}
	return inodes, whole
}

// key identifies a peer of a unit.
type key struct {
	addr     netip.Addr
	port     uint16 // the peer's port if outbound, otherwise the unit's port
	protocol sockdiag.Protocol
	outbound bool
}
