// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"cmp"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"slices"
	"time"
)

const (
	// peerFresh is the maximum age of counters whose first values are added to the sums. The
	// first values of older counters also count events from long before the first report.
	peerFresh = 2 * time.Minute
	// peerGone is the time without a report after which a peer is forgotten, in seconds.
	peerGone = 600
)

// These are the values of a peer. The values from PeerConnections on are gauges, the others
// are counters.
const (
	PeerSent = iota
	PeerReceived
	PeerConnects
	PeerConnectFailures
	PeerSegments
	PeerRetransmits
	PeerReceiverWindow // in seconds, like the next two
	PeerSendBuffer
	PeerPath
	PeerConnections
	PeerSendQueue
	PeerReceiveQueue
	PeerRTT // in seconds
	PeerRTTVariation
	peerValues
)

// PeerReport contains one value of a peer at one time.
type PeerReport struct {
	PeerKey
	PeerName
	Start, At time.Time // Start is the time when the counters started to count
	Index     int       // of the value, such as PeerSent
	Value     float64
}

// peer is a peer in memory.
type peer struct {
	start int64                    // start of the counters, in nanoseconds since 1970
	last  [PeerConnections]float64 // of the counters; NaN if not known
	seen  int64                    // by the clock
	peerSums
}

// peerSums contains the sums of a peer over a time span.
type peerSums struct {
	PeerKey  `json:"k"`
	PeerName `json:"u,omitzero"` // newest name
	From, To int64               // in seconds since 1970
	// Values has the sums of counters and of round-trip times, and the maximums of other
	// gauges.
	Values [peerValues]float64 `json:"c"`
	Times  int                 `json:"n"` // number of known round-trip times
}

// PutPeers adds reports about the peers of a unit. It uses Host, Name
// and Resource of the unit.
func (s *Store) PutPeers(of Unit, reports []PeerReport) {
	s.mu.Lock()
	defer s.mu.Unlock()
	u := s.unit(of)
	if u == nil {
		s.drop("peers", int64(len(reports)))
		return
	}
	if u.peers == nil {
		u.peers = map[PeerKey]*peer{}
	}
	for _, r := range reports {
		cutNames(&r.Address, &r.Direction, &r.Transport, &r.Service, &r.Name)
		p := u.peers[r.PeerKey]
		if p == nil {
			if len(u.peers) >= maxUnitPeers || s.peers >= maxPeers {
				s.drop("peers", 1)
				continue
			}
			p = &peer{peerSums: peerSums{PeerKey: r.PeerKey}}
			u.peers[r.PeerKey] = p
			s.peers++
		}
		p.add(r, s.plausible(r.At).Unix())
		p.seen = u.seen
	}
}

// add adds a report to the sums. For a counter, it adds the increase since the previous
// report. For a gauge, it adds the value itself.
func (p *peer) add(r PeerReport, at int64) {
	if start := r.Start.UnixNano(); p.start != start {
		p.start = start
		fresh := r.At.Sub(r.Start) <= peerFresh
		for i := range p.last {
			p.last[i] = 0
			if !fresh {
				p.last[i] = math.NaN()
			}
		}
	}
	now := peerSums{PeerName: r.PeerName, From: at, To: at}
	switch {
	case math.IsNaN(r.Value) || math.IsInf(r.Value, 0):
	case r.Index < PeerConnections:
		if d := r.Value - p.last[r.Index]; d > 0 { // false if the last value is not known
			now.Values[r.Index] = d
		}
		p.last[r.Index] = r.Value
	case r.Value >= 0:
		now.Values[r.Index] = r.Value
		if r.Index == PeerRTT {
			now.Times = 1
		}
	}
	p.plus(now)
}

// plus adds the sums of another time span. The other time span may be earlier or later.
func (a *peerSums) plus(b peerSums) {
	if a.From == 0 || (b.From != 0 && b.From < a.From) {
		a.From = b.From
	}
	if b.To >= a.To && b.PeerName != (PeerName{}) {
		a.PeerName = b.PeerName
	}
	a.To = max(a.To, b.To)
	for i, v := range b.Values {
		if i < PeerConnections || i == PeerRTT || i == PeerRTTVariation {
			a.Values[i] += v
		} else {
			a.Values[i] = max(a.Values[i], v)
		}
	}
	a.Times += b.Times
}

