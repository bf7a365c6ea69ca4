// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package web

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hotprofile/hotprofile/extension/consoleextension/internal/store"
)

const (
	// peersBefore is the length of the time before an opening for which the page also shows
	// peers.
	peersBefore = 30 * time.Second
	// peersPerTable is the maximum number of peers in the table. peersPerSide is the
	// maximum number of peers on each side of the picture.
	peersPerTable, peersPerSide = 100, 12
	// slowPeer is the minimum round-trip time of a peer that is marked as slow. lossyPeer
	// is the minimum percentage of retransmitted segments of a peer that is marked as
	// lossy. The thresholds of a policy take precedence.
	slowPeer, lossyPeer = 50 * time.Millisecond, 1.0
	// A peer with at most fewRetransmits retransmitted segments is never marked as lossy.
	fewRetransmits = 3
	// A peer is marked as a slow reader if its window limits sending for long enough.
	// slowReader is the minimum percentage of the sending time, and slowReading is the
	// minimum time.
	slowReader, slowReading = 20.0, time.Second
)

// peersView contains the data for the table and the picture of a unit's peers.
type peersView struct {
	Unit     store.Unit
	From, To time.Time
	Count    int
	Bytes    int64
	Marked   []peerRow // peers that make the unit wait, at most 3
	Order    string    // column by which the table is sorted; empty for the usual order
	Rows     []peerRow
	Others   *peerRow // sum of the peers without a row
	Picture  *peersPicture
	Slow     time.Duration
	Lossy    float64
	link     func(order string) string // returns the URL of the page with another order
}

// peerRow is a peer in the table and in the picture.
type peerRow struct {
	store.Peer
	Title   string // service, unit or address of the peer
	Address string // with the port if the unit connected to the peer; empty if Title is the address
	Marks   []string
	Slow    bool // the round-trip time is long
	Lossy   bool
	Limits  []string // the limits of sending, with their shares
	bytes   int64
	again   float64 // retransmitted segments, in percent
	window  float64 // share of the sending time in which the peer's window was the limit, in percent
}

// peersPicture shows the unit in the middle. Peers that connect to the unit are on the
// left, and peers that the unit connects to are on the right.
type peersPicture struct {
	Height, Middle   float64
	BoxTop, BoxLines float64 // box of the unit
	Left, Right      []peerLine
	MoreLeft         int
	MoreRight        int
	MoreY            float64
}

type peerLine struct {
	peerRow
	Y, Below float64 // positions of the two lines of text
	Width    float64
	Path     string
}

// openingPeers returns the peers of an opening's unit, from shortly before the opening
// until its end.
func (s *Server) openingPeers(ctx context.Context, o store.Opening, end time.Time, q openingQuery) (*peersView, error) {
	v := &peersView{Unit: o.Unit, From: o.Triggered.Add(-peersBefore), To: end, Slow: slowPeer, Lossy: lossyPeer}
	switch {
	case !(o.Threshold > 0): // also NaN
	case o.Monitor == "tcp_rtt":
		v.Slow = time.Duration(o.Threshold * float64(time.Millisecond))
	case o.Monitor == "tcp_retransmits":
		v.Lossy = o.Threshold
	}
	return s.fillPeers(ctx, v, q.Peers, func(key string) string {
		q.Peers = key
		return q.url("#peers")
	})
}

// unitPeers returns the peers of a unit in a time range.
func (s *Server) unitPeers(r *http.Request, u store.Unit, span timeRange) (*peersView, error) {
	v := &peersView{Unit: u, From: span.From, To: span.To, Slow: slowPeer, Lossy: lossyPeer}
	q := r.URL.Query()
	return s.fillPeers(r.Context(), v, q.Get("peers"), func(key string) string {
		q.Set("peers", key)
		return "?" + q.Encode() + "#peers"
	})
}

