// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package peers

import (
	"fmt"
	"io"
	"math"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
	"golang.org/x/sys/unix"

	"github.com/hotprofile/hotprofile/extension/hotunitsextension"
	"github.com/hotprofile/hotprofile/internal/cgroup"
	"github.com/hotprofile/hotprofile/internal/identify"
	"github.com/hotprofile/hotprofile/internal/procfs"
	"github.com/hotprofile/hotprofile/test/hosttest"
)

const patience = time.Minute

// rig is a follower with a fake clock that advances one second per call of Look.
type rig struct {
	*Follower
	t         testing.TB
	now       time.Time
	residents []Resident
	follow    []identify.Identity
	lost      map[Lost]int
	logs      *observer.ObservedLogs
}

func newRig(t testing.TB) *rig {
	t.Helper()
	tree, err := cgroup.Open("/")
	require.NoError(t, err)
	core, logs := observer.New(zap.InfoLevel)
	r := &rig{t: t, now: time.Unix(1_000_000, 0), lost: map[Lost]int{}, logs: logs}
	r.Follower, err = New(Config{
		Tree: tree, Now: func() time.Time { return r.now }, Log: zap.New(core),
		Residents: func() []Resident { return r.residents },
		AddLost:   func(what Lost, n int) { r.lost[what] += n },
	})
	require.NoError(t, err)
	t.Cleanup(r.Close)
	return r
}

// unit adds a unit of this host. The unit is a cgroup.
func (r *rig) unit(c *hosttest.Cgroup, service string) identify.Identity {
	r.t.Helper()
	g, ok := r.cfg.Tree.GroupAt(c.Path)
	require.True(r.t, ok)
	id := identify.Identity{Name: g.ID, Group: g}
	r.residents = append(r.residents, Resident{id, service})
	return id
}

// process returns a unit that consists of one process.
func process(t testing.TB, p *program) identify.Identity {
	t.Helper()
	is, err := procfs.At("/").Process(p.cmd.Process.Pid)
	require.NoError(t, err)
	return identify.Identity{Name: "process", Process: is}
}

func (r *rig) lookAt(follow ...identify.Identity) { r.follow = follow; r.again() }

// again calls Look for the same units one second later.
func (r *rig) again() {
	r.now = r.now.Add(time.Second)
	r.Look(r.follow)
}

// peer returns the reading of the peer with the given address.
func (r *rig) peer(of identify.Identity, a netip.Addr) hotunitsextension.PeerReading {
	r.t.Helper()
	for _, p := range r.Peers(of.Name) {
		if p.Address == a {
			return p
		}
	}
	require.Failf(r.t, "no such peer", "%v of %+v", a, r.Peers(of.Name))
	return hotunitsextension.PeerReading{}
}

// within1Percent requires that the count differs by at most 1 % from the
// program's own count.
func within1Percent(t testing.TB, want, got int64) {
	t.Helper()
	require.LessOrEqual(t, math.Abs(float64(got-want)), float64(want)/100, "%d, and the program counted %d", got, want)
}

// pairOf holds two linked units. Each unit has its own network namespace and
// its own cgroup.
type pairOf struct {
	client, server       *program
	clientUnit, unit     identify.Identity
	ofClient, ofServer   hosttest.Addresses
	clientNet, serverNet *hosttest.Network
}

func newPair(t testing.TB, r *rig) (p pairOf) {
	t.Helper()
	p.clientNet, p.serverNet = hosttest.NewNetwork(t), hosttest.NewNetwork(t)
	p.ofClient, p.ofServer = hosttest.Link(t, p.clientNet, p.serverNet)
	a, b := hosttest.NewCgroup(t, "hotprofile-peers"), hosttest.NewCgroup(t, "hotprofile-peers")
	p.client, p.server = start(t, a, p.clientNet), start(t, b, p.serverNet)
	p.clientUnit, p.unit = r.unit(a, "web"), r.unit(b, "shop")
	return p
}

