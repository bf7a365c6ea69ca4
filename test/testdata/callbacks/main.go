// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Command callbacks allocates in Go functions that C has called. Half of the
// memory is allocated in callbacks from C functions that Go has called. The other
// half is allocated on a thread that C has started. The allocations begin when a
// line arrives on standard input.
package main

/*
#cgo LDFLAGS: -lpthread
#include <pthread.h>
#include <stddef.h>

extern void allocFromC(int);
extern void allocFromThread(int);

static void call(int n) { for (int i = 0; i < n; i++) allocFromC(i); }

static void *routine(void *n) {
	for (long i = 0; i < (long)n; i++) allocFromThread(i);
	return NULL;
}

static void thread(long n) {
	pthread_t t;
	pthread_create(&t, NULL, routine, (void *)n);
	pthread_join(t, NULL);
}
*/
import "C"

import (
	"bufio"
	"fmt"
	"os"
	"runtime"
)

var sink []byte

//export allocFromC
func allocFromC(C.int) { sink = make([]byte, 4096) }

//export allocFromThread
func allocFromThread(C.int) { sink = make([]byte, 4096) }

//go:noinline
func callC(n int) { C.call(C.int(n)) }

//go:noinline
func startThread(n int) { C.thread(C.long(n)) }

func main() {
	runtime.MemProfileRate = 16 << 10
	runtime.MemProfile(nil, false) // without this call, the linker would remove the memory profiler
	in := bufio.NewReader(os.Stdin)
	fmt.Println("ready")
	for {
		if _, err := in.ReadString('\n'); err != nil {
			return
		}
		callC(10_000)
		startThread(10_000)
		fmt.Println("0 0 0")
	}
}
