// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !windows

// Package tcppeer finds the processes at the other end of a TCP connection on this
// host. On Linux, the package needs the right to read the links of /proc/PID/fd. It
// also works on Windows.
package tcppeer

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/hotprofile/hotprofile/internal/procfs"
	"github.com/hotprofile/hotprofile/internal/sockdiag"
)

const (
	maxSockets  = 1 << 20         // sockets of one dump, and open sockets of one process
	maxDuration = 5 * time.Second // of one search
	maxWait     = 2 * time.Second // for the server to accept the connection
	again       = 20 * time.Millisecond
)

// A Finder finds the processes behind connections. Only one goroutine may use it.
type Finder struct {
	procfs procfs.FS
	last   int // the process that was found last, which is searched first
}

// New returns a Finder that reads the procfs below a root directory.
func New(root string) *Finder { return &Finder{procfs: procfs.At(root)} }

// Find returns the processes that hold the accepted end of a loopback connection. After a
// fork, several processes may hold the connection.
func (f *Finder) Find(ctx context.Context, c net.Conn) ([]int, error) {
	ctx, cancel := context.WithTimeout(ctx, maxDuration)
	defer cancel()
	inode, err := accepted(ctx, c)
	if err != nil {
		return nil, fmt.Errorf("find the socket at the other end of %s: %w", c.RemoteAddr(), err)
	}
	pids, err := f.holders(ctx, inode)
	if err != nil {
		return nil, fmt.Errorf("find the process at the other end of %s: %w", c.RemoteAddr(), err)
	}
	f.last = 0
	if len(pids) == 1 {
		f.last = pids[0]
	}
	return pids, nil
}

// accepted returns the inode of the socket at the other end of c. The socket has no inode
// until the server accepts the connection, so accepted waits until then.
func accepted(ctx context.Context, c net.Conn) (inode uint32, err error) {
	deadline, _ := ctx.Deadline()
	kernel, err := sockdiag.Open(nil)
	if err != nil {
		return 0, err
	}
	defer kernel.Close()
	late := time.After(maxWait)
	local, remote := addrPort(c.LocalAddr()), addrPort(c.RemoteAddr())
	for {
		err = kernel.Each(sockdiag.Limits{Sockets: maxSockets, Deadline: deadline}, func(s *sockdiag.Socket) {
			if s.Protocol == sockdiag.TCP && s.Local == remote && s.Remote == local {
				inode = s.Inode
			}
		})
		if inode != 0 || err != nil {
			return inode, err
		}
		select {
		case <-ctx.Done():
			return 0, ctx.Err()
		case <-late:
			return 0, errors.New("the server did not accept the connection")
		case <-time.After(again):
		}
	}
}

func addrPort(a net.Addr) netip.AddrPort {
	tcp, _ := a.(*net.TCPAddr)
	at := tcp.AddrPort()
	return netip.AddrPortFrom(at.Addr().Unmap(), at.Port())
}

// holders returns the processes that hold a socket.
func (f *Finder) holders(ctx context.Context, inode uint32) (pids []int, err error) {
	deadline, _ := ctx.Deadline()
	holds := func(pid int) bool {
		inodes := make(map[uint32]bool)
		f.procfs.AddSockets(inodes, pid, maxSockets, deadline)
		return inodes[inode]
	}
	if f.last != 0 && holds(f.last) {
		return []int{f.last}, nil
	}
	all, err := f.procfs.PIDs()
	if err != nil {
		return nil, err
	}
	for _, pid := range all {
		if ctx.Err() != nil {
			return nil, errors.New("reading the open files of all processes takes too long")
		}
		if holds(pid) {
			pids = append(pids, pid)
		}
	}
	if len(pids) == 0 {
		return nil, errors.New("no process whose open files this process may read holds the connection: grant CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH, or set target")
	}
	return pids, nil
}