func TestWhatUnitsExchange(t *testing.T) {
	for name, v6 := range map[string]bool{"IPv4": false, "IPv6": true} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			p := newPair(t, r)
			server, client := p.ofServer.V4, p.ofClient.V4
			if v6 {
				server, client = p.ofServer.V6, p.ofClient.V6
			}
			at := p.server.listen(server)
			p.client.do("dial tcp %v 1", at)
			p.client.do("say 500000 500000")
			r.lookAt(p.clientUnit, p.unit)
			out, in := r.peer(p.clientUnit, server), r.peer(p.unit, client)
			require.Zero(t, out.Sent+out.Received+in.Sent+in.Received+out.Connects+in.Connects, "what was before does not count")
			require.EqualValues(t, 1, out.Connections)
			require.EqualValues(t, 1, in.Connections)

			p.client.do("say 3000000 70000")
			p.client.do("dial tcp %v 3", at)
			p.client.do("say 1000000 30000")
			p.client.do("refused %v", netip.AddrPortFrom(server, 1))
			r.again()
			out, in = r.peer(p.clientUnit, server), r.peer(p.unit, client)
			if out.Port == 1 {
				t.Log(r.Peers(p.clientUnit.Name))
			}
			for _, o := range r.Peers(p.clientUnit.Name) {
				if o.Port == at.Port() {
					out = o
				} else {
					require.EqualValues(t, 1, o.Port)
					require.EqualValues(t, 1, o.ConnectFailures, "the refused one")
					require.Zero(t, o.Connects)
				}
			}
			require.True(t, out.Outbound)
			require.False(t, in.Outbound)
			require.Equal(t, at.Port(), out.Port)
			require.Equal(t, at.Port(), in.Port, "a client's own ports are summed")
			require.Equal(t, "tcp", out.Transport)
			within1Percent(t, 4_000_000, out.Sent)
			within1Percent(t, 100_000, out.Received)
			within1Percent(t, 4_000_000, in.Received)
			within1Percent(t, 100_000, in.Sent)
			require.EqualValues(t, 3, out.Connects)
			require.EqualValues(t, 3, in.Connects)
			require.EqualValues(t, 4, out.Connections)
			require.EqualValues(t, 4, in.Connections)
			require.Zero(t, out.ConnectFailures+in.ConnectFailures)
			require.True(t, out.HasRTT && in.HasRTT)
			require.Equal(t, []string{p.unit.Name, "shop"}, []string{out.Unit, out.Service})
			require.Equal(t, []string{p.clientUnit.Name, "web"}, []string{in.Unit, in.Service})
			require.Len(t, r.Peers(p.unit.Name), 1)
			require.Empty(t, r.lost)
			require.Empty(t, r.logs.All())
		})
	}
}

// TestShortConnections checks that the bytes and connects of a connection are all
// counted, even if the connection opens and closes between two calls of Look.
func TestShortConnections(t *testing.T) {
	r := newRig(t)
	p := newPair(t, r)
	at := p.server.listen(p.ofServer.V4)
	r.lookAt(p.clientUnit, p.unit)
	const n = 50
	for range n {
		p.client.do("dial tcp %v 1", at)
		p.client.do("say 20000 10000")
		p.client.do("close")
	}
	require.Eventually(t, func() bool { // the kernel reports connections with a delay
		r.again()
		return len(r.Peers(p.clientUnit.Name)) > 0 && len(r.Peers(p.unit.Name)) > 0 &&
			r.peer(p.clientUnit, p.ofServer.V4).Connects == n && r.peer(p.unit, p.ofClient.V4).Connects == n &&
			r.peer(p.clientUnit, p.ofServer.V4).Connections == 0
	}, patience, 10*time.Millisecond)
	out, in := r.peer(p.clientUnit, p.ofServer.V4), r.peer(p.unit, p.ofClient.V4)
	within1Percent(t, n*20_000, out.Sent)
	within1Percent(t, n*10_000, out.Received)
	within1Percent(t, n*20_000, in.Received)
	within1Percent(t, n*10_000, in.Sent)
	require.Zero(t, out.ConnectFailures+in.ConnectFailures)
}

