// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Command pprofservice is a Go service with net/http/pprof for the end-to-end test. One
// function does three times as much work as another function. A third function
// allocates memory. Some goroutines of the service wait for a mutex and a channel.
package main

import (
	"flag"
	"fmt"
	"net"
	"net/http"
	_ "net/http/pprof"
	"os"
	"runtime"
	"sync"
	"time"
)

func main() {
	network := flag.String("network", "tcp", "tcp or unix")
	at := flag.String("listen", "", "address or path to listen at")
	duty := flag.Float64("duty", 1, "share of the time that is spent burning")
	flag.Parse()
	l, err := net.Listen(*network, *at)
	if err != nil {
		fmt.Fprintln(os.Stderr, "pprofservice:", err)
		os.Exit(1)
	}
	go func() { _ = http.Serve(l, nil) }()
	runtime.SetBlockProfileRate(1)
	runtime.SetMutexProfileFraction(1)
	for {
		begin := time.Now()
		burnThreeParts()
		burnOnePart()
		allocate()
		contend()
		time.Sleep(time.Duration(float64(time.Since(begin)) * (1 - *duty) / *duty))
	}
}

// part is an amount of work that takes tens of milliseconds. It is not a fixed time,
// because a thread may have to wait for a CPU.
const part = 20_000_000

//go:noinline
func burnThreeParts() (n uint32) {
	for i := range uint32(3 * part) {
		n = n*31 + i
	}
	return n
}

//go:noinline
func burnOnePart() (n uint32) {
	for i := range uint32(part) {
		n = n*31 + i
	}
	return n
}

var kept [][]byte

//go:noinline
func allocate() {
	for range 16 {
		kept = append(kept, make([]byte, 64<<10))
	}
	kept = kept[:0]
	runtime.GC() // Go's profile includes allocations only after the next collection
}

// contend makes another goroutine wait for a mutex that the calling goroutine holds.
// The calling goroutine then waits for the other goroutine.
//
//go:noinline
func contend() {
	var m sync.Mutex
	m.Lock()
	begun, done := make(chan struct{}), make(chan struct{})
	go func() {
		close(begun)
		m.Lock()
		m.Unlock() //nolint:staticcheck // to wait for it is all
		close(done)
	}()
	<-begun
	time.Sleep(time.Millisecond)
	m.Unlock()
	<-done
}
