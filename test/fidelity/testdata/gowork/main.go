// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Command gowork spends CPU time in functions whose shares of the time are known.
// Each line of its input is a number of CPU seconds. The command works until it has
// used this CPU time. It writes the runtime's CPU profile of the work into the file
// that its argument names. Then it prints the start and the end of the work, in
// nanoseconds since the Unix epoch.
package main

import (
	"bufio"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"runtime/pprof"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

var (
	sink atomic.Uint64
	zero int
)

func main() {
	var err error
	zero, err = syscall.Open("/dev/zero", syscall.O_RDONLY, 0)
	check(err)
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		seconds, err := time.ParseDuration(lines.Text() + "s")
		check(err)
		file, err := os.Create(os.Args[1])
		check(err)
		check(pprof.StartCPUProfile(file))
		from := time.Now()
		until := used() + seconds
		var all sync.WaitGroup
		for i := range runtime.GOMAXPROCS(0) {
			all.Go(func() { worker(until, rand.New(rand.NewPCG(1, uint64(i)))) })
		}
		all.Wait()
		to := time.Now()
		pprof.StopCPUProfile()
		check(file.Close())
		fmt.Println(from.UnixNano(), to.UnixNano())
	}
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}

func used() time.Duration {
	var u syscall.Rusage
	check(syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// worker runs functions of random lengths in a random order, so that its work is not in
// step with a timer. aLot does three times as much work as aLittle.
//
//go:noinline
func worker(until time.Duration, random *rand.Rand) {
	for used() < until {
		work := []func(){
			func() { sink.Add(recurse(20 + random.IntN(4))) },
			func() { copyZeros(100 + random.IntN(200)) },
			func() { sort(4096 + random.IntN(8192)) },
			func() { allocate(200 + random.IntN(200)) },
			func() { pass(1000 + random.IntN(2000)) },
		}
		for range 6 {
			n := 20_000 + random.Uint64N(20_000)
			work = append(work, func() { aLot(3 * n) }, func() { aLittle(n) })
		}
		random.Shuffle(len(work), func(i, j int) { work[i], work[j] = work[j], work[i] })
		for _, w := range work {
			w()
		}
	}
}

//go:noinline
func aLot(n uint64) { sink.Add(hash(n)) }

//go:noinline
func aLittle(n uint64) { sink.Add(hash(n)) }

// hash has three levels of inlined calls in its loop.
//
//go:noinline
func hash(n uint64) (h uint64) {
	for i := range n {
		h = first(h + i)
	}
	return h
}

func first(x uint64) uint64  { return second(x) + 1 }
func second(x uint64) uint64 { return third(x) ^ x>>7 }

func third(x uint64) uint64 {
	x ^= x >> 33
	x *= 0xff51afd7ed558ccd
	x ^= x >> 29
	x *= 0xc4ceb9fe1a85ec53
	return x ^ x>>32
}

//go:noinline
func recurse(n int) uint64 {
	if n < 2 {
		return uint64(n)
	}
	return recurse(n-1) + recurse(n-2) + 1
}

//go:noinline
func copyZeros(n int) {
	buffer := make([]byte, 1<<16)
	for range n {
		_, err := syscall.Read(zero, buffer)
		check(err)
	}
}

type pair struct{ a, b uint32 }

//go:noinline
func sort(n int) {
	numbers := make([]pair, n)
	for i := range numbers {
		numbers[i].a = uint32(third(uint64(i)))
	}
	slices.SortFunc(numbers, func(x, y pair) int { return int(x.a>>1) - int(y.a>>1) })
	sink.Add(uint64(numbers[n/2].a))
}

//go:noinline
func allocate(n int) {
	m := make(map[string][]string)
	for i := range n {
		key := fmt.Sprint("key ", i%50)
		m[key] = append(m[key], strings.Repeat("x", i))
	}
	sink.Add(uint64(len(m)))
}

// pass sends values from one goroutine to another.
//
//go:noinline
func pass(n int) {
	values := make(chan int)
	go func() {
		defer close(values)
		for i := range n {
			values <- i
		}
	}()
	for v := range values {
		sink.Add(uint64(v))
	}
}
