// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Command golabels runs spans of CPU time with labels. For each span, it prints a line of
// the form "TID START END ID". The times are in nanoseconds of the monotonic clock. The
// command ends when its standard input is closed.
//
// The arguments are the duration of a span, the number of workers and the kind of spans.
// For "do", each worker sets labels for each span. For "spawn", it also starts a
// goroutine for each span, which inherits the labels. For "start", it starts a goroutine
// for each span, which sets its own labels and ends with the span.
package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/pprof"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"
)

const monotonic = 1

func now() int64 {
	var t syscall.Timespec
	syscall.RawSyscall(syscall.SYS_CLOCK_GETTIME, monotonic, uintptr(unsafe.Pointer(&t)), 0)
	return t.Nano()
}

var (
	spans atomic.Uint64
	stop  atomic.Bool
	mu    sync.Mutex
	out   = bufio.NewWriter(os.Stdout)
	sink  []byte
)

// burn uses the CPU for the given time, as part of a span.
func burn(span time.Duration, id uint64) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	start := now()
	end := start
	for n := 0; end-start < int64(span); end = now() {
		for range 2000 {
			n++
		}
		sink = make([]byte, 1+n%64)
	}
	mu.Lock()
	fmt.Fprintln(out, syscall.Gettid(), start, end, id)
	mu.Unlock()
}

func main() {
	span, err := time.ParseDuration(os.Args[1])
	if err != nil {
		panic(err)
	}
	workers, err := strconv.Atoi(os.Args[2])
	if err != nil {
		panic(err)
	}
	var running sync.WaitGroup
	for range workers {
		running.Go(func() {
			for !stop.Load() {
				id := spans.Add(1)
				labels := pprof.Labels("trace_id", fmt.Sprintf("%032x", id), "span_id", fmt.Sprintf("%016x", id), "http.route", fmt.Sprintf("/route/%d", id%7), "other", "x")
				switch os.Args[3] {
				case "do":
					pprof.Do(context.Background(), labels, func(context.Context) { burn(span, id) })
				case "spawn":
					pprof.Do(context.Background(), labels, func(context.Context) {
						var child sync.WaitGroup
						child.Go(func() { burn(span, id) })
						child.Wait()
					})
				case "start":
					var child sync.WaitGroup
					child.Go(func() {
						pprof.SetGoroutineLabels(pprof.WithLabels(context.Background(), labels))
						burn(span, id)
					})
					child.Wait()
				}
			}
		})
	}
	_, _ = io.Copy(io.Discard, os.Stdin)
	stop.Store(true)
	running.Wait()
	out.Flush()
}
