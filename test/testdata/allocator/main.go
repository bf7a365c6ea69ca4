// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Command allocator allocates memory on request. Each line on its standard input is
// a request of the form "KIND BYTES [THREADS]". The answer is a line of the form
// "BYTES OBJECTS NANOSECONDS". BYTES and OBJECTS are the runtime's counts for this
// request, and NANOSECONDS is the CPU time. Objects that share a block are not
// counted. The environment variable RATE sets the rate of the memory profiler. EXEC
// names another program to execute.
package main

import (
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
	sinkBytes = make([]byte, 7) // objects of this size share a block
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

// pages allocates 4 KiB in each call.
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

var (
	stats runtime.MemStats
	usage syscall.Rusage
	tiny  = []metrics.Sample{{Name: "/gc/heap/tiny/allocs:objects"}}
)

func counted() (bytes, objects uint64) {
	runtime.ReadMemStats(&stats)
	metrics.Read(tiny)
	return stats.TotalAlloc, stats.Mallocs - tiny[0].Value.Uint64()
}

// cpuTime returns the CPU time of the process, which is more stable than elapsed time on a
// busy machine.
func cpuTime() time.Duration {
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		panic(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// serve answers one request. Besides the requested allocations, it makes no
// allocations, because one sampled object of a few bytes represents thousands of
// objects.
func serve(line, answer []byte) []byte {
	var kind string
	for _, k := range kinds {
		if rest := len(k) + 1; len(line) > rest && string(line[:len(k)]) == k {
			kind, line = k, line[rest:]
		}
	}
	budget, line := number(line)
	threads, _ := number(line)
	begin := cpuTime()
	bytes, objects := counted()
	if threads < 2 {
		allocate(kind, budget)
	} else {
		var all sync.WaitGroup
		for i := 0; i < threads; i++ {
			all.Add(1)
			go func() {
				defer all.Done()
				allocate(kind, budget/threads)
			}()
		}
		all.Wait()
	}
	bytesNow, objectsNow := counted()
	answer = append(strconv.AppendUint(answer, bytesNow-bytes, 10), ' ')
	answer = append(strconv.AppendUint(answer, objectsNow-objects, 10), ' ')
	return append(strconv.AppendInt(answer, int64(cpuTime()-begin), 10), '\n')
}

var kinds = []string{"small", "large", "mixed", "pages"}

func number(line []byte) (n int, rest []byte) {
	for len(line) > 0 && line[0] >= '0' && line[0] <= '9' {
		n, line = 10*n+int(line[0]-'0'), line[1:]
	}
	if len(line) > 0 {
		line = line[1:]
	}
	return n, line
}

func main() {
	if rate, err := strconv.Atoi(os.Getenv("RATE")); err == nil {
		runtime.MemProfileRate = rate
	}
	if path := os.Getenv("EXEC"); path != "" {
		fmt.Println("ready")
		_, _ = os.Stdin.Read(make([]byte, 100))
		fmt.Println(syscall.Exec(path, []string{path}, []string{"RATE=" + os.Getenv("RATE")}))
	}
	counted() // the first call allocates, which the tests must not count
	fmt.Println("ready")
	line, answer := make([]byte, 100), make([]byte, 0, 100)
	for {
		n, err := os.Stdin.Read(line) // each read returns a whole line
		if err != nil {
			return
		}
		if _, err := os.Stdout.Write(serve(line[:n], answer)); err != nil {
			return
		}
	}
}
