// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/hotprofile/hotprofile/test/traces"
)

// burn produces the load. It follows the demand of a schedule until the schedule ends.
// The start is given in nanoseconds of CLOCK_MONOTONIC.
func burn(args []string) error {
	if len(args) != 3 {
		return errors.New("usage: burn unit|neighbour schedule start")
	}
	text, err := os.ReadFile(args[1])
	if err != nil {
		return err
	}
	s, err := traces.ParseSchedule(strings.TrimSuffix(filepath.Base(args[1]), ".txt"), string(text))
	if err != nil {
		return err
	}
	start, err := strconv.ParseInt(args[2], 10, 64)
	if err != nil {
		return err
	}
	demand, threads := s.Demand, s.Threads
	if args[0] == "neighbour" {
		demand, threads = s.Neighbour, 1
	}
	runtime.GOMAXPROCS(threads + 1)
	debug.SetGCPercent(-1) // Go's garbage collector cannot stop threads that wait in the kernel
	var wg sync.WaitGroup
	for range threads {
		wg.Go(func() {
			runtime.LockOSThread() // each thread measures its own CPU time
			follow(demand, float64(threads), time.Duration(s.Seconds)*time.Second, start)
		})
	}
	wg.Wait()
	return nil
}

// follow uses this thread's share of the demand in each step and then waits for the next
// step. CPU time that the thread could not get in a step is lost. CPU time for waking and
// waiting counts as used. Otherwise, the load would exceed small demands.
func follow(demand func(t float64) float64, threads float64, until time.Duration, start int64) {
	spent := nanos(unix.CLOCK_THREAD_CPUTIME_ID)
	var work uint64
	defer func() { runtime.KeepAlive(work) }()
	for {
		now := time.Duration(nanos(unix.CLOCK_MONOTONIC) - start)
		if now >= until {
			return
		}
		step := now / traces.Step * traces.Step
		end := step + traces.Step
		want := time.Duration(demand(step.Seconds()) / threads * float64(traces.Step))
		for now < end && time.Duration(nanos(unix.CLOCK_THREAD_CPUTIME_ID)-spent) < want {
			work += spin()
			now = time.Duration(nanos(unix.CLOCK_MONOTONIC) - start)
		}
		spent = nanos(unix.CLOCK_THREAD_CPUTIME_ID)
		if want < traces.Step {
			wait(start + int64(end))
		}
	}
}

// wait sleeps until a time of CLOCK_MONOTONIC. It bypasses the Go runtime, whose timers
// would use one percent of a core.
func wait(until int64) {
	ts := unix.NsecToTimespec(until)
	for {
		_, _, errno := unix.RawSyscall6(unix.SYS_CLOCK_NANOSLEEP, unix.CLOCK_MONOTONIC, unix.TIMER_ABSTIME, uintptr(unsafe.Pointer(&ts)), 0, 0, 0)
		if errno != unix.EINTR {
			return
		}
	}
}

// spin works for a few microseconds.
//
//go:noinline
func spin() (x uint64) {
	for i := range uint64(2000) {
		x = x*6364136223846793005 + i
	}
	return x
}

// nanos reads a clock. All processes have the same CLOCK_MONOTONIC, so the recorder and
// the load agree on the start of a trace.
func nanos(clock int32) int64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(clock, &ts); err != nil {
		return 0 // both clocks always exist
	}
	return ts.Nano()
}
