// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package cpuprofilerreceiver

import (
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// timerSlack is the delay that the kernel may add to each timer of this process. While
// any goroutine runs, the Go runtime's monitor thread sleeps for 20 µs at a time, which the
// kernel's default slack makes 70 µs. Its wakeups were about a quarter of the collector's CPU
// time. A slack of half a millisecond removes most of them.
const timerSlack = 500 * time.Microsecond

// setTimerSlack sets the timer slack of all threads. It is called once per process, because
// the runtime stops all goroutines until each thread has answered, and a thread that reads
// from a file system without a server may never answer. A binary that uses cgo keeps the
// kernel's default slack, because Go does not know all of its threads.
var setTimerSlack = sync.OnceFunc(func() {
	_, _, _ = syscall.AllThreadsSyscall(unix.SYS_PRCTL, unix.PR_SET_TIMERSLACK, uintptr(timerSlack), 0)
})
