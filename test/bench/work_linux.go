// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/hotprofile/hotprofile/test/hosttest/scratch"
)

// These are the kinds of work that a process of this program does while it is
// sampled. The amount of work is fixed, and its duration is measured.
const (
	computing  = "computing"  // one thread that never waits
	switching  = "switching"  // two threads on one CPU that wake each other
	allocating = "allocating" // objects of 16 bytes to 4 KiB, most of them short-lived
	sending    = "sending"    // one thread that sends datagrams of 64 bytes to a full socket
	answering  = "answering"  // two threads on one CPU that exchange requests and answers over TCP, 64 bytes each
	waiting    = "waiting"    // eight threads that each sleep for 2 ms at a time
	wandering  = "wandering"  // a thread for each CPU, with a different stack almost every time
)

// workMain does the work of the command line `work KIND AMOUNT`. It begins after a
// line on standard input. At the end it prints the elapsed time and the CPU time, in
// nanoseconds. If the amount is 0, it works until standard input is closed.
func workMain(args []string) error {
	if len(args) != 2 {
		return errors.New("work needs a kind and an amount")
	}
	amount, err := strconv.ParseInt(args[1], 10, 64)
	if err != nil {
		return err
	}
	do, known := map[string]func(int64, *atomic.Bool) error{
		computing: compute, switching: switchBetween, allocating: allocate, sending: sendSmall, answering: askAndAnswer, waiting: waitOften, wandering: wander,
	}[args[0]]
	if !known {
		return fmt.Errorf("there is no work of the kind %q", args[0])
	}
	in := bufio.NewReader(os.Stdin)
	if _, err := in.ReadString('\n'); err != nil {
		return err
	}
	var stop atomic.Bool
	if amount == 0 {
		go func() {
			_, _ = io.Copy(io.Discard, in)
			stop.Store(true)
		}()
	}
	began, used := clock(unix.CLOCK_MONOTONIC), clock(unix.CLOCK_PROCESS_CPUTIME_ID)
	if err := do(amount, &stop); err != nil {
		return err
	}
	_, err = fmt.Println(clock(unix.CLOCK_MONOTONIC)-began, clock(unix.CLOCK_PROCESS_CPUTIME_ID)-used)
	return err
}

func clock(id int32) int64 {
	var ts unix.Timespec
	_ = unix.ClockGettime(id, &ts)
	return ts.Nano()
}

// upTo calls the function do repeatedly. It returns after the given number of calls, or
// when stop is set. If the number is 0, it returns only when stop is set.
func upTo(amount int64, stop *atomic.Bool, do func()) {
	for i := int64(0); (amount == 0 || i < amount) && !stop.Load(); i++ {
		do()
	}
}

var sink atomic.Uint64

func compute(amount int64, stop *atomic.Bool) error {
	upTo(amount, stop, func() { sink.Add(mix(10_000)) })
	return nil
}

//go:noinline
func mix(n int) (x uint64) {
	for i := range n {
		x = x*6364136223846793005 + uint64(i)
	}
	return x
}

// switchBetween makes two threads exchange a byte over pipes. The threads share a CPU, so
// that passing the byte there and back causes exactly two context switches.
func switchBetween(amount int64, stop *atomic.Bool) error {
	var there, back [2]int
	if err := errors.Join(unix.Pipe(there[:]), unix.Pipe(back[:])); err != nil {
		return err
	}
	return exchange(amount, stop, [2]int{there[0], back[1]}, [2]int{back[0], there[1]}, 1)
}

