// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Command load is a program with a known profile, for the demo and the end-to-end test.
// While the program is busy, one function uses three quarters of its CPU time and another
// function uses one quarter.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"
)

func main() {
	idleFor := flag.Duration("idle", 0, "idle for this long first")
	warmFor := flag.Duration("warm", 0, "then spend a part of the time in a third function for this long")
	warmDuty := flag.Float64("warm-duty", 0.1, "that part, above 0 to 1")
	busyFor := flag.Duration("busy", 0, "then busy for this long; 0: until stopped")
	threads := flag.Int("threads", 1, "busy threads")
	kernelThreads := flag.Int("kernel-threads", 0, "busy threads beside them that spend their time in the kernel")
	duty := flag.Float64("duty", 1, "share of each busy thread's time that is spent burning, above 0 to 1")
	waiting := flag.Int("waiting", 0, "threads beside all of this that only wait, from the start to the end: three parts of the time in one function and one in another, if they are woken in time")
	sending := flag.Bool("sending", false, "beside all of this, from the start to the end, send datagrams to itself, three in one function and one in another, and connect to where nobody listens")
	answer := flag.String("answer", "", "answer questions over TCP at this address and do nothing else")
	ask := flag.String("ask", "", "ask those at these two addresses, with a comma between them, ten times a second, a thread each, in one function and in another, and do nothing else")
	processLife := flag.Duration("process-life", 0, "burn in child processes that live this long each, one after the other, instead of in threads")
	coolDuty := flag.Float64("cool-duty", 0, "after being busy, the part of the time that is spent in the third function until stopped; 0: idle")
	once := flag.Bool("exit", false, "exit after being busy instead of idling until stopped")
	flag.Parse()
	// GOMAXPROCS is at least the number of threads. If there are more threads than CPUs, the
	// threads must wait in the kernel and not in Go's scheduler.
	runtime.GOMAXPROCS(max(runtime.GOMAXPROCS(0), *threads) + *waiting)

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	for range *waiting {
		go waitInSleeps()
	}
	if *sending {
		if err := sendToItself(ctx); err != nil {
			fmt.Fprintln(os.Stderr, "load:", err)
			os.Exit(1)
		}
	}
	if *answer != "" || *ask != "" {
		if err := exchange(ctx, *answer, *ask); err != nil {
			fmt.Fprintln(os.Stderr, "load:", err)
			os.Exit(1)
		}
		return
	}
	wait(ctx, *idleFor)
	if *warmFor > 0 {
		warm, cooled := context.WithTimeout(ctx, *warmFor)
		burnInThreads(warm, 1, *warmDuty, warmUp)
		cooled()
	}
	busy, done := ctx, func() {}
	if *busyFor > 0 {
		busy, done = context.WithTimeout(ctx, *busyFor)
	}
	if *processLife > 0 {
		if err := burnInProcesses(busy, *processLife); err != nil {
			fmt.Fprintln(os.Stderr, "load:", err)
			os.Exit(1)
		}
	} else {
		var all sync.WaitGroup
		for range *kernelThreads {
			all.Go(func() { burnInThreads(busy, 1, *duty, newSystemCall()) })
		}
		burnInThreads(busy, *threads, *duty, spin)
		all.Wait()
	}
	done()
	switch {
	case *once:
	case *coolDuty > 0:
		burnInThreads(ctx, 1, *coolDuty, warmUp)
	default:
		<-ctx.Done()
	}
}

func wait(ctx context.Context, d time.Duration) {
	if d <= 0 {
		return
	}
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

func burnInThreads(ctx context.Context, n int, duty float64, burn func()) {
	var stop atomic.Bool
	defer context.AfterFunc(ctx, func() { stop.Store(true) })()
	var wg sync.WaitGroup
	for range n {
		wg.Go(func() {
			for !stop.Load() {
				began := time.Now()
				burn()
				if duty < 1 {
					wait(ctx, time.Duration(float64(time.Since(began))*(1-duty)/duty))
				}
			}
		})
	}
	wg.Wait()
}

// waitInSleeps blocks its thread.
func waitInSleeps() {
	runtime.LockOSThread()
	const part = 10 * time.Millisecond
	for {
		waitThreeParts(3 * part)
		waitOnePart(part)
	}
}

//go:noinline
func waitThreeParts(d time.Duration) { sleepInThread(d) }

//go:noinline
func waitOnePart(d time.Duration) { sleepInThread(d) }

// sleepInThread blocks the thread. time.Sleep is not used, because it would only block the
// goroutine. The system call is announced to Go's scheduler, which would otherwise treat the
// wait as an endless computation and interrupt it.
func sleepInThread(d time.Duration) {
	t := syscall.NsecToTimespec(int64(d))
	_, _, _ = syscall.Syscall(syscall.SYS_NANOSLEEP, uintptr(unsafe.Pointer(&t)), 0, 0)
}

// sendToItself sends datagrams of 1000 bytes over UDP until ctx is done. It also makes TCP
// connections to a port without a listener.
func sendToItself(ctx context.Context) error {
	to, err := net.ListenPacket("udp4", "127.0.0.1:0")
	if err != nil {
		return err
	}
	from, err := net.Dial("udp4", to.LocalAddr().String())
	if err != nil {
		return err
	}
	nobody, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return err
	}
	_ = nobody.Close()
	go receive(to)
	go func() {
		b := make([]byte, 1000)
		for ctx.Err() == nil {
			for range 10 {
				sendThreeParts(from, b)
				sendOnePart(from, b)
				wait(ctx, 5*time.Millisecond)
			}
			connectToNobody(nobody.Addr().(*net.TCPAddr).Port)
		}
		_ = from.Close()
		_ = to.Close()
	}()
	return nil
}