// fillPeers reads the peers of a time span. It returns nil if no peer is known.
func (s *Server) fillPeers(ctx context.Context, v *peersView, order string, link func(string) string) (*peersView, error) {
	all, err := s.Store.Peers(ctx, v.Unit.ID, v.From, v.To)
	if errors.Is(err, store.ErrNotFound) || err == nil && len(all) == 0 {
		return nil, nil //nolint:nilnil // none is not an error
	}
	if err != nil {
		return nil, err
	}
	var others []store.Peer
	for _, p := range all {
		if p.Address == "" {
			others = append(others, p)
			continue
		}
		r := newPeerRow(p)
		if link("") == "" { // a report has no links
			r.Unit = ""
		}
		v.Bytes += r.bytes
		r.mark(v.Slow, v.Lossy)
		v.Rows = append(v.Rows, r)
	}
	v.Count = len(v.Rows)
	slices.SortFunc(v.Rows, func(a, b peerRow) int {
		return cmp.Or(cmp.Compare(b.bytes, a.bytes), cmp.Compare(b.Connections, a.Connections), cmp.Compare(a.Title, b.Title),
			cmp.Compare(a.PeerKey.Address, b.PeerKey.Address), cmp.Compare(a.Direction, b.Direction), cmp.Compare(a.Port, b.Port))
	})
	v.Picture = newPeersPicture(v.Rows)
	for _, r := range v.Rows {
		if len(r.Marks) > 0 && len(v.Marked) < 3 {
			v.Marked = append(v.Marked, r)
		}
	}
	for _, r := range v.Rows[min(len(v.Rows), peersPerTable):] {
		others = append(others, r.Peer)
	}
	v.Rows = v.Rows[:min(len(v.Rows), peersPerTable)]
	if len(others) > 0 {
		sum := newPeerRow(sumOfPeers(others))
		v.Others = &sum
		v.Bytes += sum.bytes
	}
	v.Order, v.link = order, link
	if compare, ok := peerOrders[order]; ok {
		slices.SortStableFunc(v.Rows, compare)
	}
	return v, nil
}

// peerOrders contains the orders of the table, by the value of peers in the URL.
var peerOrders = map[string]func(a, b peerRow) int{
	"peer":        func(a, b peerRow) int { return cmp.Compare(a.Title, b.Title) },
	"direction":   func(a, b peerRow) int { return cmp.Compare(b.Direction, a.Direction) },
	"connections": func(a, b peerRow) int { return cmp.Compare(b.Connections, a.Connections) },
	"sent":        func(a, b peerRow) int { return cmp.Compare(b.Sent, a.Sent) },
	"received":    func(a, b peerRow) int { return cmp.Compare(b.Received, a.Received) },
	"rtt":         func(a, b peerRow) int { return cmp.Compare(b.RTT, a.RTT) },
	"again":       func(a, b peerRow) int { return cmp.Compare(b.again, a.again) },
	"limit":       func(a, b peerRow) int { return cmp.Compare(b.window, a.window) },
	"failed":      func(a, b peerRow) int { return cmp.Compare(b.ConnectFailures, a.ConnectFailures) },
}

// OrderURL returns the URL of the page with the table in another order. For the current
// order, it returns the URL with the usual order. A report has no such URLs.
func (v *peersView) OrderURL(order string) string {
	if order == v.Order {
		order = ""
	}
	return v.link(order)
}

// sumOfPeers returns the sum of the given peers. The sum has a round-trip time
// only if there is a single peer.
func sumOfPeers(all []store.Peer) (sum store.Peer) {
	for _, p := range all {
		sum.Sent += p.Sent
		sum.Received += p.Received
		sum.Connects += p.Connects
		sum.ConnectFailures += p.ConnectFailures
		sum.Segments += p.Segments
		sum.Retransmits += p.Retransmits
		sum.ReceiverWindow += p.ReceiverWindow
		sum.SendBuffer += p.SendBuffer
		sum.Path += p.Path
		sum.Connections += p.Connections
	}
	if len(all) == 1 {
		sum.RTT, sum.RTTVariation = all[0].RTT, all[0].RTTVariation
	}
	return sum
}

func newPeerRow(p store.Peer) peerRow {
	r := peerRow{Peer: p, bytes: p.Sent + p.Received, Address: p.Address}
	if p.Direction == "outbound" && p.Address != "" {
		r.Address = net.JoinHostPort(p.Address, strconv.Itoa(p.Port))
	}
	if r.Title = p.Service; r.Title == "" && p.Name != "" {
		r.Title = unitName(store.Unit{Name: p.Name})
	}
	if r.Title == "" {
		r.Title, r.Address = r.Address, ""
	}
	if p.Segments > 0 {
		r.again = 100 * float64(p.Retransmits) / float64(p.Segments)
	}
	if all := p.ReceiverWindow + p.SendBuffer + p.Path; all > 0 {
		r.window = 100 * float64(p.ReceiverWindow) / float64(all)
		times := map[string]int{"network": int(p.Path), "receiver window": int(p.ReceiverWindow), "send buffer": int(p.SendBuffer)}
		for _, limit := range countedIn(times, "") {
			if share := 100 * float64(limit.Count) / float64(all); share >= 0.5 {
				r.Limits = append(r.Limits, limit.What+" "+number(math.Round(share))+"\u00a0%")
			}
		}
	}
	return r
}

