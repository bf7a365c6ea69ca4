// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package network

import "github.com/hotprofile/hotprofile/internal/samples"

// begun remembers the latest sampled connects, so that a failure can be attributed to the
// stack of its connect. It belongs to the reading goroutine.
type begun struct {
	by map[uint64]int // by socket: the index in ring
	// ring contains the connects in their order. A new connect replaces the oldest one.
	ring []connect
	next int
	most int
}

// connect is the sample of a connect.
type connect struct {
	socket uint64 // 0 for an empty entry
	to     remote
	key    samples.Key
	hits   int64
}

// remote is the remote address of a connection. The kernel may reuse the memory of a socket
// for another socket, but then the remote address is probably different.
type remote struct {
	port     int64
	address4 [4]byte
	address6 [16]byte
}

func newBegun(most int) *begun { return &begun{by: make(map[uint64]int), most: most} }

func (b *begun) add(c connect) {
	if len(b.ring) < b.most {
		b.ring = append(b.ring, connect{})
	}
	at := b.next
	b.next = (b.next + 1) % b.most
	b.forget(at)
	if i, ok := b.by[c.socket]; ok {
		b.forget(i)
	}
	b.ring[at] = c
	b.by[c.socket] = at
}

// take returns and removes the connect of a socket.
func (b *begun) take(socket uint64, to remote) (c connect, ok bool) {
	i, ok := b.by[socket]
	if !ok || b.ring[i].to != to {
		return c, false
	}
	c = b.ring[i]
	b.forget(i)
	return c, true
}

func (b *begun) forget(i int) {
	if c := &b.ring[i]; c.socket != 0 {
		delete(b.by, c.socket)
		*c = connect{}
	}
}

// of returns the socket and the remote address from a record of a connect or a failure.
func (s *source) of(record []byte) (socket uint64, to remote, ok bool) {
	at, ok := s.socket.Int(record)
	port, ok2 := s.port.Int(record)
	four, ok4 := s.address4.Bytes(record)
	six, ok6 := s.address6.Bytes(record)
	if !ok || !ok2 || !ok4 || !ok6 || at == 0 {
		return 0, to, false
	}
	to.port = port
	copy(to.address4[:], four)
	copy(to.address6[:], six)
	return uint64(at), to, true
}
