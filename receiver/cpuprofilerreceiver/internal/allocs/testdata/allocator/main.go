// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Command allocator allocates what it is told to on its standard input, a line
// "KIND BYTES [THREADS]", and answers each line with what the runtime counted
// meanwhile: "BYTES OBJECTS SECONDS", the seconds of CPU time, and those objects
// left out that shared a block. RATE
// sets the rate of the memory profiler, EXEC runs another program in its place.
package main

import (
	"bufio"
	"fmt"
	"os"
	"runtime"
	"runtime/metrics"
	"strconv"
	"sync"
	"syscall"
	"time"
)

type node struct {
	left, right *node
	value       [3]int
}

var (
	sinkBytes  []byte
	sinkNode   *node
	sinkString string
)

//go:noinline
func small(budget int) int {
	switch budget % 4 {
	case 0:
		sinkBytes = make([]byte, 24)
		return 24
	case 1:
		sinkNode = new(node)
		return 48
	case 2:
		sinkBytes = make([]byte, 112)
		return 112
	}
	sinkBytes = make([]byte, 7) // shares a block
	return 8
}

//go:noinline
func large(budget int) int {
	sinkBytes = make([]byte, 40_000+budget%5*40_000)
	return len(sinkBytes)
}

//go:noinline
func mixed(budget int) int {
	if budget%100 == 0 {
		return large(budget)
	}
	if budget%50 == 0 {
		sinkBytes = make([]byte, 3000)
		return 3000
	}
	return small(budget)
}

// pages allocates 4 KiB at once.
//
//go:noinline
func pages(int) int {
	sinkBytes = make([]byte, 4096)
	return 4096
}

func allocate(kind string, budget int) {
	one := pages
	switch kind {
	case "small":
		one = small
	case "large":
		one = large
	case "mixed":
		one = mixed
	}
	for n := 0; budget > 0; n++ {
		budget -= one(n)
	}
}

var tiny = []metrics.Sample{{Name: "/gc/heap/tiny/allocs:objects"}}

func counted() (bytes, objects uint64) {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	metrics.Read(tiny)
	return m.TotalAlloc, m.Mallocs - tiny[0].Value.Uint64()
}

// cpuTime is steadier than time on a machine that does other things too.
func cpuTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func main() {
	if rate, err := strconv.Atoi(os.Getenv("RATE")); err == nil {
		runtime.MemProfileRate = rate
	}
	if path := os.Getenv("EXEC"); path != "" {
		fmt.Println("ready")
		if bufio.NewScanner(os.Stdin).Scan() {
			fmt.Println(syscall.Exec(path, []string{path}, []string{"RATE=" + os.Getenv("RATE")}))
		}
	}
	counted() // what the first one allocates is not of the tests' interest
	fmt.Println("ready")
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		var kind string
		var budget, threads int
		if n, _ := fmt.Sscan(lines.Text(), &kind, &budget, &threads); n < 3 {
			threads = 1
		}
		begin := cpuTime()
		bytes, objects := counted()
		var all sync.WaitGroup
		for i := 0; i < threads; i++ {
			all.Add(1)
			go func() {
				defer all.Done()
				allocate(kind, budget/threads)
			}()
		}
		all.Wait()
		bytesNow, objectsNow := counted()
		fmt.Println(bytesNow-bytes, objectsNow-objects, (cpuTime() - begin).Seconds())
	}
}
