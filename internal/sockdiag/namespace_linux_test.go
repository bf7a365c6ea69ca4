// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package sockdiag_test

import (
	"fmt"
	"io"
	"math"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/hotprofile/hotprofile/internal/sockdiag"
	"github.com/hotprofile/hotprofile/test/hosttest"
)

const patience = time.Minute

func limits() sockdiag.Limits {
	return sockdiag.Limits{Sockets: 1 << 20, Deadline: time.Now().Add(patience)}
}

func open(t testing.TB, n *hosttest.Network) *sockdiag.Namespace {
	t.Helper()
	f, err := os.Open(n.File)
	require.NoError(t, err)
	ns, err := sockdiag.Open(f)
	require.NoError(t, err)
	t.Cleanup(ns.Close)
	return ns
}

func all(t testing.TB, ns *sockdiag.Namespace) (out []sockdiag.Socket) {
	t.Helper()
	require.NoError(t, ns.Each(limits(), func(s *sockdiag.Socket) { out = append(out, *s) }))
	return out
}

// find returns the socket with the given remote address.
func find(t testing.TB, ns *sockdiag.Namespace, remote net.Addr) sockdiag.Socket {
	t.Helper()
	want := netip.MustParseAddrPort(remote.String())
	for _, s := range all(t, ns) {
		if s.Remote == want && s.State != sockdiag.Listen {
			return s
		}
	}
	require.Failf(t, "no such socket", "to %v", want)
	return sockdiag.Socket{}
}

// pair contains the two ends of a connection between two namespaces.
type pair struct{ client, server net.Conn }

// connect creates a listener in one network namespace, and connects to the listener
// from another network namespace.
func connect(t testing.TB, from, to *hosttest.Network, at netip.Addr) (p pair, l net.Listener) {
	t.Helper()
	to.Do(t, func() (err error) {
		l, err = net.Listen("tcp", netip.AddrPortFrom(at, 0).String())
		return err
	})
	t.Cleanup(func() { _ = l.Close() })
	return dial(t, from, l), l
}

func dial(t testing.TB, from *hosttest.Network, l net.Listener) (p pair) {
	t.Helper()
	from.Do(t, func() (err error) {
		p.client, err = net.Dial("tcp", l.Addr().String())
		return err
	})
	var err error
	p.server, err = l.Accept()
	require.NoError(t, err)
	t.Cleanup(func() { _ = p.client.Close(); _ = p.server.Close() })
	return p
}

