// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Command allocating allocates memory in pieces of 4096 bytes. One function allocates three
// pieces for each piece that another function allocates. The program allocates as much as it
// can while it is busy, and little before and afterwards.
package main

import (
	"flag"
	"runtime"
	"time"
)

const piece = 4096

var sink []byte

//go:noinline
func allocThreeParts() {
	for range 3 {
		sink = make([]byte, piece)
	}
}

//go:noinline
func allocOnePart() { sink = make([]byte, piece) }

// some allocates for a few hundred microseconds.
func some() {
	for range 256 {
		allocThreeParts()
		allocOnePart()
	}
}

func little(span time.Duration) {
	for until := time.Now().Add(span); time.Now().Before(until); time.Sleep(20 * time.Millisecond) {
		some()
	}
}

func main() {
	idle := flag.Duration("idle", 0, "allocate little for so long first")
	busy := flag.Duration("busy", 0, "then as much as it can for so long")
	flag.Parse()
	runtime.MemProfile(nil, false) // otherwise the linker omits the memory profiler
	little(*idle)
	for until := time.Now().Add(*busy); time.Now().Before(until); {
		some()
	}
	little(time.Hour)
}
