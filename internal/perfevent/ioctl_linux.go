// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package perfevent

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// ioctlPointer is for the requests whose argument is a u64, which x/sys has no
// function for: its integers are the machine's.
func ioctlPointer(fd int, request uint, value *uint64) error {
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), uintptr(request), uintptr(unsafe.Pointer(value)))
	if errno != 0 {
		return errno
	}
	return nil
}

func eventID(fd int) (id uint64, err error) {
	err = ioctlPointer(fd, unix.PERF_EVENT_IOC_ID, &id)
	return id, err
}

func setPeriod(fd int, period uint64) error {
	return ioctlPointer(fd, unix.PERF_EVENT_IOC_PERIOD, &period)
}
