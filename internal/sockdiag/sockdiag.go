// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package sockdiag reads the TCP and UDP sockets of a network namespace from the
// kernel with sock_diag, like the tool ss. It returns the addresses of both ends
// and the kernel's counters of each TCP connection. It needs no rights except
// the right to enter a namespace.
//
// A [Namespace] dumps the current sockets. It also receives the final counters of TCP
// connections when the connections are closed, because later dumps do not contain these
// connections. The package knows namespaces and sockets, but not processes or units.
package sockdiag

import (
	"errors"
	"net/netip"
	"time"
)

// A Protocol is a transport protocol.
type Protocol uint8

// This package reads these protocols.
const (
	TCP Protocol = 6
	UDP Protocol = 17
)

// A State is the state of a socket. A connected UDP socket is Established.
type State uint8

// These are the states of the sockets that the package returns. Only
// [Namespace.Closed] returns Closed.
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

// dumped is the set of states in a dump. Connections in TIME_WAIT are omitted. There can
// be very many of them, and the kernel no longer counts their traffic.
const dumped = 1<<Established | 1<<SynSent | 1<<SynReceived | 1<<FinWait1 | 1<<FinWait2 | 1<<CloseWait | 1<<LastAck | 1<<Listen | 1<<Closing

// A Socket is one socket of a namespace.
type Socket struct {
	Protocol      Protocol
	State         State
	Local, Remote netip.AddrPort // IPv4-mapped IPv6 addresses are converted to IPv4
	// Cookie identifies the socket until the host reboots.
	Cookie uint64
	// Inode is the inode number of the socket, as in the links of /proc/PID/fd. It is 0
	// if no process holds the socket, and for a socket from [Namespace.Closed].
	Inode uint32
	// Cgroup is the id of the v2 cgroup in which the socket was created. For an
	// accepted connection, it is the cgroup of the listening socket. If the kernel does
	// not report the id, Cgroup is 0.
	Cgroup uint64
	// ReceiveQueue is the number of bytes that the program has not read. SendQueue is the
	// number of bytes that the peer has not acknowledged.
	ReceiveQueue, SendQueue uint32
	// TCP contains the counters of a connection. If the kernel has no
	// counters, HasTCP is false.
	TCP    TCPInfo
	HasTCP bool
}

// TCPInfo contains the kernel's counters of a TCP connection since the start of the
// connection. 32-bit counters wrap around.
type TCPInfo struct {
	Sent, Received          uint64 // bytes of payload, without retransmits
	RTT, RTTVar             time.Duration
	SegmentsSent            uint32        // includes retransmits
	Retransmits             uint32        // segments
	LastAck                 time.Duration // time since the last acknowledgement arrived
	Busy                    time.Duration
	ReceiverWindow, SendBuf time.Duration // the part of Busy during which these limited sending
}

// Limits contains the limits of one dump.
type Limits struct {
	Sockets  int       // maximum number of sockets to visit
	Deadline time.Time // no message is read after the deadline
}

// These are the reasons why a dump is incomplete.
var (
	ErrTooMany = errors.New("there are more sockets than may be read")
	ErrLate    = errors.New("reading the sockets takes too long")
)
