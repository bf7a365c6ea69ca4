// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package sockdiag

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// recvSize is the buffer of one read: the kernel fills at most 32 KiB at once.
	recvSize = 64 << 10

	// closedBuffer is the size of the socket buffer for closed connections. The kernel
	// doubles it: there is room for some 1,600 of them.
	closedBuffer = 1 << 20

	groupTCP4, groupTCP6 = 1, 3 // SKNLGRP_INET_TCP_DESTROY, SKNLGRP_INET6_TCP_DESTROY
)

// A Namespace is a network namespace whose sockets can be read. It belongs to one
// goroutine.
type Namespace struct {
	file     *os.File // nil: the caller's own
	dump     int      // the netlink socket of dumps; -1: none
	closed   int      // that of closed connections; -1: none
	sequence uint32
	buf      []byte
	decoder  decoder
}

// Open opens the caller's own namespace.
func Open() (*Namespace, error) { return open(nil) }

// OpenFile opens the namespace of a file such as /proc/PID/ns/net. It needs
// CAP_SYS_ADMIN. The file belongs to the Namespace, also after an error.
func OpenFile(file *os.File) (*Namespace, error) { return open(file) }

func open(file *os.File) (*Namespace, error) {
	n := &Namespace{file: file, dump: -1, closed: -1, buf: make([]byte, recvSize)}
	if err := n.reopen(); err != nil {
		n.Close()
		return nil, err
	}
	return n, nil
}

// reopen opens the socket of dumps, and that of closed connections if there is none.
func (n *Namespace) reopen() error {
	return n.inside(func() (err error) {
		if n.dump, err = unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_SOCK_DIAG); err != nil {
			n.dump = -1
			return fmt.Errorf("open a netlink socket for sock_diag: %w", err)
		}
		if n.closed < 0 {
			n.closed = openClosed()
		}
		return nil
	})
}

// openClosed returns a socket that receives the last counts of closed connections, or
// -1: the kernel has that from Linux 4.2 on.
func openClosed() int {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_SOCK_DIAG)
	if err != nil {
		return -1
	}
	if unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, closedBuffer) != nil {
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, closedBuffer) // at most net.core.rmem_max
	}
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: 1<<(groupTCP4-1) | 1<<(groupTCP6-1)}); err != nil {
		_ = unix.Close(fd)
		return -1
	}
	return fd
}

// inside calls a function in the namespace. A socket stays in the namespace in which it
// was opened. The thread that enters it ends with the call.
func (n *Namespace) inside(call func() error) error {
	if n.file == nil {
		return call()
	}
	done := make(chan error)
	go n.enter(call, done)
	return <-done
}

func (n *Namespace) enter(call func() error, done chan<- error) {
	runtime.LockOSThread() // without unlocking it: the thread ends with the goroutine
	if unix.Gettid() == unix.Getpid() {
		// The first thread of a process does not end before the process: the collector
		// would seem to be in that namespace, and keep it from ending.
		other := make(chan error)
		go n.enter(call, other)
		err := <-other
		runtime.UnlockOSThread()
		done <- err
		return
	}
	if err := unix.Setns(int(n.file.Fd()), unix.CLONE_NEWNET); err != nil {
		runtime.UnlockOSThread()
		done <- fmt.Errorf("enter the network namespace %s: %w", n.file.Name(), err)
		return
	}
	done <- call()
}

// Each calls visit for each socket, listening ones first among those of a protocol and
// family. The Socket is valid during the call. At a limit it returns [ErrTooMany] or
// [ErrLate], after it visited some of them.
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
			if errors.Is(err, unix.ENOENT) && (p == UDP || family == familyV6) {
				continue // the kernel is without udp_diag, or without IPv6
			}
			if err != nil {
				n.closeDump() // else what is left of the dump would be read as the next one
				return err
			}
		}
	}
	return nil
}

func (n *Namespace) each(family byte, p Protocol, deadline time.Time, visit func(*Socket) bool) error {
	if n.dump < 0 {
		if err := n.reopen(); err != nil {
			return err
		}
	}
	n.sequence++
	n.decoder.protocol, n.decoder.sequence = p, n.sequence
	if err := unix.Sendto(n.dump, request(family, p, n.sequence), 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return fmt.Errorf("ask for the sockets: %w", err)
	}
	for {
		if !time.Now().Before(deadline) {
			return ErrLate
		}
		b, err := n.receive(n.dump)
		if errors.Is(err, unix.EAGAIN) {
			err = wait(n.dump, deadline)
			b = nil
		}
		if err != nil {
			return fmt.Errorf("read the sockets: %w", err)
		}
		if done, err := n.decoder.messages(b, visit); done || err != nil {
			return err
		}
	}
}

// receive reads one message of the kernel.
func (n *Namespace) receive(fd int) ([]byte, error) {
	for {
		read, from, err := unix.Recvfrom(fd, n.buf, 0)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return nil, err
		}
		if sender, ok := from.(*unix.SockaddrNetlink); !ok || sender.Pid != 0 {
			continue // not from the kernel
		}
		return n.buf[:read], nil
	}
}

// wait waits until a socket can be read.
func wait(fd int, deadline time.Time) error {
	left := time.Until(deadline)
	if left <= 0 {
		return ErrLate
	}
	_, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(left.Milliseconds())+1)
	if errors.Is(err, unix.EINTR) {
		return nil
	}
	return err
}

// Closed calls visit for each TCP connection that was closed since the last call, or
// since it was opened, with its last counts. It ends at a limit: what is left stays for
// the next call. lost reports that the kernel dropped some, because they were not read
// in time.
func (n *Namespace) Closed(l Limits, visit func(*Socket)) (lost bool, err error) {
	if n.closed < 0 {
		return false, nil
	}
	n.decoder.protocol, n.decoder.sequence = TCP, 0
	for left := l.Sockets; left > 0 && time.Now().Before(l.Deadline); {
		b, err := n.receive(n.closed)
		switch {
		case errors.Is(err, unix.EAGAIN):
			return lost, nil
		case errors.Is(err, unix.ENOBUFS):
			lost = true
			continue
		case err != nil:
			return lost, fmt.Errorf("read closed connections: %w", err)
		}
		if _, err := n.decoder.messages(b, func(s *Socket) bool { left--; visit(s); return true }); err != nil {
			return lost, fmt.Errorf("read closed connections: %w", err)
		}
	}
	return lost, nil
}

// ReportsClosed reports whether the kernel reports closed connections.
func (n *Namespace) ReportsClosed() bool { return n.closed >= 0 }

func (n *Namespace) closeDump() {
	if n.dump >= 0 {
		_ = unix.Close(n.dump)
		n.dump = -1
	}
}

// Close closes it.
func (n *Namespace) Close() {
	n.closeDump()
	if n.closed >= 0 {
		_ = unix.Close(n.closed)
		n.closed = -1
	}
	if n.file != nil {
		_ = n.file.Close()
	}
}