// exchange runs two threads on one CPU. The first thread reads and then writes a message
// through the descriptors in answers. The second thread writes and then reads a message
// through the descriptors in asks.
func exchange(amount int64, stop *atomic.Bool, answers, asks [2]int, bytes uintptr) error {
	runtime.GOMAXPROCS(runtime.GOMAXPROCS(0) + 2)
	var all unix.CPUSet
	if err := unix.SchedGetaffinity(0, &all); err != nil {
		return err
	}
	var one unix.CPUSet
	for cpu := range runtime.NumCPU() * 64 {
		if all.IsSet(cpu) {
			one.Set(cpu)
			break
		}
	}
	pass := func(fd int, number uintptr) {
		var b [packet]byte
		_, _, _ = syscall.RawSyscall(number, uintptr(fd), uintptr(unsafe.Pointer(&b)), bytes)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		runtime.LockOSThread()
		_ = unix.SchedSetaffinity(0, &one)
		upTo(amount, stop, func() {
			pass(answers[0], unix.SYS_READ)
			pass(answers[1], unix.SYS_WRITE)
		})
		_ = unix.Close(answers[1])
	})
	wg.Go(func() {
		runtime.LockOSThread()
		_ = unix.SchedSetaffinity(0, &one)
		upTo(amount, stop, func() {
			pass(asks[1], unix.SYS_WRITE)
			pass(asks[0], unix.SYS_READ)
		})
		_ = unix.Close(asks[1])
	})
	wg.Wait()
	return nil
}

// allocated is the average number of bytes that one call of allocate's innermost function
// allocates. The call allocates 100 objects, whose sizes are 16 bytes times a power of two
// from 1 to 256.
const allocated = 100.0 * 16 * (1<<9 - 1) / 9

func allocate(amount int64, stop *atomic.Bool) error {
	// Go samples allocations only in programs that refer to this function.
	// Without the reference there is no memory profile to attach to.
	_, _ = runtime.MemProfile(nil, false)
	var kept [256][]byte
	n := 0
	upTo(amount, stop, func() {
		for range 100 {
			kept[n%len(kept)] = make([]byte, 16<<(n%9))
			n++
		}
		if amount == 0 {
			time.Sleep(time.Millisecond)
		}
	})
	sink.Add(uint64(len(kept[n%len(kept)])))
	return nil
}

// packet is the size of the packets of sendSmall and askAndAnswer, in bytes.
const packet = 64

// sendSmall sends datagrams to a socket without a reader, so
// that the program does nothing but system calls.
func sendSmall(amount int64, stop *atomic.Bool) error {
	to, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0)
	if err != nil {
		return err
	}
	if err := unix.Bind(to, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		return err
	}
	at, err := unix.Getsockname(to)
	if err != nil {
		return err
	}
	from, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0)
	if err != nil {
		return err
	}
	if err := unix.Connect(from, at); err != nil {
		return err
	}
	runtime.LockOSThread()
	var b [packet]byte
	upTo(amount, stop, func() {
		_, _, _ = syscall.RawSyscall6(unix.SYS_SENDTO, uintptr(from), uintptr(unsafe.Pointer(&b)), packet, 0, 0, 0)
	})
	return errors.Join(unix.Close(from), unix.Close(to))
}

// askAndAnswer makes two threads exchange packets over TCP. The threads
// share a CPU, as in switchBetween.
func askAndAnswer(amount int64, stop *atomic.Bool) error {
	l, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
	if err != nil {
		return err
	}
	if err := errors.Join(unix.Bind(l, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}), unix.Listen(l, 1)); err != nil {
		return err
	}
	at, err := unix.Getsockname(l)
	if err != nil {
		return err
	}
	asks, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
	if err != nil {
		return err
	}
	if err := unix.Connect(asks, at); err != nil {
		return err
	}
	answers, _, err := unix.Accept(l)
	if err != nil {
		return err
	}
	return exchange(amount, stop, [2]int{answers, answers}, [2]int{asks, asks}, packet)
}

func waitOften(amount int64, stop *atomic.Bool) error {
	const threads = 8
	runtime.GOMAXPROCS(runtime.GOMAXPROCS(0) + threads)
	var wg sync.WaitGroup
	for range threads {
		wg.Go(func() {
			runtime.LockOSThread()
			upTo(amount, stop, func() { sleepThread(2 * time.Millisecond) })
		})
	}
	wg.Wait()
	return nil
}

// sleepThread blocks the thread without the knowledge of the Go scheduler.
func sleepThread(d time.Duration) {
	t := syscall.NsecToTimespec(int64(d))
	_, _, _ = syscall.RawSyscall(syscall.SYS_NANOSLEEP, uintptr(unsafe.Pointer(&t)), 0, 0)
}

