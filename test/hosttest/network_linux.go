// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package hosttest

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Network is a new network namespace. It is removed when the test ends.
type Network struct {
	Name string // for ip netns exec
	File string // for setns
}

var networks atomic.Int64

// NewNetwork creates a network namespace whose loopback device is up. It skips the test
// if this is not permitted.
func NewNetwork(t testing.TB) *Network {
	t.Helper()
	if os.Getuid() != 0 {
		SkipUnprivileged(t, "network namespaces need root")
	}
	if _, err := exec.LookPath("ip"); err != nil {
		SkipUnprivileged(t, "network namespaces need ip (iproute2)")
	}
	n := &Network{Name: fmt.Sprintf("hptest-%d-%d", os.Getpid(), networks.Add(1))}
	n.File = filepath.Join("/run/netns", n.Name)
	if out, err := exec.Command("ip", "netns", "add", n.Name).CombinedOutput(); err != nil {
		SkipUnprivileged(t, "ip netns add: %v: %s", err, out)
	}
	t.Cleanup(func() {
		if out, err := exec.Command("ip", "netns", "del", n.Name).CombinedOutput(); err != nil {
			t.Errorf("ip netns del %s: %v: %s", n.Name, err, out)
		}
	})
	n.IP(t, "link", "set", "lo", "up")
	return n
}

// IP runs ip in the namespace.
func (n *Network) IP(t testing.TB, args ...string) {
	t.Helper()
	if out, err := exec.Command("ip", append([]string{"-n", n.Name}, args...)...).CombinedOutput(); err != nil {
		t.Fatalf("ip -n %s %s: %v: %s", n.Name, strings.Join(args, " "), err, out)
	}
}

// Exec returns a command that runs in the namespace.
func (n *Network) Exec(name string, args ...string) *exec.Cmd {
	return exec.Command("ip", append([]string{"netns", "exec", n.Name, name}, args...)...)
}

// Do calls a function on a thread that is in the namespace. Sockets that the function
// opens stay in the namespace.
func (n *Network) Do(t testing.TB, call func() error) {
	t.Helper()
	done := make(chan error)
	go n.enter(call, done)
	if err := <-done; err != nil {
		t.Fatalf("in the network namespace %s: %v", n.Name, err)
	}
}

func (n *Network) enter(call func() error, done chan<- error) {
	runtime.LockOSThread() // a locked thread ends with its goroutine if the thread cannot return
	if unix.Gettid() == unix.Getpid() {
		// The first thread must not change its namespace. Otherwise, the whole process
		// would appear to be in the namespace.
		other := make(chan error)
		go n.enter(call, other)
		err := <-other
		runtime.UnlockOSThread()
		done <- err
		return
	}
	err := n.inside(call)
	if !errors.Is(err, errNoWayBack) {
		// The thread is kept if it could return to its namespace. If the thread ended, the
		// kernel would kill the programs that the thread has started with Pdeathsig.
		runtime.UnlockOSThread()
	}
	done <- err
}

var errNoWayBack = errors.New("return to the network namespace of the test")

func (n *Network) inside(call func() error) (err error) {
	home, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return err
	}
	defer home.Close()
	f, err := os.Open(n.File)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := unix.Setns(int(f.Fd()), unix.CLONE_NEWNET); err != nil {
		return err
	}
	defer func() {
		if back := unix.Setns(int(home.Fd()), unix.CLONE_NEWNET); back != nil {
			err = fmt.Errorf("%w: %w", errNoWayBack, back)
		}
	}()
	return call()
}

// Device returns the name of the device that has the given address.
func (n *Network) Device(t testing.TB, a netip.Addr) string {
	t.Helper()
	out, err := exec.Command("ip", "-n", n.Name, "-o", "addr", "show", "to", a.String()).CombinedOutput()
	fields := strings.Fields(string(out))
	if err != nil || len(fields) < 2 {
		t.Fatalf("no device of %s has %v: %v: %s", n.Name, a, err, out)
	}
	return fields[1]
}

// Addresses holds the addresses of one end of a link.
type Addresses struct{ V4, V6 netip.Addr }

var links atomic.Int64