//go:noinline
func sendThreeParts(to io.Writer, b []byte) {
	for range 3 {
		_, _ = to.Write(b)
	}
}

//go:noinline
func sendOnePart(to io.Writer, b []byte) { _, _ = to.Write(b) }

//go:noinline
func receive(from net.PacketConn) {
	b := make([]byte, 2000)
	for {
		if _, _, err := from.ReadFrom(b); err != nil {
			return
		}
	}
}

const (
	questionSize, answerSize = 200, 2000
	askEvery                 = 100 * time.Millisecond
)

// exchange listens on the address in at and answers questions. If at is empty, exchange
// asks the two addresses in others. It returns when ctx is done.
func exchange(ctx context.Context, at, others string) error {
	if at != "" {
		l, err := net.Listen("tcp", at)
		if err != nil {
			return err
		}
		defer context.AfterFunc(ctx, func() { _ = l.Close() })()
		for {
			conn, err := l.Accept()
			if err != nil {
				return nil //nolint:nilerr // it was closed
			}
			go answerAll(conn)
		}
	}
	first, second, ok := strings.Cut(others, ",")
	if !ok {
		return errors.New("-ask needs two addresses")
	}
	for to, ask := range map[string]func(int, []byte) error{first: askFirst, second: askSecond} {
		fd, err := connect(to)
		if err != nil {
			return fmt.Errorf("connect to %s: %w", to, err)
		}
		go func() {
			runtime.LockOSThread()
			next := time.Now()
			for b := make([]byte, answerSize); ask(fd, b) == nil; sleepInThread(max(time.Until(next), 0)) {
				next = next.Add(askEvery)
			}
		}()
	}
	<-ctx.Done()
	return nil
}

func answerAll(conn net.Conn) {
	defer conn.Close()
	for b := make([]byte, answerSize); ; {
		if _, err := io.ReadFull(conn, b[:questionSize]); err != nil {
			return
		}
		if _, err := conn.Write(b); err != nil {
			return
		}
	}
}

// connect returns a socket whose reads block the thread. Reads from a socket of package
// net would only block the goroutine.
func connect(to string) (int, error) {
	address, err := netip.ParseAddrPort(to)
	if err != nil {
		return -1, err
	}
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	return fd, syscall.Connect(fd, &syscall.SockaddrInet4{Port: int(address.Port()), Addr: address.Addr().As4()})
}

//go:noinline
func askFirst(fd int, b []byte) error { return askAndWait(fd, b) }

//go:noinline
func askSecond(fd int, b []byte) error { return askAndWait(fd, b) }

func askAndWait(fd int, b []byte) error {
	if _, err := syscall.Write(fd, b[:questionSize]); err != nil {
		return err
	}
	for n := 0; n < len(b); {
		got, err := syscall.Read(fd, b[n:])
		if err != nil || got == 0 {
			return cmp.Or(err, io.EOF)
		}
		n += got
	}
	return nil
}

//go:noinline
func connectToNobody(port int) {
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return
	}
	_ = syscall.Connect(fd, &syscall.SockaddrInet4{Port: port, Addr: [4]byte{127, 0, 0, 1}})
	_ = syscall.Close(fd)
}

// newSystemCall returns a function that takes about as long as spin, but
// spends its time in the kernel.
func newSystemCall() func() {
	zeros, err := os.Open("/dev/zero")
	if err != nil {
		fmt.Fprintln(os.Stderr, "load:", err)
		os.Exit(1)
	}
	buf := make([]byte, 1<<20)
	return func() { _, _ = zeros.Read(buf) }
}

func burnInProcesses(ctx context.Context, life time.Duration) error {
	for ctx.Err() == nil {
		cmd := exec.Command("/proc/self/exe", "-busy", life.String(), "-exit")
		cmd.Stderr = os.Stderr
		if err := cmd.Run(); err != nil && ctx.Err() == nil {
			return fmt.Errorf("run a child of %v: %w", life, err)
		}
	}
	return nil
}

const unit = 50_000

var sink atomic.Uint64

// spin does three quarters of its work in one function and one quarter in another.
//
//go:noinline
func spin() {
	sink.Add(burnThreeParts(3 * unit))
	sink.Add(burnOnePart(unit))
}

// warmUp does its work in a function that spin does not call.
//
//go:noinline
func warmUp() { sink.Add(burnBefore(unit)) }

//go:noinline
func burnBefore(n int) (x uint64) {
	for i := range n {
		x = x*6364136223846793005 + uint64(i)
	}
	return x
}

//go:noinline
func burnThreeParts(n int) (x uint64) {
	for i := range n {
		x = x*6364136223846793005 + uint64(i)
	}
	return x
}

//go:noinline
func burnOnePart(n int) (x uint64) {
	for i := range n {
		x = x*6364136223846793005 + uint64(i)
	}
	return x
}