// wander descends through 24 calls. Each call is one of four functions, so
// there are 4^24 stacks. At the bottom it computes and sleeps for a moment.
func wander(amount int64, stop *atomic.Bool) error {
	runtime.GOMAXPROCS(2 * runtime.NumCPU())
	var wg sync.WaitGroup
	for n := range runtime.NumCPU() {
		wg.Go(func() {
			runtime.LockOSThread()
			r := rand.New(rand.NewPCG(uint64(n), 1))
			upTo(amount, stop, func() { sink.Add(down(r.Uint64(), 24)) })
		})
	}
	wg.Wait()
	return nil
}

func down(way uint64, left int) uint64 {
	if left == 0 {
		x := mix(20_000)
		sleepThread(10 * time.Microsecond)
		return x
	}
	switch way & 3 {
	case 0:
		return north(way>>2, left-1)
	case 1:
		return east(way>>2, left-1)
	case 2:
		return south(way>>2, left-1)
	}
	return west(way>>2, left-1)
}

// Each function adds to the result after the call, so that the call is not a tail call.
//
//go:noinline
func north(way uint64, left int) uint64 { return down(way, left) + 1 }

//go:noinline
func east(way uint64, left int) uint64 { return down(way, left) + 2 }

//go:noinline
func south(way uint64, left int) uint64 { return down(way, left) + 3 }

//go:noinline
func west(way uint64, left int) uint64 { return down(way, left) + 4 }

// worker is a process of this program that does work.
type worker struct {
	*child
	in  io.WriteCloser
	out *bufio.Reader
}

// startWorker starts a worker that waits for begin. The
// worker runs in group, unless group is nil.
func (b *bench) startWorker(group *scratch.Cgroup, kind string, amount int64) (*worker, error) {
	args := []string{"work", kind, fmt.Sprint(amount)}
	cmd := exec.Command(b.self, args...)
	if group != nil {
		cmd = group.Command(b.self, args...)
	}
	cmd.Env = append(os.Environ(), "OTEL_SERVICE_NAME=bench-"+kind)
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	from, to, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer to.Close()
	w := &worker{in: in, out: bufio.NewReader(from)}
	if w.child, err = b.startWith("work-"+kind, cmd, to); err != nil {
		_ = from.Close()
	}
	return w, err
}

func (w *worker) begin() error {
	_, err := io.WriteString(w.in, "\n")
	return err
}

// worked is the elapsed time and the CPU time of a piece of work, in seconds.
type worked struct{ wall, cpu float64 }

// finish waits for the end of the work.
func (w *worker) finish(ctx context.Context) (r worked, err error) {
	stop := context.AfterFunc(ctx, func() { _ = w.cmd.Process.Kill() })
	defer stop()
	var wall, cpu int64
	_, err = fmt.Fscan(w.out, &wall, &cpu)
	_ = w.in.Close()
	<-w.done
	if err = errors.Join(err, w.err, ctx.Err()); err != nil {
		return r, fmt.Errorf("%s: %w\n%s", w.name, err, w.lastWords())
	}
	return worked{wall: float64(wall) / 1e9, cpu: float64(cpu) / 1e9}, nil
}

// end ends work that has no fixed amount.
func (w *worker) end() error {
	_ = w.in.Close()
	select {
	case <-w.done:
		return nil
	case <-time.After(10 * time.Second):
		return w.stop()
	}
}

// work does a piece of work. If attach is not nil, work calls
// attach once the process exists.
func (b *bench) work(ctx context.Context, group *scratch.Cgroup, kind string, amount int64, attach func(pid int) error) (worked, error) {
	w, err := b.startWorker(group, kind, amount)
	if err != nil {
		return worked{}, err
	}
	if attach != nil {
		err = attach(w.cmd.Process.Pid)
	}
	if err == nil {
		err = w.begin()
	}
	if err != nil {
		return worked{}, errors.Join(err, w.end())
	}
	return w.finish(ctx)
}

// amountFor returns the amount of work that currently takes about d.
func (b *bench) amountFor(ctx context.Context, kind string, d time.Duration) (int64, error) {
	amount := int64(100)
	for range 10 {
		r, err := b.work(ctx, nil, kind, amount, nil)
		if err != nil {
			return 0, err
		}
		if r.wall > d.Seconds()/4 {
			return max(1, int64(float64(amount)*d.Seconds()/r.wall)), nil
		}
		amount *= 8
	}
	return amount, nil
}