// TestAPeerThatGoes checks that a connection's last bytes are counted when the
// connection closes or its program is killed, even though the follower has seen the
// connection before.
func TestAPeerThatGoes(t *testing.T) {
	r := newRig(t)
	p := newPair(t, r)
	at := p.server.listen(p.ofServer.V4)
	r.lookAt(p.clientUnit, p.unit)
	p.client.do("dial tcp %v 1", at)
	p.client.do("say 100000 1000")
	r.again()
	p.client.do("say 900000 1000")
	p.client.stop()
	require.Eventually(t, func() bool { // the kernel may report the last segments with a delay
		r.again()
		last := r.peer(p.unit, p.ofClient.V4)
		return last.Connections == 0 && last.Received > 500_000
	}, patience, 10*time.Millisecond)
	within1Percent(t, 1_000_000, r.peer(p.unit, p.ofClient.V4).Received)
	require.EqualValues(t, 1, r.peer(p.unit, p.ofClient.V4).Connects)
	r.lookAt(p.unit)
	require.Eventually(t, func() bool { // the kernel may report the last segments with a delay
		r.now = r.now.Add(forgetAfter)
		r.again()
		return len(r.Peers(p.unit.Name)) == 0
	}, patience, 10*time.Millisecond, "after a minute without connections it is forgotten")
	r.again()
	require.Len(t, r.namespaces, 1, "and so is the unit that is gone")
	require.Equal(t, 0, r.peers)

	other := start(t, nil, p.clientNet)
	other.do("dial tcp %v 1", at)
	r.again()
	require.True(t, r.peer(p.unit, p.ofClient.V4).Start.After(time.Unix(1_000_001, 0)), "its counters begin anew")
}

// TestAConnectionThatThePeerKeeps closes a connection that the peer keeps open. The
// kernel then keeps the socket for a minute. The socket must not count as an open or
// new connection.
func TestAConnectionThatThePeerKeeps(t *testing.T) {
	r := newRig(t)
	p := newPair(t, r)
	var l net.Listener
	p.serverNet.Do(t, func() (err error) {
		l, err = net.Listen("tcp", netip.AddrPortFrom(p.ofServer.V4, 0).String())
		return err
	})
	defer l.Close()
	r.lookAt(p.clientUnit)
	p.client.do("dial tcp %v 1", l.Addr())
	server, err := l.Accept()
	require.NoError(t, err)
	defer server.Close()
	r.again()
	p.client.do("close")
	require.Eventually(t, func() bool {
		r.again()
		out, err := p.clientNet.Exec("ss", "-tanH", "state", "fin-wait-2").CombinedOutput()
		require.NoError(t, err, string(out))
		return len(out) > 0 && r.peer(p.clientUnit, p.ofServer.V4).Connections == 0
	}, patience, 10*time.Millisecond)
	r.again()
	require.EqualValues(t, 1, r.peer(p.clientUnit, p.ofServer.V4).Connects)
	require.Zero(t, r.peer(p.clientUnit, p.ofServer.V4).Connections)
}

// TestAConnectionThatWasReset covers a program that closes a connection long after the
// peer has reset it. The kernel no longer lists a reset connection. The bytes of the
// connection must not be counted twice.
func TestAConnectionThatWasReset(t *testing.T) {
	r := newRig(t)
	p := newPair(t, r)
	var l net.Listener
	p.serverNet.Do(t, func() (err error) {
		l, err = net.Listen("tcp", netip.AddrPortFrom(p.ofServer.V4, 0).String())
		return err
	})
	defer l.Close()
	r.lookAt(p.clientUnit)
	p.client.do("dial tcp %v 1", l.Addr())
	server, err := l.Accept()
	require.NoError(t, err)
	go func() { _, _ = io.Copy(io.Discard, server) }()
	p.client.do("say 100000 0")
	r.again()
	require.NoError(t, server.(*net.TCPConn).SetLinger(0))
	require.NoError(t, server.Close())
	// The follower's clock advances one second per call of Look, but the kernel's clock
	// does not. Enough time must pass by the kernel's clock, so that the follower does
	// not mistake the old connection for a short one.
	reset := time.Now()
	require.Eventually(t, func() bool { r.again(); return time.Since(reset) > 3*time.Second }, patience, 100*time.Millisecond)
	require.Empty(t, r.units[p.clientUnit.Name].ns.conns)
	p.client.do("close")
	other := dialFrom(t, p.clientNet, l) // its report arrives after the report of the reset connection
	require.NoError(t, other.Close())
	require.Eventually(t, func() bool { r.again(); return r.peer(p.clientUnit, p.ofServer.V4).Connects == 2 }, patience, 10*time.Millisecond)
	r.again()
	within1Percent(t, 100_000, r.peer(p.clientUnit, p.ofServer.V4).Sent)
	require.EqualValues(t, 2, r.peer(p.clientUnit, p.ofServer.V4).Connects)
}

