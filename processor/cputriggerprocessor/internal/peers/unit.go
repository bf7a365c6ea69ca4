// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package peers

import (
	"cmp"
	"slices"
	"time"

	"github.com/hotprofile/hotprofile/extension/hotunitsextension"
	"github.com/hotprofile/hotprofile/internal/identify"
	"github.com/hotprofile/hotprofile/internal/monitor"
	"github.com/hotprofile/hotprofile/internal/sockdiag"
	"github.com/hotprofile/hotprofile/internal/trigger/order"
)

// unit is a unit whose connections are read.
type unit struct {
	identify.Identity
	wanted    time.Time // when it was last requested
	resolveAt uint64    // number of the call of Look that checks its namespace again
	ns        *namespace
	failed    error           // why its connections cannot be read; nil: no error
	exclusive bool            // no other unit is in its namespace
	ids       map[uint64]bool // ids of its cgroups; if nil, open files identify its sockets
	began     bool            // a dump of its namespace has been complete since it was added

	since     time.Time // when it was added
	forgotAt  time.Time // when a peer was last forgotten; zero: never
	peers     map[key]*peer
	listed    int
	rest      peer // its step counts the traffic of peers that are not in peers
	others    totals
	otherNow  gauges
	hasOthers bool

	tcp monitor.TCPFigures
}

// totals contains counts over a time span.
type totals struct {
	connects, failures      int64
	sent, received          int64
	segments, retransmits   int64
	window, buffer, network time.Duration
}

func (t *totals) add(s totals) {
	t.connects += s.connects
	t.failures += s.failures
	t.sent += s.sent
	t.received += s.received
	t.segments += s.segments
	t.retransmits += s.retransmits
	t.window += s.window
	t.buffer += s.buffer
	t.network += s.network
}

// gauges contains current values.
type gauges struct {
	connections, sendQueue, receiveQueue int64
	// rtt and variation are weighted sums over recent calls of Look. The means are these
	// sums divided by weight.
	rtt, variation, weight float64
}

func (g *gauges) add(o gauges) {
	g.connections += o.connections
	g.sendQueue += o.sendQueue
	g.receiveQueue += o.receiveQueue
	g.rtt += o.rtt
	g.variation += o.variation
	g.weight += o.weight
}

// fade prepares for a new reading. It resets the counts, and halves the weight
// of earlier round-trip times.
func (g *gauges) fade() {
	*g = gauges{rtt: g.rtt / 2, variation: g.variation / 2, weight: g.weight / 2}
}

// peer is one peer of a unit.
type peer struct {
	key
	start  time.Time
	conns  int  // number of its connections
	listed bool // it is reported separately
	score  float64
	idle   time.Time // since when it has no connections and no traffic; zero: it is not idle
	step   totals    // counts that settle has not processed yet
	total  totals    // counts while it was listed
	gauges
}

func newUnit(id identify.Identity, now time.Time) *unit {
	return &unit{Identity: id, wanted: now, since: now, peers: map[key]*peer{}}
}

// peerOf returns a peer of a unit, and adds the peer if it is
// new. If a limit is reached, peerOf returns u.rest.
func (f *Follower) peerOf(u *unit, k key) *peer {
	if p := u.peers[k]; p != nil {
		return p
	}
	if len(u.peers) >= maxUnitPeers || f.peers >= maxPeers {
		f.cfg.AddLost(LostPeers, 1)
		return &u.rest
	}
	p := &peer{key: k, start: u.since}
	if !u.forgotAt.IsZero() {
		p.start = u.forgotAt // this peer may have been forgotten before
	}
	u.peers[k] = p
	f.peers++
	return p
}

const (
	// scoreFade is the fraction of a peer's score that remains after each call of Look.
	// After 30 calls, a hundredth of the score remains.
	scoreFade = 0.86

	// ahead is the factor by which a peer's score must exceed the score of a listed peer
	// to replace the listed peer. Without this factor, peers would often be added and
	// removed, and each change would start a new series.
	ahead = 2

	// forgetAfter is the time after which a peer without connections is forgotten.
	forgetAfter = time.Minute
)

