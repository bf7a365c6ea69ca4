// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package sockdiag reads the TCP and UDP sockets of a network namespace from the kernel
// (sock_diag, as ss does). It returns the addresses of both ends and the kernel's counts of
// each TCP connection. It needs no right except the rights to enter a namespace.
//
// A [Namespace] dumps the current sockets. It also receives the last counts of TCP
// connections that were closed, because later dumps do not have them. The package knows
// namespaces and sockets, not processes or units.
package sockdiag

import (
	"errors"
	"net/netip"
	"time"
)

// A Protocol is a transport protocol.
type Protocol uint8

// The protocols.
const (
	TCP Protocol = 6
	UDP Protocol = 17
)

// A State is the state of a socket. A connected UDP socket is Established.
type State uint8

// The states that a dump returns. A closed socket is from [Namespace.Closed].
const (
	Established State = 1
	SynSent     State = 2
	SynReceived State = 3
	FinWait1    State = 4
	FinWait2    State = 5
	Closed      State = 7
	CloseWait   State = 8
	LastAck     State = 9
	Listen      State = 10
	Closing     State = 11
)

// dumped are the states of dumps. Connections in TIME_WAIT are left out, because there can
// be very many and the kernel no longer counts their traffic.
const dumped = 1<<Established | 1<<SynSent | 1<<SynReceived | 1<<FinWait1 | 1<<FinWait2 | 1<<CloseWait | 1<<LastAck | 1<<Listen | 1<<Closing

// A Socket is one socket of a namespace.
type Socket struct {
	Protocol      Protocol
	State         State
	Local, Remote netip.AddrPort // IPv4 addresses that are mapped to IPv6 are IPv4
	// Cookie identifies the socket for as long as the host runs.
	Cookie uint64
	// Inode is the number in /proc/PID/fd. It is 0 while no process holds the socket, and
	// for a socket from [Namespace.Closed].
	Inode uint32
	// Cgroup is the id of the cgroup v2 in which the socket was made. An accepted
	// connection has the cgroup of the listening socket. It is 0 if the kernel does not
	// report it.
	Cgroup uint64
	// ReceiveQueue are bytes that the program has not read. SendQueue are bytes that the
	// peer has not acknowledged.
	ReceiveQueue, SendQueue uint32
	// TCP are the counts of a connection. HasTCP is false if the kernel has no counts.
	TCP    TCPInfo
	HasTCP bool
}

// TCPInfo are the kernel's counts of a TCP connection, from its beginning on. Counts of 32
// bits wrap around.
type TCPInfo struct {
	Sent, Received          uint64 // bytes of payload; what was sent again counts once
	RTT, RTTVar             time.Duration
	SegmentsSent            uint32 // with retransmits
	SegmentsReceived        uint32
	Retransmits             uint32        // segments
	LastAck                 time.Duration // since the last segment that acknowledged something came
	Busy                    time.Duration
	ReceiverWindow, SendBuf time.Duration // the part of Busy for which these limited the sending
}

// Limits bound one dump.
type Limits struct {
	Sockets  int       // at most so many are visited
	Deadline time.Time // no further message is read after it
}

// The reasons for which a dump is not complete.
var (
	ErrTooMany = errors.New("there are more sockets than may be read")
	ErrLate    = errors.New("reading the sockets takes too long")
)