// dialFrom opens a connection from this process in a network namespace.
func dialFrom(t testing.TB, n *hosttest.Network, l net.Listener) (c net.Conn) {
	t.Helper()
	n.Do(t, func() (err error) {
		c, err = net.Dial("tcp", l.Addr().String())
		return err
	})
	return c
}

// TestPeersThatDoNotAnswer checks that a connection attempt that times out counts as a
// failure, even if the follower has seen the attempt before.
func TestPeersThatDoNotAnswer(t *testing.T) {
	r := newRig(t)
	p := newPair(t, r)
	silent := p.ofServer.V4.Next()
	p.clientNet.IP(t, "neigh", "add", silent.String(), "lladdr", "02:00:00:00:00:01", "dev", p.clientNet.Device(t, p.ofClient.V4))
	r.lookAt(p.clientUnit)
	done := make(chan struct{})
	go func() {
		defer close(done)
		p.client.do("hopeless %v", netip.AddrPortFrom(silent, 80))
	}()
	require.Eventually(t, func() bool { r.again(); return len(r.Peers(p.clientUnit.Name)) == 1 }, patience, time.Millisecond)
	<-done
	require.Eventually(t, func() bool { r.again(); return r.peer(p.clientUnit, silent).ConnectFailures == 1 }, patience, 10*time.Millisecond)
	require.Zero(t, r.peer(p.clientUnit, silent).Connects)
	require.Zero(t, r.peer(p.clientUnit, silent).Connections)
}

// TestMoreConnectionsThanALookReads covers a call of Look that cannot read all
// connections. The next call must not count the remaining connections as new.
func TestMoreConnectionsThanALookReads(t *testing.T) {
	r := newRig(t)
	p := newPair(t, r)
	at := p.server.listen(p.ofServer.V4)
	r.lookAt(p.clientUnit)
	p.client.do("dial tcp %v 30", at)
	p.client.do("say 1000000 16")
	r.maxSockets = 10
	r.again()
	require.Equal(t, 1, r.lost[LostSockets])
	require.EqualValues(t, 10, r.peer(p.clientUnit, p.ofServer.V4).Connections)
	r.again()
	require.Equal(t, 2, r.lost[LostSockets])
	require.Equal(t, 1, r.logs.FilterMessage("not all connections read").Len())
	r.maxSockets = maxSockets
	r.again()
	got := r.peer(p.clientUnit, p.ofServer.V4)
	require.EqualValues(t, 30, got.Connections)
	require.LessOrEqual(t, got.Connects, int64(10))
	before := got.Sent
	p.client.do("say 500000 16")
	r.again()
	within1Percent(t, 500_000, r.peer(p.clientUnit, p.ofServer.V4).Sent-before)
	require.Equal(t, 2, r.lost[LostSockets])
}

// TestUnitsOfOneNamespace covers units in the same network namespace. The owner of a
// connection is found by the cgroup or by the open files.
func TestUnitsOfOneNamespace(t *testing.T) {
	for _, by := range []string{"cgroups", "processes"} {
		t.Run(by, func(t *testing.T) {
			r := newRig(t)
			n := hosttest.NewNetwork(t)
			a, b, c := hosttest.NewCgroup(t, "hotprofile-a"), hosttest.NewCgroup(t, "hotprofile-b"), hosttest.NewCgroup(t, "hotprofile-c")
			server, one, two := start(t, a, n), start(t, b, n), start(t, c, n)
			local := netip.MustParseAddr("127.0.0.1")
			var units [3]identify.Identity
			if by == "cgroups" {
				units = [3]identify.Identity{r.unit(a, "db"), r.unit(b, ""), r.unit(c, "")}
				for _, u := range units {
					if _, err := r.cfg.Tree.IDs(u.Group); err != nil {
						t.Skipf("there is no cgroup v2: %v", err)
					}
				}
			} else {
				for i, p := range []*program{server, one, two} {
					units[i] = process(t, p)
					units[i].Name = strconv.Itoa(i)
				}
			}
			at := server.listen(local)
			two.do("dial tcp %v 1", at)
			r.lookAt(units[0], units[1]) // units[2] is in the namespace but is not followed
			one.do("dial tcp %v 1", at)
			one.do("say 400000 16")
			two.do("say 100000 16")
			r.again()
			require.EqualValues(t, 1, r.peer(units[1], local).Connections)
			within1Percent(t, 400_000, r.peer(units[1], local).Sent)
			if by == "cgroups" {
				require.Equal(t, []string{units[0].Name, "db"}, []string{r.peer(units[1], local).Unit, r.peer(units[1], local).Service})
			}
			require.EqualValues(t, 2, r.peer(units[0], local).Connections)
			within1Percent(t, 500_000, r.peer(units[0], local).Received)
			require.ErrorIs(t, r.TCP(units[1].Group, units[1].Process).FailuresErr, NotFollowed)
			require.NoError(t, r.TCP(units[1].Group, units[1].Process).Err)
			require.Empty(t, r.Peers(units[2].Name))
			require.ErrorIs(t, r.TCP(units[2].Group, units[2].Process).Err, NotFollowed)

			r.lookAt(units[2], units[0], units[1])
			two.do("say 200000 16")
			r.again()
			within1Percent(t, 200_000, r.peer(units[2], local).Sent)
			within1Percent(t, 700_000, r.peer(units[0], local).Received)
			r.now = r.now.Add(settling)
			r.again()
			require.ErrorIs(t, r.TCP(units[1].Group, units[1].Process).FailuresErr, SharedNamespace)
		})
	}
}