// addressesOf returns the addresses of both ends of a new link, and the link's number.
func addressesOf() (a, b Addresses, nth int64) {
	nth = links.Add(1)
	of := func(host int64) Addresses {
		return Addresses{
			V4: netip.MustParseAddr(fmt.Sprintf("10.99.%d.%d", nth, host)),
			V6: netip.MustParseAddr(fmt.Sprintf("fd99:%x::%d", nth, host)),
		}
	}
	return of(1), of(2), nth
}

func (n *Network) configure(t testing.TB, device string, a Addresses) {
	t.Helper()
	n.IP(t, "addr", "add", a.V4.String()+"/24", "dev", device)
	n.IP(t, "-6", "addr", "add", a.V6.String()+"/64", "dev", device, "nodad")
	n.IP(t, "link", "set", device, "up")
}

// Link connects two namespaces with a pair of veth devices.
func Link(t testing.TB, a, b *Network) (ofA, ofB Addresses) {
	t.Helper()
	ofA, ofB, nth := addressesOf()
	device := fmt.Sprintf("veth%d", nth)
	a.IP(t, "link", "add", device, "type", "veth", "peer", "name", device, "netns", b.Name)
	a.configure(t, device, ofA)
	b.configure(t, device, ofB)
	return ofA, ofB
}

// Wire is a link with a delay and packet loss, like tc netem. It needs no kernel module.
// Each end is a TUN device, and this process forwards the packets.
type Wire struct {
	delay atomic.Int64 // in nanoseconds, in each direction
	every atomic.Int64 // every n-th large packet is lost; 0 means that no packet is lost
	lost  atomic.Int64
}

// SetDelay sets the delay of packets in each direction.
func (w *Wire) SetDelay(d time.Duration) { w.delay.Store(int64(d)) }

// LoseEvery makes the wire lose every n-th packet of more than 200
// bytes. If n is 0, no packet is lost.
func (w *Wire) LoseEvery(n int) { w.every.Store(int64(n)) }

// Lost returns the number of lost packets.
func (w *Wire) Lost() int64 { return w.lost.Load() }

// NewWire connects two namespaces with a wire.
func NewWire(t testing.TB, a, b *Network) (w *Wire, ofA, ofB Addresses) {
	t.Helper()
	if _, err := os.Stat("/dev/net/tun"); err != nil {
		SkipUnprivileged(t, "a wire needs /dev/net/tun: %v", err)
	}
	w = &Wire{}
	ofA, ofB, nth := addressesOf()
	device := fmt.Sprintf("wire%d", nth)
	var ends [2]*os.File
	for i, n := range []*Network{a, b} {
		n.Do(t, func() (err error) {
			ends[i], err = openTUN(device)
			return err
		})
	}
	a.configure(t, device, ofA)
	b.configure(t, device, ofB)
	var running sync.WaitGroup
	running.Go(func() { w.carry(ends[0], ends[1]) })
	running.Go(func() { w.carry(ends[1], ends[0]) })
	t.Cleanup(func() {
		_ = ends[0].Close()
		_ = ends[1].Close()
		running.Wait()
	})
	return w, ofA, ofB
}

func openTUN(device string) (*os.File, error) {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	r, err := unix.NewIfreq(device)
	if err != nil {
		return nil, err
	}
	r.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI)
	if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, r); err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("make the device %s: %w", device, err)
	}
	return os.NewFile(uintptr(fd), device), nil
}

type packet struct {
	data []byte
	due  time.Time
}

// carry forwards packets from one end to the other end until both ends are closed.
func (w *Wire) carry(from, to *os.File) {
	line := make(chan packet, 10_000)
	var sending sync.WaitGroup
	sending.Go(func() {
		for p := range line {
			for d := time.Until(p.due); d > 0; d = time.Until(p.due) {
				// Nanosleep is used because Go's timers are up to a millisecond late in an
				// idle process.
				left := unix.NsecToTimespec(int64(d))
				_ = unix.Nanosleep(&left, nil)
			}
			_, _ = to.Write(p.data)
		}
	})
	buf := make([]byte, 64<<10)
	large := int64(0)
	for {
		n, err := from.Read(buf)
		if err != nil {
			break
		}
		if n > 200 {
			large++
			if every := w.every.Load(); every > 0 && large%every == 0 {
				w.lost.Add(1)
				continue
			}
		}
		line <- packet{append([]byte(nil), buf[:n]...), time.Now().Add(time.Duration(w.delay.Load()))}
	}
	close(line)
	sending.Wait()
}
