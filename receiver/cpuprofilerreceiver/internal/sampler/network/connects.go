// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package network

import (
	"github.com/hashicorp/golang-lru/v2/simplelru"

	"github.com/hotprofile/hotprofile/internal/samples"
)

// begun remembers the latest sampled connects by socket, so that a failure can be
// attributed to the stack of its connect. It belongs to the reading goroutine.
type begun struct {
	*simplelru.LRU[uint64, connect]
}

// connect is the sample of one call of connect.
type connect struct {
	to   remote
	key  samples.Key
	hits int64
}

// remote is the remote address of a connection. The kernel may reuse the memory of a socket
// for another socket, but then the remote address is probably different.
type remote struct {
	port     int64
	address4 [4]byte
	address6 [16]byte
}

func newBegun(most int) begun {
	known, _ := simplelru.NewLRU[uint64, connect](most, nil) // fails only for a size below 1
	return begun{known}
}

// take returns and removes the connect of a socket.
func (b begun) take(socket uint64, to remote) (connect, bool) {
	c, ok := b.Peek(socket)
	return c, ok && c.to == to && b.Remove(socket)
}

// of returns the socket and the remote address in the record of a connect or of a
// failed connect.
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