// TestAUnitWithoutProcessesIsNotGone checks that a unit without processes is not reported
// as gone. The unit may get processes again, here or in another namespace. Only the code
// that watches the unit's cgroup knows whether the unit is gone.
func TestAUnitWithoutProcessesIsNotGone(t *testing.T) {
	r := newRig(t)
	c := hosttest.NewCgroup(t, "hotprofile-peers")
	u := r.unit(c, "")
	r.lookAt(u)
	require.Equal(t, NotFollowed, r.TCP(u.Group, u.Process).Err)
	require.Equal(t, NotFollowed, r.TCP(u.Group, u.Process).FailuresErr)
	n := hosttest.NewNetwork(t)
	p := start(t, c, n)
	p.do("dial tcp %v 1", p.listen(netip.MustParseAddr("127.0.0.1")))
	r.again()
	require.NoError(t, r.TCP(u.Group, u.Process).Err)
	p.stop()
	r.again()
	require.NotErrorIs(t, r.TCP(u.Group, u.Process).Err, cgroup.ErrGone)
	require.Empty(t, r.logs.All())
}

func TestUDPPeersAreCounted(t *testing.T) {
	r := newRig(t)
	p := newPair(t, r)
	r.lookAt(p.clientUnit)
	p.client.do("dial udp %v 2", netip.AddrPortFrom(p.ofServer.V4, 53))
	r.again()
	got := r.peer(p.clientUnit, p.ofServer.V4)
	require.Equal(t, "udp", got.Transport)
	require.EqualValues(t, 53, got.Port)
	require.EqualValues(t, 2, got.Connections)
	require.True(t, got.Outbound)
}

func TestTheBusiestPeersAreListed(t *testing.T) {
	r := newRig(t)
	p := newPair(t, r)
	const more = 20
	at := p.server.listen(p.ofServer.V4)
	for i := range maxUnitListed + more {
		p.clientNet.IP(t, "addr", "add", peerAddress(i).String()+"/32", "dev", "lo")
		_ = p.client.listen(peerAddress(i))
	}
	p.client.do("dial tcp %v 1", at)
	r.lookAt(p.clientUnit)
	for i := range maxUnitListed + more { // the unit connects to itself, so both ends belong to the unit
		to := p.client.listen(peerAddress(i))
		p.client.do("dial tcp %v 1", to)
		p.client.do("say %d 16", 1000*(i+1))
	}
	r.again()
	r.again()
	all := r.Peers(p.clientUnit.Name)
	require.Len(t, all, maxUnitListed+1)
	var sent int64
	others := 0
	for _, p := range all {
		sent += p.Sent
		if !p.Address.IsValid() {
			others++
			require.Positive(t, p.Sent+p.Received)
			require.Positive(t, p.Connections)
		}
	}
	require.Equal(t, 1, others)
	n := int64(maxUnitListed + more)
	within1Percent(t, 1000*n*(n+1)/2+16*n, sent)

	before := all
	p.client.do("say 5000000 16")
	r.again()
	sum := func(all []hotunitsextension.PeerReading) (n int64) {
		for _, p := range all {
			n += p.Sent
		}
		return n
	}
	require.InDelta(t, 5_000_016, sum(r.Peers(p.clientUnit.Name))-sum(before), 50_000)
}

