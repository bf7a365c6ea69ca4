// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package sockdiag

import (
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"github.com/mdlayher/netlink"
)

const (
	// recvSize is the buffer size of one read. The kernel fills at most 32 KiB at once.
	recvSize = 64 << 10

	// closedBuffer is the size of the socket buffer for closed connections, in bytes. The
	// kernel doubles the size, so there is room for about 1,600 connections.
	closedBuffer = 1 << 20

	// arrived is the maximum time for reading a message that has already arrived.
	arrived = time.Millisecond / 5
)

// A Namespace reads the sockets of one network namespace. Only one goroutine may use it.
type Namespace struct {
	file   *os.File      // nil for the caller's own namespace
	dump   *netlink.Conn // for dumps; nil after an incomplete dump
	closed *netlink.Conn // for closed connections; nil if the kernel does not report them
}

// Open opens the namespace of a file such as /proc/PID/ns/net. This needs CAP_SYS_ADMIN.
// If the file is nil, Open opens the caller's own namespace. Close closes the file. If
// Open returns an error, Open has closed the file.
func Open(file *os.File) (*Namespace, error) {
	n := &Namespace{file: file}
	var err error
	if n.dump, err = n.dial(0); err != nil {
		n.Close()
		return nil, err
	}
	// Linux has reported closed connections since version 4.2.
	if n.closed, err = n.dial(1<<(groupTCP4-1) | 1<<(groupTCP6-1)); err != nil {
		n.closed = nil
	} else {
		_ = n.closed.SetReadBuffer(closedBuffer)
	}
	return n, nil
}

// dial opens a socket in the namespace. The socket stays in the namespace.
func (n *Namespace) dial(groups uint32) (*netlink.Conn, error) {
	cfg := &netlink.Config{Groups: groups, MessageBufferSize: recvSize}
	where := "the own network namespace"
	if n.file != nil {
		cfg.NetNS, where = int(n.file.Fd()), n.file.Name()
	}
	c, err := netlink.Dial(netlinkSockDiag, cfg)
	if err != nil {
		return nil, fmt.Errorf("open a netlink socket for sock_diag in %s: %w", where, err)
	}
	return c, nil
}

// Each calls visit for each socket. The sockets are ordered by protocol and family.
// Within a protocol and family, listening sockets come first. The Socket is valid only
// during the call of visit. If a limit is reached, Each has visited only some sockets,
// and returns [ErrTooMany] or [ErrLate].
func (n *Namespace) Each(l Limits, visit func(*Socket)) error {
	left := l.Sockets
	for _, p := range []Protocol{TCP, UDP} {
		for _, family := range []byte{familyV4, familyV6} {
			err := n.each(family, p, l.Deadline, func(s *Socket) bool {
				if left--; left < 0 {
					return false
				}
				visit(s)
				return true
			})
			if errors.Is(err, syscall.ENOENT) && (p == UDP || family == familyV6) {
				continue // the kernel lacks udp_diag or IPv6
			}
			if err != nil {
				n.closeDump() // otherwise the next dump would read the rest of this dump
				return err
			}
		}
	}
	return nil
}

// each dumps the sockets of a family and protocol until visit returns false.
func (n *Namespace) each(family byte, p Protocol, deadline time.Time, visit func(*Socket) bool) (err error) {
	if n.dump == nil {
		if n.dump, err = n.dial(0); err != nil {
			return err
		}
	}
	if err := n.dump.SetDeadline(deadline); err != nil {
		return err
	}
	if _, err := n.dump.Send(request(family, p)); err != nil {
		return fmt.Errorf("ask for the sockets: %w", late(err))
	}
	var s Socket
	for m, err := range n.dump.ReceiveIter() {
		var ok bool
		if err == nil && m.Header.Type == typeFamily {
			ok, err = s.decode(m.Data, p)
		}
		if err == nil && ok && !visit(&s) {
			err = ErrTooMany
		}
		if err != nil {
			_ = n.dump.SetDeadline(time.Now()) // do not read the rest
			return fmt.Errorf("read the sockets: %w", late(err))
		}
	}
	return nil
}

// late returns ErrLate if err is a deadline error. Otherwise, it returns err.
func late(err error) error {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return ErrLate
	}
	return err
}

// Closed calls visit for each TCP connection that was closed since the last call,
// or since the namespace was opened. The Socket contains the final counters of
// the connection. If a limit is reached, the next call continues with the
// remaining connections. lost reports whether the kernel dropped some connections
// because they were not read in time.
func (n *Namespace) Closed(l Limits, visit func(*Socket)) (lost bool, err error) {
	if n.closed == nil {
		return false, nil
	}
	var s Socket
	for left := l.Sockets; left > 0 && time.Now().Before(l.Deadline); {
		if err := n.closed.SetReadDeadline(time.Now().Add(arrived)); err != nil {
			return lost, err
		}
		for m, err := range n.closed.ReceiveIter() {
			var ok bool
			if err == nil {
				ok, err = s.decode(m.Data, TCP)
			}
			switch {
			case errors.Is(err, os.ErrDeadlineExceeded):
				return lost, nil
			case errors.Is(err, syscall.ENOBUFS):
				lost = true
			case err != nil:
				return lost, fmt.Errorf("read closed connections: %w", err)
			case ok:
				left--
				visit(&s)
			}
		}
	}
	return lost, nil
}

// ReportsClosed reports whether the kernel reports closed connections.
func (n *Namespace) ReportsClosed() bool { return n.closed != nil }

func (n *Namespace) closeDump() {
	if n.dump != nil {
		_ = n.dump.Close()
		n.dump = nil
	}
}

// Close closes the namespace.
func (n *Namespace) Close() {
	n.closeDump()
	if n.closed != nil {
		_ = n.closed.Close()
		n.closed = nil
	}
	if n.file != nil {
		_ = n.file.Close()
	}
}