// encodePeers moves the new sums of all peers into blocks. It
// forgets peers that are gone.
func (s *Store) encodePeers(at int64) {
	now := s.now()
	for id, u := range s.units {
		var sums []peerSums
		for key, p := range u.peers {
			if p.From != 0 {
				sums = append(sums, p.peerSums)
				p.peerSums = peerSums{PeerKey: key, PeerName: p.PeerName}
			} else if now-p.seen > peerGone {
				delete(u.peers, key)
				s.peers--
			}
		}
		if len(sums) == 0 {
			continue
		}
		of := peerSums{}
		for _, p := range sums {
			of.plus(p)
		}
		data, err := json.Marshal(sums)
		if err != nil {
			s.drop("peers", int64(len(sums)))
			continue
		}
		head := binary.BigEndian.AppendUint64(nil, uint64(of.From))
		head = binary.BigEndian.AppendUint64(head, uint64(of.To))
		s.queue(blocksOfPeers, insertBlock, peerTier, at, string(id), packer.EncodeAll(data, head))
	}
}

// peerHeader is the length of the header of a block of peers, in bytes. The header
// contains the start and the end of the block's time span, in seconds since 1970.
const peerHeader = 16

// readPeers decodes a block of peers. It decodes only the header if
// the time span is not wanted.
func readPeers(data []byte, wanted func(from, to int64) bool) (sums []peerSums, err error) {
	if len(data) < peerHeader {
		return nil, io.ErrUnexpectedEOF
	}
	if !wanted(int64(binary.BigEndian.Uint64(data)), int64(binary.BigEndian.Uint64(data[8:]))) {
		return nil, nil
	}
	raw, err := unpacker.DecodeAll(data[peerHeader:], nil)
	if err == nil {
		err = json.Unmarshal(raw, &sums)
	}
	return sums, err
}

// Peers implements Reader.
func (s *Store) Peers(ctx context.Context, id UnitID, from, to time.Time) ([]Peer, error) {
	all := map[PeerKey]*peerSums{}
	wanted := func(first, last int64) bool {
		return (from.IsZero() || !time.Unix(last+1, 0).Before(from)) && (to.IsZero() || !time.Unix(first, 0).After(to))
	}
	add := func(p peerSums) {
		if p.From == 0 || !wanted(p.From, p.To) {
			return
		}
		is := all[p.PeerKey]
		if is == nil {
			is = &peerSums{PeerKey: p.PeerKey}
			all[p.PeerKey] = is
		}
		is.plus(p)
	}
	s.mu.RLock()
	u := s.units[id]
	if u == nil {
		s.mu.RUnlock()
		return nil, ErrNotFound
	}
	host := u.Host
	for _, p := range u.peers {
		add(p.peerSums)
	}
	s.mu.RUnlock()
	if err := s.readBlocks(ctx, peerTier, id, func(data []byte) {
		sums, err := readPeers(data, wanted)
		if err != nil {
			s.drop("damaged", 1)
		}
		for _, p := range sums {
			add(p)
		}
	}); err != nil {
		return nil, fmt.Errorf("read the peers of a unit: %w", err)
	}
	out := make([]Peer, 0, len(all))
	s.mu.RLock()
	for _, p := range all {
		of := p.public()
		if u := s.units[IDOf(host, p.Name)]; p.Name != "" && u != nil {
			of.Unit = u.ID
		}
		out = append(out, of)
	}
	s.mu.RUnlock()
	slices.SortFunc(out, func(a, b Peer) int {
		return cmp.Or(cmp.Compare(b.Sent+b.Received, a.Sent+a.Received), cmp.Compare(b.Connections, a.Connections), cmp.Compare(a.Address, b.Address), cmp.Compare(a.Port, b.Port), cmp.Compare(a.Direction, b.Direction), cmp.Compare(a.Transport, b.Transport))
	})
	return out, nil
}

func (a *peerSums) public() Peer {
	v := a.Values
	span := func(seconds float64) time.Duration {
		return time.Duration(min(seconds, math.MaxInt64/2e9) * float64(time.Second))
	}
	whole := func(f float64) int64 { return int64(min(f, math.MaxInt64/2)) }
	times := float64(max(a.Times, 1))
	return Peer{
		PeerKey: a.PeerKey, PeerName: a.PeerName, From: time.Unix(a.From, 0), To: time.Unix(a.To, 0),
		Sent: whole(v[PeerSent]), Received: whole(v[PeerReceived]),
		Connects: whole(v[PeerConnects]), ConnectFailures: whole(v[PeerConnectFailures]),
		Segments: whole(v[PeerSegments]), Retransmits: whole(v[PeerRetransmits]),
		ReceiverWindow: span(v[PeerReceiverWindow]), SendBuffer: span(v[PeerSendBuffer]), Path: span(v[PeerPath]),
		Connections: whole(v[PeerConnections]), SendQueue: whole(v[PeerSendQueue]), ReceiveQueue: whole(v[PeerReceiveQueue]),
		RTT: span(v[PeerRTT] / times), RTTVariation: span(v[PeerRTTVariation] / times),
	}
}