// send sends n bytes from one end to the other, and waits until they have been read.
func send(t testing.TB, from, to net.Conn, n int64) {
	t.Helper()
	done := make(chan error, 1)
	go func() {
		_, err := io.CopyN(from, zeros{}, n)
		done <- err
	}()
	_, err := io.CopyN(io.Discard, to, n)
	require.NoError(t, err)
	require.NoError(t, <-done)
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// within1Percent checks that the byte counts of the kernel and of the program
// differ by at most 1 percent.
func within1Percent(t *testing.T, want int64, got uint64) {
	t.Helper()
	require.LessOrEqual(t, math.Abs(float64(got)-float64(want)), float64(want)/100, "%d bytes, the program counted %d", got, want)
}

func TestConnectionsOfANamespace(t *testing.T) {
	a, b := hosttest.NewNetwork(t), hosttest.NewNetwork(t)
	_, ofB := hosttest.Link(t, a, b)
	inA, inB := open(t, a), open(t, b)
	for name, at := range map[string]netip.Addr{"IPv4": ofB.V4, "IPv6": ofB.V6} {
		t.Run(name, func(t *testing.T) {
			p, l := connect(t, a, b, at)
			send(t, p.client, p.server, 3_000_000)
			send(t, p.server, p.client, 50_000)
			client, server := find(t, inA, l.Addr()), find(t, inB, p.client.LocalAddr())
			require.Equal(t, sockdiag.TCP, client.Protocol)
			require.Equal(t, sockdiag.Established, client.State)
			require.Equal(t, p.client.LocalAddr().String(), client.Local.String())
			require.Equal(t, inode(t, p.client), client.Inode)
			require.Equal(t, inode(t, p.server), server.Inode)
			require.NotZero(t, client.Cookie)
			require.True(t, client.HasTCP && server.HasTCP)
			within1Percent(t, 3_000_000, client.TCP.Sent)
			within1Percent(t, 3_000_000, server.TCP.Received)
			within1Percent(t, 50_000, server.TCP.Sent)
			within1Percent(t, 50_000, client.TCP.Received)
			require.Positive(t, client.TCP.RTT)
			require.Positive(t, client.TCP.SegmentsSent)
			var listening bool
			for _, s := range all(t, inB) {
				listening = listening || s.State == sockdiag.Listen && s.Local == netip.MustParseAddrPort(l.Addr().String())
			}
			require.True(t, listening, "the listening socket tells who called")
			for _, s := range all(t, open(t, hosttest.NewNetwork(t))) {
				require.Failf(t, "a socket of another namespace", "%+v", s)
			}
		})
	}
}

// TestMappedAddressesAreIPv4 checks that an IPv4 client is reported with an IPv4 address,
// even if the server listens on an IPv6 socket.
func TestMappedAddressesAreIPv4(t *testing.T) {
	a := hosttest.NewNetwork(t)
	var l net.Listener
	a.Do(t, func() (err error) {
		l, err = net.Listen("tcp", "[::]:0")
		return err
	})
	defer l.Close()
	var client net.Conn
	a.Do(t, func() (err error) {
		client, err = net.Dial("tcp4", fmt.Sprintf("127.0.0.1:%d", l.Addr().(*net.TCPAddr).Port))
		return err
	})
	defer client.Close()
	server, err := l.Accept()
	require.NoError(t, err)
	defer server.Close()
	s := find(t, open(t, a), client.LocalAddr())
	require.True(t, s.Remote.Addr().Is4())
}

func TestUDPHasPeersWhereItIsConnected(t *testing.T) {
	a, b := hosttest.NewNetwork(t), hosttest.NewNetwork(t)
	_, ofB := hosttest.Link(t, a, b)
	for name, at := range map[string]netip.Addr{"IPv4": ofB.V4, "IPv6": ofB.V6} {
		t.Run(name, func(t *testing.T) {
			var server net.PacketConn
			var client net.Conn
			b.Do(t, func() (err error) {
				server, err = net.ListenPacket("udp", netip.AddrPortFrom(at, 0).String())
				return err
			})
			defer server.Close()
			a.Do(t, func() (err error) {
				client, err = net.Dial("udp", server.LocalAddr().String())
				return err
			})
			defer client.Close()
			_, err := client.Write(make([]byte, 1000))
			require.NoError(t, err)
			s := find(t, open(t, a), server.LocalAddr())
			require.Equal(t, sockdiag.UDP, s.Protocol)
			require.Equal(t, inode(t, client), s.Inode)
			require.False(t, s.HasTCP)
			for _, s := range all(t, open(t, b)) {
				require.Failf(t, "a UDP socket without a peer", "%+v", s)
			}
		})
	}
}

// TestClosedConnectionsHaveTheirLastCounts opens and closes connections between two
// dumps. No dump contains these connections.
func TestClosedConnectionsHaveTheirLastCounts(t *testing.T) {
	a, b := hosttest.NewNetwork(t), hosttest.NewNetwork(t)
	_, ofB := hosttest.Link(t, a, b)
	ns := open(t, a)
	require.True(t, ns.ReportsClosed())
	p, l := connect(t, a, b, ofB.V4)
	before := find(t, ns, l.Addr())
	const more = 20
	pairs := []pair{p}
	for range more {
		pairs = append(pairs, dial(t, a, l))
	}
	for _, p := range pairs {
		send(t, p.client, p.server, 100_000)
		send(t, p.server, p.client, 10_000)
		require.NoError(t, p.client.Close())
		require.NoError(t, p.server.Close())
	}
	var closed []sockdiag.Socket
	require.Eventually(t, func() bool {
		lost, err := ns.Closed(limits(), func(s *sockdiag.Socket) { closed = append(closed, *s) })
		require.NoError(t, err)
		require.False(t, lost)
		return len(closed) >= more+1
	}, patience, time.Millisecond)
	var sent, received uint64
	known := false
	for _, s := range closed {
		require.Equal(t, l.Addr().String(), s.Remote.String())
		require.Equal(t, sockdiag.TCP, s.Protocol)
		sent, received = sent+s.TCP.Sent, received+s.TCP.Received
		known = known || s.Cookie == before.Cookie
	}
	require.True(t, known, "the cookie is that of the dump")
	require.Len(t, closed, more+1)
	within1Percent(t, (more+1)*100_000, sent)
	within1Percent(t, (more+1)*10_000, received)
}

// TestRefusedConnectionsAreReported checks that a refused connection has no
// round-trip time.
func TestRefusedConnectionsAreReported(t *testing.T) {
	a := hosttest.NewNetwork(t)
	ns := open(t, a)
	a.Do(t, func() error {
		_, err := net.Dial("tcp", "127.0.0.1:1")
		require.ErrorIs(t, err, unix.ECONNREFUSED)
		return nil
	})
	var closed []sockdiag.Socket
	require.Eventually(t, func() bool {
		_, err := ns.Closed(limits(), func(s *sockdiag.Socket) { closed = append(closed, *s) })
		require.NoError(t, err)
		return len(closed) > 0
	}, patience, time.Millisecond)
	require.Len(t, closed, 1)
	require.Equal(t, "127.0.0.1:1", closed[0].Remote.String())
	require.Zero(t, closed[0].TCP.RTT)
	require.NotZero(t, closed[0].TCP.SegmentsSent)
}

// TestTheProcessStaysWhereItIs checks that the first thread of the process never enters
// another namespace, because the thread would stay there.
func TestTheProcessStaysWhereItIs(t *testing.T) {
	a := hosttest.NewNetwork(t)
	before, err := os.Readlink("/proc/self/ns/net")
	require.NoError(t, err)
	for range 200 {
		done := make(chan struct{})
		go func() { // the goroutines that OpenFile starts run on any thread
			defer close(done)
			f, err := os.Open(a.File)
			if assert.NoError(t, err) {
				ns, err := sockdiag.Open(f)
				if assert.NoError(t, err) {
					ns.Close()
				}
			}
		}()
		<-done
	}
	require.Eventually(t, func() bool {
		threads, err := os.ReadDir("/proc/self/task")
		return err == nil && len(threads) < 100
	}, patience, 10*time.Millisecond, "threads end")
	after, err := os.Readlink("/proc/self/ns/net")
	require.NoError(t, err)
	require.Equal(t, before, after)
}

func TestADumpIsBounded(t *testing.T) {
	a := hosttest.NewNetwork(t)
	ns := open(t, a)
	p, l := connect(t, a, a, netip.MustParseAddr("127.0.0.1"))
	for range 9 {
		dial(t, a, l)
	}
	_ = p
	n := 0
	err := ns.Each(sockdiag.Limits{Sockets: 3, Deadline: time.Now().Add(patience)}, func(*sockdiag.Socket) { n++ })
	require.ErrorIs(t, err, sockdiag.ErrTooMany)
	require.Equal(t, 3, n)
	require.ErrorIs(t, ns.Each(sockdiag.Limits{Sockets: 100, Deadline: time.Now()}, func(*sockdiag.Socket) {}), sockdiag.ErrLate)
	require.Len(t, all(t, ns), 21, "what was given up is not in the next dump")
}

func TestTheOwnNamespaceNeedsNoRight(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	ns, err := sockdiag.Open(nil)
	require.NoError(t, err)
	defer ns.Close()
	found := false
	for _, s := range all(t, ns) {
		found = found || s.State == sockdiag.Listen && s.Local.String() == l.Addr().String()
	}
	require.True(t, found)
}

// TestKernelRoundTripAndRetransmits compares the round-trip time with the
// delay of the wire and with the output of ss. It compares the number of
// retransmits with the output of nstat.
func TestKernelRoundTripAndRetransmits(t *testing.T) {
	a, b := hosttest.NewNetwork(t), hosttest.NewNetwork(t)
	w, _, ofB := hosttest.NewWire(t, a, b)
	const oneWay = 20 * time.Millisecond
	w.SetDelay(oneWay)
	for name, at := range map[string]netip.Addr{"IPv4": ofB.V4, "IPv6": ofB.V6} {
		t.Run(name, func(t *testing.T) {
			ns := open(t, a)
			p, l := connect(t, a, b, at)
			pings := int64(0)
			var s sockdiag.Socket
			require.Eventually(t, func() bool { // a busy machine delays the wire
				for range 30 { // each round trip moves the kernel's average by an eighth
					pings++
					send(t, p.client, p.server, 100)
					send(t, p.server, p.client, 100)
				}
				s = find(t, ns, l.Addr())
				return math.Abs((s.TCP.RTT-2*oneWay).Seconds()*1e3) < 1
			}, patience, time.Millisecond, "within 1 ms of the delay of the wire")
			t.Logf("set %v, measured %v, variation %v", 2*oneWay, s.TCP.RTT, s.TCP.RTTVar)
			require.InDelta(t, ss(t, a, l.Addr(), `\brtt:([0-9.]+)/`), s.TCP.RTT.Seconds()*1e3, 0.01, "ms, of ss")
			require.InDelta(t, ss(t, a, l.Addr(), `\brtt:[0-9.]+/([0-9.]+)`), s.TCP.RTTVar.Seconds()*1e3, 0.01, "ms, of ss")

			before, earlier := nstat(t, a, "TcpRetransSegs"), s.TCP.Retransmits
			w.LoseEvery(50)
			send(t, p.client, p.server, 2_000_000)
			w.LoseEvery(0)
			s = find(t, ns, l.Addr())
			t.Logf("%d packets lost, %d retransmits of %d segments", w.Lost(), s.TCP.Retransmits, s.TCP.SegmentsSent)
			require.Greater(t, s.TCP.Retransmits, earlier)
			require.EqualValues(t, nstat(t, a, "TcpRetransSegs")-before, s.TCP.Retransmits-earlier)
			within1Percent(t, 2_000_000+pings*100, s.TCP.Sent)
		})
	}
}

// ss returns a number from the output of ss -ti for the connection to an address.
func ss(t *testing.T, n *hosttest.Network, to net.Addr, pattern string) float64 {
	t.Helper()
	out, err := n.Exec("ss", "-tinH", "dst", to.String()).CombinedOutput()
	require.NoError(t, err, string(out))
	m := regexp.MustCompile(pattern).FindSubmatch(out)
	require.NotNil(t, m, string(out))
	f, err := strconv.ParseFloat(string(m[1]), 64)
	require.NoError(t, err)
	return f
}

// nstat returns a counter of a namespace.
func nstat(t *testing.T, n *hosttest.Network, name string) int64 {
	t.Helper()
	out, err := n.Exec("nstat", "-asz", name).CombinedOutput()
	require.NoError(t, err, string(out))
	m := regexp.MustCompile(name + `\s+([0-9]+)`).FindSubmatch(out)
	require.NotNil(t, m, string(out))
	v, err := strconv.ParseInt(string(m[1]), 10, 64)
	require.NoError(t, err)
	return v
}

// inode returns the inode number of a socket, from /proc/self/fd.
func inode(t testing.TB, c net.Conn) (n uint32) {
	t.Helper()
	raw, err := c.(interface {
		SyscallConn() (syscall.RawConn, error)
	}).SyscallConn()
	require.NoError(t, err)
	require.NoError(t, raw.Control(func(fd uintptr) {
		link, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd))
		require.NoError(t, err)
		number, err := strconv.ParseUint(strings.TrimSuffix(strings.TrimPrefix(link, "socket:["), "]"), 10, 32)
		require.NoError(t, err)
		n = uint32(number)
	}))
	return n
}

// BenchmarkEach lists the 10,000 sockets of 5,000 connections. For comparison, it also
// runs ss and lists an empty namespace.
func BenchmarkEach(b *testing.B) {
	n := hosttest.NewNetwork(b)
	ns := open(b, n)
	look := func(b *testing.B) {
		b.ReportAllocs()
		count := 0
		for b.Loop() {
			count = 0
			require.NoError(b, ns.Each(limits(), func(*sockdiag.Socket) { count++ }))
		}
		b.ReportMetric(float64(count), "sockets")
	}
	b.Run("none", look)
	_, l := connect(b, n, n, netip.MustParseAddr("127.0.0.1"))
	for range 4_999 {
		dial(b, n, l)
	}
	b.Run("10000", look)
	b.Run("ss", func(b *testing.B) {
		if _, err := exec.LookPath("ss"); err != nil {
			b.Skip("no ss")
		}
		for b.Loop() {
			require.NoError(b, n.Exec("ss", "-tuanieH").Run())
		}
	})
}