// settle completes a call of Look for a unit. It chooses the listed peers, which are
// reported separately. It adds the step of each listed peer to the peer's total, and the
// steps of all other peers to others.
func (f *Follower) settle(u *unit, now time.Time) {
	list := make([]*peer, 0, len(u.peers))
	for k, p := range u.peers {
		p.score = scoreFade*p.score + float64(p.step.sent+p.step.received) + 100*float64(p.connections) + 1000*float64(p.step.connects+p.step.failures)
		switch {
		case p.connections > 0 || p.step != totals{}:
			p.idle = time.Time{}
		case p.idle.IsZero():
			p.idle = now
		case now.Sub(p.idle) > forgetAfter && p.conns == 0:
			delete(u.peers, k)
			f.peers--
			u.forgotAt = now
			continue
		}
		list = append(list, p)
	}
	places := min(maxUnitListed, maxListed-(f.listed-u.listed))
	if len(list) > places {
		rank := func(p *peer) float64 {
			if p.listed {
				return ahead * p.score
			}
			return p.score
		}
		slices.SortFunc(list, func(a, b *peer) int { return cmp.Or(cmp.Compare(rank(b), rank(a)), a.compare(b.key)) })
	}
	f.listed -= u.listed
	u.listed = min(places, len(list))
	f.listed += u.listed

	u.hasOthers = u.hasOthers || len(list) > u.listed || u.rest.step != totals{} || u.rest.connections > 0
	u.others.add(u.rest.step)
	u.otherNow = u.rest.gauges
	u.count(u.rest.step)
	u.rest.step = totals{}
	for i, p := range list {
		if p.listed = i < u.listed; p.listed {
			p.total.add(p.step)
		} else {
			u.others.add(p.step)
			u.otherNow.add(p.gauges)
		}
		u.count(p.step)
		p.step = totals{}
	}
}

// fade halves the weight of earlier measurements of all peers, and resets the counts of
// the peers. It is called before the connections are read again.
func (u *unit) fade() {
	u.rest.fade()
	for _, p := range u.peers {
		p.fade()
	}
}

// count adds new counts to the counters for monitors.
func (u *unit) count(step totals) {
	u.tcp.Segments += float64(step.segments)
	u.tcp.Retransmits += float64(step.retransmits)
	u.tcp.Failures += float64(step.failures)
}

// figures returns the counters for monitors.
func (u *unit) figures(now time.Time) monitor.TCPFigures {
	t := u.tcp
	t.Elapsed = now.Sub(u.since)
	switch {
	case u.failed != nil && !isGone(u.failed):
		t.Err, t.FailuresErr = u.failed, u.failed
	case u.failed != nil, !u.began: // this package does not decide whether a unit is gone
		t.Err, t.FailuresErr = NotFollowed, NotFollowed
	case !u.exclusive && t.Elapsed < settling:
		t.FailuresErr = NotFollowed
	case !u.exclusive:
		t.FailuresErr = SharedNamespace
	case !u.ns.it.ReportsClosed():
		t.FailuresErr = NoClosed
	}
	return t
}

// readings returns a reading for each listed peer, and one reading for all other peers.
func (u *unit) readings(name func(*namespace, key) (unit, service string)) []hotunitsextension.PeerReading {
	if !u.began {
		return nil
	}
	out := make([]hotunitsextension.PeerReading, 0, u.listed+1)
	for _, p := range u.peers {
		if !p.listed {
			continue
		}
		r := reading(p.total, p.gauges)
		r.Address, r.Port, r.Outbound, r.Start = p.addr, p.port, p.outbound, p.start
		r.Transport = "tcp"
		if p.protocol == sockdiag.UDP {
			r.Transport = "udp"
		}
		r.Unit, r.Service = name(u.ns, p.key)
		out = append(out, r)
	}
	if u.hasOthers {
		r := reading(u.others, u.otherNow)
		r.Start = u.since
		out = append(out, r)
	}
	slices.SortFunc(out, func(a, b hotunitsextension.PeerReading) int {
		return cmp.Or(a.Start.Compare(b.Start), cmp.Compare(b.Sent+b.Received, a.Sent+a.Received), a.Address.Compare(b.Address), cmp.Compare(a.Port, b.Port))
	})
	return out
}

func reading(t totals, g gauges) hotunitsextension.PeerReading {
	r := hotunitsextension.PeerReading{
		Connects: t.connects, ConnectFailures: t.failures, Sent: t.sent, Received: t.received, Segments: t.segments, Retransmits: t.retransmits,
		ReceiverWindow: t.window, SendBuffer: t.buffer, Network: t.network,
		Connections: g.connections, SendQueue: g.sendQueue, ReceiveQueue: g.receiveQueue,
	}
	if r.HasRTT = g.weight > 0.5; r.HasRTT {
		r.RTT = time.Duration(g.rtt / g.weight * float64(time.Second))
		r.RTTVariation = time.Duration(g.variation / g.weight * float64(time.Second))
	}
	return r
}

func (k key) compare(o key) int {
	return cmp.Or(k.addr.Compare(o.addr), cmp.Compare(k.port, o.port), cmp.Compare(k.protocol, o.protocol), order.Bools(k.outbound, o.outbound))
}
