// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package network

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// tally holds the numbers that the program itself has counted.
type tally struct {
	Sent, Received   int64 // bytes
	Sends, Receives  int64 // calls that moved bytes
	Connects, Failed int64
}

// obey reads orders from standard input, one per line. After
// each order, it prints the tally:
//
//	move NETWORK ROUNDS SIZE...  sends and receives each size four times per round; one
//	                             function sends three times, another function sends once
//	peek ROUNDS                  sends 100 bytes over a Unix socket per round, peeks at
//	                             the bytes three times, and then receives them
//	fail ROUNDS                  makes calls that fail or that transfer no bytes
//	connect ROUNDS               connects to its own listener and to a closed port
func obey() int {
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		words := strings.Fields(lines.Text())
		t, err := carryOut(words)
		if err != nil {
			fmt.Println(err)
			return 1
		}
		fmt.Println(t.Sent, t.Received, t.Sends, t.Receives, t.Connects, t.Failed)
	}
	return 0
}

func carryOut(words []string) (t tally, err error) {
	number := func(i int) int {
		n, _ := strconv.Atoi(words[i])
		return n
	}
	switch words[0] {
	case "move":
		sizes := make([]int, len(words)-3)
		for i := range sizes {
			sizes[i] = number(i + 3)
		}
		return move(words[1], number(2), sizes)
	case "peek":
		return peek(number(1))
	case "fail":
		return fail(number(1))
	case "connect":
		return connectTo(number(1))
	}
	return t, errors.New("no such order")
}

// pair returns two connected sockets. Bytes that are written to the socket from can be read
// from the socket to. The function end closes both sockets.
func pair(network string) (from io.Writer, to io.Reader, end func(), err error) {
	address := map[string]string{"tcp4": "127.0.0.1:0", "udp4": "127.0.0.1:0", "tcp6": "[::1]:0", "udp6": "[::1]:0"}[network]
	dir := ""
	if address == "" {
		if dir, err = os.MkdirTemp("", "network"); err != nil {
			return nil, nil, nil, err
		}
		address = filepath.Join(dir, "socket")
	}
	if network == "tcp4" || network == "tcp6" || network == "unix" {
		l, err := net.Listen(network, address)
		if err != nil {
			return nil, nil, nil, err
		}
		client, err := net.Dial(network, l.Addr().String())
		if err != nil {
			return nil, nil, nil, err
		}
		server, err := l.Accept()
		return client, server, func() { client.Close(); server.Close(); l.Close(); os.RemoveAll(dir) }, err
	}
	server, err := net.ListenPacket(network, address)
	if err != nil {
		return nil, nil, nil, err
	}
	client, err := net.Dial(network, server.LocalAddr().String())
	return client, server.(io.Reader), func() { client.Close(); server.Close(); os.RemoveAll(dir) }, err
}

//go:noinline
func sendThreeParts(t *tally, to io.Writer, b []byte) error {
	return send(t, to, b)
}

//go:noinline
func sendOnePart(t *tally, to io.Writer, b []byte) error {
	return send(t, to, b)
}

//go:noinline
func send(t *tally, to io.Writer, b []byte) error {
	n, err := to.Write(b)
	t.Sent += int64(n)
	t.Sends++
	return err
}

//go:noinline
func receive(t *tally, from io.Reader, b []byte, n int) error {
	for n > 0 {
		m, err := from.Read(b)
		if err != nil {
			return err
		}
		n -= m
		t.Received += int64(m)
		t.Receives++
	}
	return nil
}

func move(network string, rounds int, sizes []int) (t tally, err error) {
	from, to, end, err := pair(network)
	if err != nil {
		return t, err
	}
	defer end()
	b, in := make([]byte, 1<<20), make([]byte, 1<<20)
	for range rounds {
		for _, size := range sizes {
			for i := range 4 {
				do := sendThreeParts
				if i == 3 {
					do = sendOnePart
				}
				if err := do(&t, from, b[:size]); err != nil {
					return t, err
				}
				if err := receive(&t, to, in, size); err != nil {
					return t, err
				}
			}
		}
	}
	return t, nil
}

func peek(rounds int) (t tally, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	if err != nil {
		return t, err
	}
	b := make([]byte, 100)
	for range rounds {
		n, err := unix.Write(fds[0], b)
		if err != nil {
			return t, err
		}
		t.Sent, t.Sends = t.Sent+int64(n), t.Sends+1
		for range 3 {
			if _, _, err := unix.Recvfrom(fds[1], b, unix.MSG_PEEK); err != nil {
				return t, err
			}
		}
		if n, _, err = unix.Recvfrom(fds[1], b, 0); err != nil {
			return t, err
		}
		t.Received, t.Receives = t.Received+int64(n), t.Receives+1
	}
	return t, errors.Join(unix.Close(fds[0]), unix.Close(fds[1]))
}

func fail(rounds int) (t tally, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	if err != nil {
		return t, err
	}
	b := make([]byte, 100)
	for range rounds {
		if _, _, err := unix.Recvfrom(fds[0], b, unix.MSG_DONTWAIT); err != unix.EAGAIN {
			return t, fmt.Errorf("receiving: %w", err)
		}
	}
	if err := unix.Close(fds[1]); err != nil {
		return t, err
	}
	for range rounds {
		if err := unix.Sendto(fds[0], b, unix.MSG_NOSIGNAL, nil); err != unix.EPIPE {
			return t, fmt.Errorf("sending: %w", err)
		}
		if n, err := unix.Read(fds[0], b); n != 0 || err != nil {
			return t, fmt.Errorf("%d bytes at the end: %w", n, err)
		}
	}
	return t, unix.Close(fds[0])
}

func connectTo(rounds int) (t tally, err error) {
	for _, network := range []string{"tcp4", "tcp6"} {
		address := map[string]string{"tcp4": "127.0.0.1:0", "tcp6": "[::1]:0"}[network]
		l, err := net.Listen(network, address)
		if err != nil {
			return t, err
		}
		gone, err := net.Listen(network, address)
		if err != nil {
			return t, err
		}
		if err := gone.Close(); err != nil {
			return t, err
		}
		for range rounds {
			if err := connectThreeParts(&t, network, l.Addr().String()); err != nil {
				return t, err
			}
			c, err := l.Accept()
			if err != nil {
				return t, err
			}
			c.Close()
			if err := connectOnePart(&t, network, gone.Addr().String()); !errors.Is(err, syscall.ECONNREFUSED) {
				return t, fmt.Errorf("connecting to nobody: %w", err)
			}
			t.Failed++
		}
		if err := l.Close(); err != nil {
			return t, err
		}
	}
	return t, nil
}

//go:noinline
func connectThreeParts(t *tally, network, to string) error { return dial(t, network, to) }

//go:noinline
func connectOnePart(t *tally, network, to string) error { return dial(t, network, to) }

// dial connects on the calling goroutine, so that the
// caller is part of the sampled stack.
//
//go:noinline
func dial(t *tally, network, to string) error {
	address, err := net.ResolveTCPAddr(network, to)
	if err != nil {
		return err
	}
	family, at := unix.AF_INET, unix.Sockaddr(&unix.SockaddrInet4{Port: address.Port, Addr: [4]byte{127, 0, 0, 1}})
	if network == "tcp6" {
		family, at = unix.AF_INET6, &unix.SockaddrInet6{Port: address.Port, Addr: [16]byte(address.IP.To16())}
	}
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	t.Connects++
	return errors.Join(unix.Connect(fd, at), unix.Close(fd))
}

// patience is the longest time that a test waits for an event.
const patience = 30 * time.Second
