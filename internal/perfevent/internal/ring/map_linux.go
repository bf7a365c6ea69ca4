// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package ring

import (
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/hotprofile/hotprofile/internal/perfevent/internal/sys"
)

// Mapped is a ring with its memory and the event that owns the mapping.
type Mapped struct {
	Ring
	// FD is the descriptor of the event.
	FD int
	// Others are descriptors of additional events that write only to this ring. They are
	// closed with the ring.
	Others []int

	memory []byte
	// wakeup is the number of unread bytes at which the kernel wakes the reader.
	wakeup uint64
	// alwaysOn reports whether the event is CPU-wide and never disabled, so that its clock
	// advances while the CPU is online. enabled is the last value of this clock, which is
	// total_time_enabled of read_format.
	alwaysOn bool
	enabled  uint64
}

// Map opens an event and maps a ring of size bytes from it. pid is sys.AllProcesses, or a
// process of this user if CPU-wide events are not permitted. Events redirected into the
// ring must be on the same CPU, but may belong to any thread.
func Map(attr *unix.PerfEventAttr, pid, cpu, size int) (*Mapped, error) {
	attr.Read_format = unix.PERF_FORMAT_TOTAL_TIME_ENABLED
	fd, err := sys.Open(attr, pid, cpu, 0)
	if err != nil {
		return nil, err
	}
	page := os.Getpagesize()
	memory, err := unix.Mmap(fd, 0, page+size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		unix.Close(fd)
		return nil, &MapError{size: size, err: err}
	}
	meta := (*unix.PerfEventMmapPage)(unsafe.Pointer(&memory[0]))
	data := unsafe.Slice((*uint64)(unsafe.Pointer(&memory[page])), size/WordSize)
	return &Mapped{
		Ring:     New(&meta.Data_head, &meta.Data_tail, data),
		FD:       fd,
		memory:   memory,
		wakeup:   uint64(attr.Wakeup),
		alwaysOn: pid == sys.AllProcesses && attr.Bits&unix.PerfBitDisabled == 0,
	}, nil
}

// ended reports whether the event's CPU went offline. The only sign of this is that the
// event's clock has not advanced since the last call. After its CPU went offline, an event
// stays open but cannot be enabled again.
func (r *Mapped) ended() bool {
	if !r.alwaysOn {
		return false
	}
	var value [2]uint64 // struct read_format: the count, and the time enabled
	n, err := unix.Read(r.FD, Bytes(value[:]))
	if err != nil || n != 2*WordSize {
		return false
	}
	before := r.enabled
	r.enabled = value[1]
	return r.enabled == before
}

// ready reports whether the ring has enough unread bytes for the kernel to wake the reader.
// If prompt is true, one byte is enough.
func (r *Mapped) ready(prompt bool) bool {
	unread := atomic.LoadUint64(r.head) - atomic.LoadUint64(r.tail)
	return unread >= r.wakeup || prompt && unread > 0
}

func (r *Mapped) close() error {
	var errs []error
	for _, fd := range r.Others {
		errs = append(errs, unix.Close(fd))
	}
	return errors.Join(append(errs, unix.Munmap(r.memory), unix.Close(r.FD))...)
}

// Size returns the size of a ring for the given number of bytes. The number of pages is
// rounded up to a power of two.
func Size(bytes int) int {
	size := os.Getpagesize()
	for size < bytes {
		size *= 2
	}
	return size
}

// Halve halves *size. It returns false if *size is already one page.
func Halve(size *int) bool {
	if *size <= os.Getpagesize() {
		return false
	}
	*size /= 2
	return true
}

// MapError is returned for a ring that could not be mapped.
type MapError struct {
	size int
	err  error
}

// Error names the size and the limits that apply to it.
func (e *MapError) Error() string {
	return fmt.Sprintf("mapping a ring of %d KiB: %v (the limits are kernel.perf_event_mlock_kb per CPU and RLIMIT_MEMLOCK; CAP_IPC_LOCK lifts them)",
		e.size>>10, e.err)
}

// Unwrap returns the kernel's error.
func (e *MapError) Unwrap() error { return e.err }

// tooLarge reports whether mapping a smaller ring might succeed.
func tooLarge(err error) bool {
	_, unmapped := errors.AsType[*MapError](err)
	return unmapped && (errors.Is(err, unix.EPERM) || errors.Is(err, unix.ENOMEM))
}
