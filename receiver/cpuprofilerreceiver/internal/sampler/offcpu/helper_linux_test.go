// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package offcpu

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"runtime"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// helper blocks a locked thread in reads of a pipe. The pipe is written to at regular
// intervals. helper prints the ID of the thread and then the same output as waiter.c.
func helper(args []string) int {
	times, _ := strconv.Atoi(args[0])
	each, _ := strconv.Atoi(args[1])
	if _, err := bufio.NewReader(os.Stdin).ReadString('\n'); err != nil {
		return 1
	}
	var fds [2]int
	if err := unix.Pipe(fds[:]); err != nil {
		return 1
	}
	runtime.LockOSThread()
	next := make(chan struct{}, 1)
	go func() {
		for range times {
			<-next // the reader is about to read, so it waits even if it was late
			time.Sleep(time.Duration(each) * time.Millisecond)
			_, _ = unix.Write(fds[1], []byte{1})
		}
	}()
	began, before := monotonic(), offCPU()
	for range times {
		next <- struct{}{}
		_, _ = unix.Read(fds[0], make([]byte, 1))
	}
	span := offCPU() - before
	fmt.Printf("%d\n%d\n%d\n%d\n", unix.Gettid(), began, monotonic(), span)
	return 0
}

// offCPU returns the elapsed time minus the time that this thread ran.
func offCPU() int64 {
	var now, ran unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &now)
	_ = unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &ran)
	return now.Nano() - ran.Nano()
}

// allocated keeps the allocations from being optimized away.
var allocated [4][]byte

// allocate allocates memory on several goroutines until standard input is closed. The
// garbage collector stops and wakes the goroutines again and again.
func allocate() int {
	for i := range allocated {
		go func() {
			for {
				allocated[i] = make([]byte, 8<<10)
			}
		}()
	}
	_, _ = io.Copy(io.Discard, os.Stdin)
	return 0
}
