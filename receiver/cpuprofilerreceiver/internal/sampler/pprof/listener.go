// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package pprof

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Listeners finds the processes that listen at a port of this host, as the kernel
// shows them: the socket in /proc/self/net, whose number is then looked for among
// the open files of all processes. That is remembered as long as the same socket
// listens. It belongs to one goroutine.
type Listeners struct {
	root string
	now  func() time.Time

	inodes []uint64
	pids   []int
	err    error
	looked time.Time
}

// NewListeners returns one that reads below root.
func NewListeners(root string, now func() time.Time) *Listeners {
	return &Listeners{root: root, now: now}
}

// The bounds of what is read.
const (
	maxSockets   = 16 << 20 // bytes of a table of sockets: about 100,000 of them
	maxOpenFiles = 1 << 20  // that are looked at for a socket
	// lookAgain is how long a socket is not looked for again whose processes were
	// not found, and how long those are trusted that were: others may have
	// inherited it.
	lookAgain = time.Minute
)

// ErrNotListened says that nothing listens at an address.
var ErrNotListened = errors.New("nothing listens there")

// PIDs returns the processes that listen at a TCP address of this network
// namespace, by pid.
func (l *Listeners) PIDs(ctx context.Context, at netip.AddrPort) ([]int, error) {
	var inodes []uint64
	for _, table := range []string{"tcp", "tcp6"} {
		content, err := l.table(table)
		if errors.Is(err, os.ErrNotExist) {
			continue // without IPv6
		}
		if err != nil {
			return nil, err
		}
		inodes = append(inodes, listening(content, at)...)
	}
	if len(inodes) == 0 {
		return nil, fmt.Errorf("%s: %w", at, ErrNotListened)
	}
	slices.Sort(inodes)
	if now := l.now(); !slices.Equal(inodes, l.inodes) || now.Sub(l.looked) >= lookAgain || len(l.pids) > 0 && !l.still() {
		l.inodes, l.looked = inodes, now
		l.pids, l.err = l.holders(ctx, inodes)
		if ctx.Err() != nil {
			l.inodes = nil // it was not looked for to the end
		}
	}
	return l.pids, l.err
}

func (l *Listeners) table(name string) ([]byte, error) {
	f, err := os.Open(filepath.Join(l.root, "proc/self/net", name))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxSockets))
	if err != nil {
		return nil, fmt.Errorf("read the sockets in %s: %w", f.Name(), err)
	}
	return b, nil
}

// still says whether all that were found are still there.
func (l *Listeners) still() bool {
	for _, pid := range l.pids {
		if _, err := os.Stat(l.dir(pid)); err != nil {
			return false
		}
	}
	return true
}

func (l *Listeners) dir(pid int) string {
	return filepath.Join(l.root, "proc", strconv.Itoa(pid))
}

// holders are the processes that have one of the sockets open.
func (l *Listeners) holders(ctx context.Context, inodes []uint64) (pids []int, err error) {
	all, err := names(filepath.Join(l.root, "proc"))
	if err != nil {
		return nil, fmt.Errorf("look for who listens: %w", err)
	}
	links := make([]string, 0, len(inodes))
	for _, n := range inodes {
		links = append(links, "socket:["+strconv.FormatUint(n, 10)+"]")
	}
	looked, denied := 0, 0
	for _, name := range all {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		dir := filepath.Join(l.dir(pid), "fd")
		files, err := names(dir)
		if errors.Is(err, os.ErrPermission) {
			denied++
		}
		for _, f := range files {
			if looked++; looked > maxOpenFiles {
				return nil, fmt.Errorf("%w: the host has more than %d open files", ErrUnidentified, maxOpenFiles)
			}
			if link, err := os.Readlink(dir + "/" + f); err == nil && slices.Contains(links, link) {
				pids = append(pids, pid)
				break
			}
		}
	}
	if len(pids) == 0 {
		why := "no process here has its socket"
		if denied > 0 {
			why = fmt.Sprintf("%d processes do not let their open files be read, which needs CAP_SYS_PTRACE", denied)
		}
		return nil, fmt.Errorf("%w: %s", ErrUnidentified, why)
	}
	slices.Sort(pids)
	return pids, nil
}

func names(dir string) ([]string, error) {
	d, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	return d.Readdirnames(-1)
}

// listenState is TCP_LISTEN in the kernel's tables.
const listenState = "0A"

// listening returns the sockets in a table like /proc/net/tcp that listen at an
// address: at it, or else at all addresses. Lines that make no sense are none.
func listening(table []byte, at netip.AddrPort) []uint64 {
	var exact, wild []uint64
	for line := range bytes.Lines(table) {
		f := bytes.Fields(line) // sl, local, remote, state, queues, timer, retransmits, uid, timeout, inode
		if len(f) < 10 || string(f[3]) != listenState {
			continue
		}
		local, ok := parseAddr(string(f[1]))
		if !ok || local.Port() != at.Port() {
			continue
		}
		inode, err := strconv.ParseUint(string(f[9]), 10, 64)
		if err != nil || inode == 0 {
			continue
		}
		switch ip := local.Addr(); {
		case ip == at.Addr().Unmap():
			exact = append(exact, inode)
		case ip.IsUnspecified() && (ip.Is6() || at.Addr().Unmap().Is4()):
			wild = append(wild, inode)
		}
	}
	if len(exact) > 0 {
		return exact
	}
	return wild
}

// parseAddr reads an address as the kernel prints it: the bytes of each 32 bits in
// the order of the machine.
func parseAddr(s string) (netip.AddrPort, bool) {
	host, port, ok := strings.Cut(s, ":")
	p, err := strconv.ParseUint(port, 16, 16)
	if !ok || err != nil {
		return netip.AddrPort{}, false
	}
	b, err := hex.DecodeString(host)
	if err != nil {
		return netip.AddrPort{}, false
	}
	for i := 0; i+4 <= len(b); i += 4 {
		binary.NativeEndian.PutUint32(b[i:], binary.BigEndian.Uint32(b[i:]))
	}
	ip, ok := netip.AddrFromSlice(b)
	return netip.AddrPortFrom(ip.Unmap(), uint16(p)), ok
}