func peerAddress(i int) netip.Addr {
	return netip.AddrFrom4([4]byte{10, 88, byte(i / 250), byte(1 + i%250)})
}

// TestKernelMonitorsOfTCP compares the readings of the monitors with the wire
// and with nstat.
func TestKernelMonitorsOfTCP(t *testing.T) {
	r := newRig(t)
	a, b := hosttest.NewNetwork(t), hosttest.NewNetwork(t)
	w, _, ofServer := hosttest.NewWire(t, a, b)
	ofA, ofB := hosttest.NewCgroup(t, "hotprofile-peers"), hosttest.NewCgroup(t, "hotprofile-peers")
	client, server := start(t, ofA, a), start(t, ofB, b)
	u := r.unit(ofA, "")
	at := server.listen(ofServer.V4)
	w.SetDelay(15 * time.Millisecond)
	client.do("dial tcp %v 1", at)
	r.lookAt(u)
	before, statBefore := r.TCP(u.Group, u.Process), nstats(t, a)
	require.NoError(t, before.Err)
	require.Eventually(t, func() bool { // a busy machine delays the wire
		for range 30 {
			client.do("say 200 200")
		}
		before = r.TCP(u.Group, u.Process)
		client.do("say 200 200")
		r.again()
		now := r.TCP(u.Group, u.Process)
		rtt := 1e3 * (now.RoundTrip - before.RoundTrip) / (now.Bytes - before.Bytes)
		return math.Abs(rtt-30) < 1 && math.Abs(r.peer(u, ofServer.V4).RTT.Seconds()*1e3-30) < 5
	}, patience, time.Millisecond)

	w.LoseEvery(40)
	client.do("say 3000000 16")
	w.LoseEvery(0)
	for range 3 {
		client.do("refused %v", netip.AddrPortFrom(ofServer.V4, 1))
	}
	require.Eventually(t, func() bool { r.again(); return r.TCP(u.Group, u.Process).Failures == 3 }, patience, 10*time.Millisecond)
	now, stat := r.TCP(u.Group, u.Process), nstats(t, a)
	t.Logf("%d lost: %v retransmits of %v segments", w.Lost(), now.Retransmits, now.Segments)
	require.NoError(t, now.FailuresErr)
	require.EqualValues(t, stat["TcpAttemptFails"]-statBefore["TcpAttemptFails"], now.Failures)
	require.Positive(t, now.Retransmits)
	require.EqualValues(t, stat["TcpRetransSegs"]-statBefore["TcpRetransSegs"], now.Retransmits)
	// OutSegs contains no retransmits. The segments of refused connections are
	// also counted here.
	require.InEpsilon(t, float64(stat["TcpOutSegs"]-statBefore["TcpOutSegs"])+now.Retransmits, now.Segments, 0.02)
}

// nstats returns the TCP counters of a namespace.
func nstats(t testing.TB, n *hosttest.Network) map[string]int64 {
	t.Helper()
	out, err := n.Exec("nstat", "-asz", "Tcp*").CombinedOutput()
	require.NoError(t, err, string(out))
	all := map[string]int64{}
	for _, m := range regexp.MustCompile(`(?m)^(\w+)\s+([0-9]+)`).FindAllStringSubmatch(string(out), -1) {
		all[m[1]], _ = strconv.ParseInt(m[2], 10, 64)
	}
	return all
}

// otherProcess is the name of an environment variable. If the test runs as another user,
// the variable contains the pid of a process in another namespace.
const otherProcess = "HOTPROFILE_TEST_OTHER_PROCESS"

// TestAsAnotherUser checks that only the process's own namespace is read without
// CAP_SYS_ADMIN.
func TestAsAnotherUser(t *testing.T) {
	n := hosttest.NewNetwork(t)
	other := start(t, nil, n)
	binary, err := os.ReadFile(os.Args[0])
	require.NoError(t, err)
	dir, err := os.MkdirTemp("", "hotprofile-peers")
	require.NoError(t, err)
	defer os.RemoveAll(dir)
	require.NoError(t, os.Chmod(dir, 0o755))
	copied := filepath.Join(dir, "peers.test")
	require.NoError(t, os.WriteFile(copied, binary, 0o755))
	for name, capabilities := range map[string][]uintptr{"no capability": nil, "CAP_SYS_PTRACE": {unix.CAP_SYS_PTRACE}} {
		t.Run(name, func(t *testing.T) {
			cmd := exec.Command(copied, "-test.run=^TestTheOwnNamespace$", "-test.v")
			cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%d", otherProcess, other.cmd.Process.Pid))
			cmd.Dir = dir
			cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}, AmbientCaps: capabilities}
			out, err := cmd.CombinedOutput()
			require.NoError(t, err, string(out))
			require.Contains(t, string(out), "--- PASS: TestTheOwnNamespace")
		})
	}
}

