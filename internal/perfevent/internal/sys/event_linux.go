// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package sys

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Bits of struct perf_event_attr that golang.org/x/sys does not name.
const (
	AttrCgroup        = 1 << 32
	AttrInheritThread = 1 << 35
)

// AttrSize is sizeof(struct perf_event_attr) as this program was built with.
const AttrSize = uint32(unsafe.Sizeof(unix.PerfEventAttr{}))

// AllProcesses is the pid that perf_event_open takes for every process.
const AllProcesses = -1

// Open opens an event, without a group. It repeats the call while a signal
// interrupts it.
func Open(a *unix.PerfEventAttr, pid, cpu, flags int) (fd int, err error) {
	for {
		fd, err := unix.PerfEventOpen(a, pid, cpu, -1, flags|unix.PERF_FLAG_FD_CLOEXEC)
		if err != unix.EINTR {
			return fd, err
		}
	}
}

// SetOutput redirects the records of an event to the ring of another event on the
// same CPU.
func SetOutput(fd, output, cpu int) error {
	if err := unix.IoctlSetInt(fd, unix.PERF_EVENT_IOC_SET_OUTPUT, output); err != nil {
		return fmt.Errorf("redirecting the event of CPU %d: %w", cpu, err)
	}
	return nil
}

// EventID returns the id by which records name the event.
func EventID(fd int) (id uint64, err error) {
	if err = ioctlPointer(fd, unix.PERF_EVENT_IOC_ID, &id); err != nil {
		return 0, fmt.Errorf("reading the id of an event: %w", err)
	}
	return id, nil
}

// SetPeriod changes the count after which the event is sampled. Threads that
// inherited the event keep the old one.
func SetPeriod(fd int, period uint64) error {
	return ioctlPointer(fd, unix.PERF_EVENT_IOC_PERIOD, &period)
}

// ioctlPointer makes a request whose argument is a pointer to a u64, for which
// golang.org/x/sys has no function.
func ioctlPointer(fd int, request uint, value *uint64) error {
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), uintptr(request), uintptr(unsafe.Pointer(value)))
	if errno != 0 {
		return errno
	}
	return nil
}