// mark adds a mark for each reason why the peer may slow down the unit.
func (r *peerRow) mark(slow time.Duration, lossy float64) {
	if r.Slow = r.RTT >= slow; r.Slow {
		r.Marks = append(r.Marks, "slow: "+formatDuration(r.RTT)+" there and back")
	}
	if r.Lossy = r.Retransmits > fewRetransmits && r.again >= lossy; r.Lossy {
		r.Marks = append(r.Marks, number(r.again)+"\u00a0% sent again")
	}
	if r.window >= slowReader && r.ReceiverWindow >= slowReading {
		r.Marks = append(r.Marks, "reads slowly")
	}
	if r.ConnectFailures > 0 {
		r.Marks = append(r.Marks, plural(int(min(r.ConnectFailures, math.MaxInt32)), "connect failed", "connects failed"))
	}
}

// Counted reports whether the kernel counts the bytes of connections with the peer.
func (r peerRow) Counted() bool { return r.Transport != "udp" }

// Again returns the percentage of retransmitted segments. It returns an empty
// string if no segments were sent.
func (r peerRow) Again() string {
	if r.Segments == 0 {
		return ""
	}
	return number(math.Round(r.again*100)/100) + "\u00a0%"
}

// SendTime returns the time for which the unit had data to send to the peer.
func (r peerRow) SendTime() time.Duration { return r.ReceiverWindow + r.SendBuffer + r.Path }

// Both returns the label of a peer in the picture. The label contains the bytes in each
// direction. It also contains the round-trip time, unless the peer is marked as slow. The
// label of a UDP peer contains the number of sockets instead.
func (r peerRow) Both() string {
	if !r.Counted() {
		return plural(int(min(r.Connections, math.MaxInt32)), "socket", "sockets")
	}
	s := formatBytes(r.bytes)
	if r.RTT > 0 && !r.Slow {
		s += ", " + formatDuration(r.RTT)
	}
	return s
}

// These constants define the geometry of the picture, in units of its view box.
const (
	peerPitch  = 42.0
	peerTop    = 34.0
	peerLeft   = 410.0 // start of the lines on the left
	peerBox    = 480.0 // left edge of the unit
	peerBoxEnd = 620.0
	peerRight  = 690.0
	thinLine   = 1.5
	thickLine  = 14.0
)

// newPeersPicture draws the peers with the most bytes.
func newPeersPicture(rows []peerRow) *peersPicture {
	var sides [2][]peerRow // inbound, outbound
	most := int64(1)
	for _, r := range rows {
		side := 0
		if r.Direction == "outbound" {
			side = 1
		}
		sides[side] = append(sides[side], r)
		most = max(most, r.bytes)
	}
	if len(rows) == 0 {
		return nil
	}
	p := &peersPicture{}
	sides[0], p.MoreLeft = first(peersPerSide, sides[0])
	sides[1], p.MoreRight = first(peersPerSide, sides[1])
	n := max(2, len(sides[0]), len(sides[1]))
	p.Middle = peerTop + peerPitch*float64(n)/2
	p.MoreY = peerTop + peerPitch*float64(n) + 16
	p.Height = peerTop + peerPitch*float64(n)
	if p.MoreLeft+p.MoreRight > 0 {
		p.Height = p.MoreY + 8
	}
	p.BoxLines = max(56, min(peerPitch*float64(n)-16, 160))
	p.BoxTop = p.Middle - p.BoxLines/2
	for side, list := range sides {
		for i, r := range list {
			y := p.Middle + peerPitch*(float64(i)-float64(len(list)-1)/2)
			at := p.Middle + (p.BoxLines-24)*(float64(i)-float64(len(list)-1)/2)/float64(max(len(list), 3))
			line := peerLine{peerRow: r, Y: y - 3, Below: y + 13, Width: thinLine + (thickLine-thinLine)*math.Sqrt(float64(r.bytes)/float64(most))}
			line.Width = math.Round(line.Width*10) / 10
			if side == 0 {
				line.Path = curve(peerLeft, y, peerBox, at)
				p.Left = append(p.Left, line)
			} else {
				line.Path = curve(peerBoxEnd, at, peerRight, y)
				p.Right = append(p.Right, line)
			}
		}
	}
	return p
}

// curve returns the path of a line that begins and ends horizontally.
func curve(x1, y1, x2, y2 float64) string {
	middle := (x1 + x2) / 2
	return fmt.Sprintf("M%.0f %.1f C%.0f %.1f %.0f %.1f %.0f %.1f", x1, y1, middle, y1, middle, y2, x2, y2)
}

// NetworkFirst reports whether peers are shown before profiles.
func (p openingPage) NetworkFirst() bool { return strings.HasPrefix(p.Monitor, "tcp_") }
