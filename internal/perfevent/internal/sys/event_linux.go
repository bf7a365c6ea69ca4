// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package sys

import (
	"encoding/binary"
	"fmt"
	"unsafe" // for go:linkname too

	"golang.org/x/sys/unix"

	"github.com/hotprofile/hotprofile/internal/procfs"
)

// AttrInheritThread is a bit of struct perf_event_attr that golang.org/x/sys does not
// define.
const AttrInheritThread = 1 << 35

// Attr returns an event whose records use CLOCK_MONOTONIC and end with the fields of
// sampleType. Only the number of bytes in the ring decides when the reader is woken.
// Without the watermark bit, the number of samples would decide.
func Attr(kind uint32, config, sampleType, bits uint64) *unix.PerfEventAttr {
	return &unix.PerfEventAttr{
		Type:        kind,
		Size:        uint32(unsafe.Sizeof(unix.PerfEventAttr{})),
		Config:      config,
		Sample_type: sampleType,
		Bits:        bits | unix.PerfBitSampleIDAll | unix.PerfBitUseClockID | unix.PerfBitExcludeHv | unix.PerfBitWatermark,
		Clockid:     unix.CLOCK_MONOTONIC,
	}
}

// AllProcesses is the pid that makes perf_event_open cover every process.
const AllProcesses = -1

// Open opens an event without a group. It retries if a signal interrupts the call.
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

// EventID returns the id that identifies the event in records.
func EventID(fd int) (id uint64, err error) {
	if err = ioctlPointer(fd, unix.PERF_EVENT_IOC_ID, &id); err != nil {
		return 0, fmt.Errorf("reading the id of an event: %w", err)
	}
	return id, nil
}

// SetPeriod changes the number of counts per sample. Threads that inherited the event keep
// the old period.
func SetPeriod(fd int, period uint64) error {
	return ioctlPointer(fd, unix.PERF_EVENT_IOC_PERIOD, &period)
}

// Count returns the count of an event, which is the first value of its read_format.
func Count(fd int) (uint64, error) {
	var b [maxReadFormat]byte
	n, err := unix.Read(fd, b[:])
	if err != nil || n < 8 {
		return 0, fmt.Errorf("reading the count of an event: %d bytes, %w", n, err)
	}
	return binary.NativeEndian.Uint64(b[:]), nil
}

// maxReadFormat is at least the size of struct read_format without groups.
const maxReadFormat = 64

// ioctlPointer makes an ioctl request that takes a pointer to a u64. golang.org/x/sys has
// no function for such requests.
func ioctlPointer(fd int, request uint, value *uint64) error {
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), uintptr(request), uintptr(unsafe.Pointer(value)))
	if errno != 0 {
		return errno
	}
	return nil
}

// defaultMaxDescriptors is the limit if options set no limit.
const defaultMaxDescriptors = 4096

// DescriptorLimit returns the maximum number of descriptors for perf events. The maximum is
// limit, or 4096 if limit is not positive, but never more than half of RLIMIT_NOFILE.
func DescriptorLimit(limit int) int {
	if limit <= 0 {
		limit = defaultMaxDescriptors
	}
	return min(limit, procfs.OpenFileLimit()/2)
}

// StackDepth returns the maximum number of frames that the kernel records per stack.
func StackDepth() int {
	if n, err := procfs.Sysctl("kernel/perf_event_max_stack"); err == nil && n > 0 && n < MaxStackDepth {
		return n
	}
	return MaxStackDepth
}

// Monotonic returns CLOCK_MONOTONIC in nanoseconds, which is the clock of all records. The
// runtime reads this clock without a system call.
//
//go:linkname Monotonic runtime.nanotime
func Monotonic() int64
