// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/pprof"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// role is a load, which runs until it is killed.
type role func()

var roles = map[string]role{
	"flooding":   flood,
	"winding":    wind,
	"allocating": allocate,
	"waiting":    waitOften,
	"churning":   churn,
	"pulsing":    pulse,
	"short":      func() { burn(20 * time.Millisecond) },
}

// burned keeps the result of burn. Otherwise the compiler might remove the work.
var burned atomic.Uint64

// burn spends CPU time.
//
//go:noinline
func burn(d time.Duration) {
	x := uint64(0)
	for until := time.Now().Add(d); time.Now().Before(until); {
		for i := range 10_000 {
			x = x*6364136223846793005 + uint64(i)
		}
	}
	burned.Add(x)
}

// flood spends CPU time at the ends of random paths through four functions, so that nearly
// all of its stacks are different.
func flood() {
	for {
		descend(rand.Uint64(), 60+rand.IntN(60))
	}
}

// wind is like flood, but the kernel can record its stacks completely. The kernel records
// at most 127 frames, and each turn takes up to two frames.
func wind() {
	for {
		descend(rand.Uint64(), 10+rand.IntN(40))
	}
}

//go:noinline
func descend(way uint64, left int) uint64 {
	if left == 0 {
		burn(time.Millisecond)
		return way
	}
	// way is rotated, so a path of 64 turns uses each bit of way twice.
	next := way>>2 | way<<62
	switch way & 3 {
	case 0:
		return turnA(next, left-1) + 1
	case 1:
		return turnB(next, left-1) + 1
	case 2:
		return turnC(next, left-1) + 1
	default:
		return descend(next, left-1) + 1
	}
}

//go:noinline
func turnA(way uint64, left int) uint64 { return descend(way, left) + 2 }

//go:noinline
func turnB(way uint64, left int) uint64 { return descend(way, left) + 3 }

//go:noinline
func turnC(way uint64, left int) uint64 { return descend(way, left) + 4 }

// allocate allocates memory as fast as its quota allows.
func allocate() {
	// Without this call, the linker omits the memory profiler.
	_, _ = runtime.MemProfile(nil, false)
	var kept [64][]byte // so that each slice has to be on the heap
	for i := 0; ; i++ {
		kept[i%len(kept)] = make([]byte, 16<<10)
	}
}

// waitOften alternates between working and waiting on many threads.
func waitOften() {
	var all sync.WaitGroup
	for range 16 {
		all.Go(func() {
			runtime.LockOSThread()
			for {
				burn(200 * time.Microsecond)
				t := syscall.NsecToTimespec(int64(time.Millisecond + rand.N(3*time.Millisecond)))
				_ = syscall.Nanosleep(&t, nil)
			}
		})
	}
	all.Wait()
}

// churn starts short-lived processes.
func churn() {
	for {
		cmd := exec.Command("/proc/self/exe", "-role", "short")
		cmd.Stderr = os.Stderr
		if err := cmd.Run(); err != nil {
			fmt.Fprintln(os.Stderr, "soak: a short process:", err)
		}
		time.Sleep(30 * time.Millisecond)
	}
}

// servePprof serves net/http/pprof on a Unix socket until the load ends.
func servePprof(socket string) {
	mux := http.NewServeMux()
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	l, err := net.Listen("unix", socket)
	if err == nil {
		err = http.Serve(l, mux)
	}
	fmt.Fprintln(os.Stderr, "soak: serve net/http/pprof:", err)
	os.Exit(1)
}

// pulse alternates between using the CPU and sleeping.
func pulse() {
	for {
		burn(5 * time.Second)
		time.Sleep(4 * time.Second)
	}
}