func TestTheOwnNamespace(t *testing.T) {
	r := newRig(t)
	if pid, _ := strconv.Atoi(os.Getenv(otherProcess)); pid != 0 {
		is, err := procfs.At("/").Process(pid)
		require.NoError(t, err)
		r.lookAt(identify.Identity{Name: "other", Process: is})
		require.ErrorIs(t, r.TCP(cgroup.Group{}, is).Err, NoRight)
		require.ErrorIs(t, r.TCP(cgroup.Group{}, is).FailuresErr, NoRight)
		require.Empty(t, r.Peers("other"))
		r.again()
		require.Equal(t, 1, r.logs.FilterMessage("only connections in the collector's own network namespace are read").Len())
	}
	p := start(t, nil, nil)
	u := process(t, p)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	r.lookAt(u)
	p.do("dial tcp %v 1", l.Addr())
	r.again()
	require.EqualValues(t, 1, r.peer(u, netip.MustParseAddr("127.0.0.1")).Connections)
	require.EqualValues(t, 1, r.peer(u, netip.MustParseAddr("127.0.0.1")).Connects)
	r.now = r.now.Add(settling)
	r.again()
	require.ErrorIs(t, r.TCP(cgroup.Group{}, u.Process).FailuresErr, SharedNamespace)
}

func TestAddressesOfANamespace(t *testing.T) {
	var got []netip.Addr
	add := func(a netip.Addr) { got = append(got, a) }
	text, err := os.ReadFile("/proc/self/net/fib_trie")
	require.NoError(t, err)
	localIPv4(string(text), add)
	require.Contains(t, got, netip.MustParseAddr("127.0.0.1"))
	got = nil
	localIPv6("fd990001000000000000000000000002 05 40 00 80 veth1\nnonsense\n00000000000000000000000000000001 01 80 10 80 lo\nzz", add)
	require.Equal(t, []netip.Addr{netip.MustParseAddr("fd99:1::2"), netip.IPv6Loopback()}, got)
}

func FuzzAddresses(f *testing.F) {
	f.Add("|-- 10.0.0.1\n /32 host LOCAL\n", "fd990001000000000000000000000002 05 40 00 80 veth1\n")
	f.Fuzz(func(_ *testing.T, v4, v6 string) {
		localIPv4(v4, func(netip.Addr) {})
		localIPv6(v6, func(netip.Addr) {})
	})
}

// BenchmarkLook measures the CPU time of one call of Look for a unit with 10,000
// connections. In the first case, all connections belong to the unit. In the second case,
// open files show who owns a connection. In the third case, there is also a new
// connection for each call, so that the open files have to be read.
func BenchmarkLook(b *testing.B) {
	look := func(name string, asProcess, more bool) {
		b.Run(name, func(b *testing.B) {
			r := newRig(b)
			p := newPair(b, r)
			at := p.server.listen(p.ofServer.V4)
			p.client.do("dial tcp %v 10000", at)
			u := p.clientUnit
			if asProcess {
				u = process(b, p.client)
			}
			r.lookAt(u)
			var used time.Duration
			for b.Loop() {
				if more {
					p.client.do("dial tcp %v 1", at)
				}
				before := cpuTime(b)
				r.again()
				used += cpuTime(b) - before
			}
			require.GreaterOrEqual(b, r.peer(u, p.ofServer.V4).Connections, int64(10_000))
			b.ReportMetric(float64(used.Microseconds())/1e3/float64(b.N), "cpu-ms/op")
		})
	}
	look("alone", false, false)
	look("by open files", true, false)
	look("by open files, a new one each", true, true)
}

func cpuTime(tb testing.TB) time.Duration {
	tb.Helper()
	var r unix.Rusage
	require.NoError(tb, unix.Getrusage(unix.RUSAGE_SELF, &r))
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}
