// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Command mixed spends CPU time in Go functions, in C functions that Go calls, and in Go
// functions that C calls back. Each line of its input is a number of CPU seconds. The
// command works until it has used this CPU time. Then it prints the start and the end of
// the work, in nanoseconds since the Unix epoch.
package main

/*
static unsigned long c_mix(unsigned long h, unsigned long n)
{
	for (unsigned long i = 0; i < n; i++) {
		h ^= h >> 33;
		h *= 0xff51afd7ed558ccdUL;
		h += i;
	}
	return h;
}

__attribute__((noinline)) static unsigned long c_leaf(unsigned long n)
{
	return c_mix(n, n) + 1;
}

static __attribute__((noinline)) unsigned long c_work(unsigned long n)
{
	return c_leaf(n) ^ 3;
}

extern unsigned long goCallback(unsigned long);

static __attribute__((noinline)) unsigned long c_calls_back(unsigned long n)
{
	return goCallback(n) + 5;
}
*/
import "C"

import (
	"bufio"
	"fmt"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

var sink atomic.Uint64

func main() {
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		seconds, err := time.ParseDuration(lines.Text() + "s")
		if err != nil {
			panic(err)
		}
		from := time.Now()
		until := used() + seconds
		var all sync.WaitGroup
		for range runtime.GOMAXPROCS(0) {
			all.Go(func() {
				for used() < until {
					goWork(1_000_000)
					sink.Add(uint64(C.c_work(1_500_000)))
					sink.Add(uint64(C.c_calls_back(800_000)))
				}
			})
		}
		all.Wait()
		fmt.Println(from.UnixNano(), time.Now().UnixNano())
	}
}

func used() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

//go:noinline
func goWork(n uint64) { sink.Add(goLeaf(n)) }

//go:noinline
func goLeaf(n uint64) (h uint64) {
	for i := range n {
		h = h*0x9e3779b97f4a7c15 ^ (h>>17 + i)
	}
	return h
}

//export goCallback
func goCallback(n C.ulong) C.ulong { return C.ulong(calledBack(uint64(n))) }

//go:noinline
func calledBack(n uint64) uint64 { return goLeaf(n) + 1 }
