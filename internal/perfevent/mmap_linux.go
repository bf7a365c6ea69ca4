// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package perfevent

import (
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// mappedRing is a ring, its mapping and the event it is mapped from.
type mappedRing struct {
	ring
	fd     int
	memory []byte
	// wakeup is the bytes after which the kernel wakes the reader.
	wakeup uint64
	// with are descriptors of further events that write to it alone.
	with []int
	// counts says that its event is a CPU's and always enabled, clock how long it
	// had been when it was looked at last.
	counts bool
	clock  uint64
}

// ringSpec is how each CPU's ring of a kind is made.
type ringSpec struct {
	size      int // bytes of data, a power of two of pages
	watermark int // bytes after which the reader is woken
	records   bool
}

// mapRing opens the anchor on cpu and maps its ring. pid is pidAll, or a process
// of ours where CPU-wide events are not permitted: what else is redirected into
// the ring must be on the same CPU, but may be any thread's.
func (f features) mapRing(pid, cpu int, spec ringSpec) (*mappedRing, error) {
	r, err := mapRing(f.anchor(spec.watermark, spec.records && pid == pidAll), pid, cpu, spec.size)
	if err != nil {
		return nil, err
	}
	r.records = spec.records
	return r, nil
}

// mapRing opens an event and maps a ring of size bytes from it.
func mapRing(anchor *unix.PerfEventAttr, pid, cpu, size int) (*mappedRing, error) {
	anchor.Read_format = unix.PERF_FORMAT_TOTAL_TIME_ENABLED
	fd, err := openEvent(anchor, pid, cpu, 0)
	if err != nil {
		return nil, err
	}
	page := os.Getpagesize()
	memory, err := unix.Mmap(fd, 0, page+size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		unix.Close(fd)
		return nil, &ringError{size: size, err: err}
	}
	meta := (*unix.PerfEventMmapPage)(unsafe.Pointer(&memory[0]))
	return &mappedRing{
		ring: ring{
			head: &meta.Data_head,
			tail: &meta.Data_tail,
			data: unsafe.Slice((*uint64)(unsafe.Pointer(&memory[page])), size/wordSize),
		},
		fd:     fd,
		memory: memory,
		wakeup: uint64(anchor.Wakeup),
		counts: pid == pidAll && anchor.Bits&unix.PerfBitDisabled == 0,
	}, nil
}

// ended says that no time has gone by for the event that the ring is mapped from
// since this was asked last: its CPU went offline. The kernel tells that in no
// other way: the event stays open, and cannot be enabled again.
func (r *mappedRing) ended() bool {
	if !r.counts {
		return false
	}
	var value [2]uint64 // the count, and the time enabled
	n, err := unix.Read(r.fd, bytesOf(value[:]))
	if err != nil || n != 2*wordSize {
		return false
	}
	was := r.clock
	r.clock = value[1]
	return r.clock == was
}

// filled says that there is as much to read as the kernel wakes the reader for.
func (r *mappedRing) filled() bool {
	return atomic.LoadUint64(r.head)-atomic.LoadUint64(r.tail) >= r.wakeup
}

func (r *mappedRing) close() error {
	var errs []error
	for _, fd := range r.with {
		errs = append(errs, unix.Close(fd))
	}
	return errors.Join(append(errs, unix.Munmap(r.memory), unix.Close(r.fd))...)
}

// ringError is a ring that could not be mapped.
type ringError struct {
	size int
	err  error
}

func (e *ringError) Error() string {
	return fmt.Sprintf("mapping a ring of %d KiB: %v (what rings may lock is kernel.perf_event_mlock_kb per CPU and RLIMIT_MEMLOCK, unless with CAP_IPC_LOCK)",
		e.size>>10, e.err)
}

func (e *ringError) Unwrap() error { return e.err }

// tooLarge reports whether a smaller ring could be mapped.
func tooLarge(err error) bool {
	var ring *ringError
	return errors.As(err, &ring) && (errors.Is(err, unix.EPERM) || errors.Is(err, unix.ENOMEM))
}

// ringSize rounds up to a power of two of pages.
func ringSize(bytes int) int {
	size := os.Getpagesize()
	for size < bytes {
		size *= 2
	}
	return size
}
