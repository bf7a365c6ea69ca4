// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Command pprofservice is a Go service with net/http/pprof, for the end-to-end
// test: it burns three parts of its CPU time in one function and one in another,
// and allocates in a third.
package main

import (
	"flag"
	"fmt"
	"net"
	"net/http"
	_ "net/http/pprof"
	"os"
	"runtime"
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
	for {
		begin := time.Now()
		burnThreeParts()
		burnOnePart()
		allocate()
		time.Sleep(time.Duration(float64(time.Since(begin)) * (1 - *duty) / *duty))
	}
}

// part is some ten milliseconds of work: so much work, and not so much time, since
// a thread may have to wait for a CPU.
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
	runtime.GC() // Go's profile knows allocations after the next collection
}
