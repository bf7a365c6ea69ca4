// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package ring

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// wakeSpacing is the minimum time between two returns of Wait that found data. A
// host that starts thousands of processes a second then costs at most 250 rounds a
// second, and a process of 20 ms is still seen while it lives.
const wakeSpacing = 4 * time.Millisecond

// waker waits until a ring is ready or wake is called.
//
// It never blocks in a system call: while one blocks, the runtime's monitor thread
// wakes up every few dozen microseconds, which was most of the cost of a reader
// with little to read. So the rings are in an inner epoll, that is in an outer
// one, and the runtime's poller waits for the outer one as it does for a
// connection. While nobody waits, the outer one ignores the inner one: otherwise
// each record of a new process would wake a thread for nothing.
type waker struct {
	outer *os.File
	conn  syscall.RawConn // of outer
	inner int
	rings []*Mapped
	last  time.Time // of the last return of wait that found data
	ready []unix.EpollEvent
	// timer is used by pause.
	timer *time.Timer
	// woken holds a wake until a wait has seen it.
	woken chan struct{}

	// attemptFunc and disarmFunc are the methods attempt and disarm, made once
	// because each would allocate.
	attemptFunc func(uintptr) bool
	disarmFunc  func(uintptr)
	// armed reports whether the outer epoll reports the inner one, failed is the
	// error of attempt or disarm.
	armed  bool
	failed error
}

func newWaker(rings []*Mapped) (*waker, error) {
	w := &waker{
		inner: -1,
		rings: rings,
		ready: make([]unix.EpollEvent, 16),
		timer: time.NewTimer(0),
		woken: make(chan struct{}, 1),
	}
	w.attemptFunc, w.disarmFunc = w.attempt, w.disarm
	if err := w.open(); err != nil {
		return nil, errors.Join(fmt.Errorf("waiting for rings: %w", err), w.close())
	}
	return w, nil
}

func (w *waker) open() error {
	outer, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return err
	}
	err = unix.SetNonblock(outer, true) // or os.NewFile would not add it to the poller
	w.outer = os.NewFile(uintptr(outer), "perf rings")
	if err != nil {
		return err
	}
	if w.inner, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return err
	}
	for _, r := range w.rings {
		if err := add(w.inner, r.FD, unix.EPOLLIN); err != nil {
			return err
		}
	}
	if err := add(outer, w.inner, 0); err != nil {
		return err
	}
	if w.conn, err = w.outer.SyscallConn(); err != nil {
		return err
	}
	return w.outer.SetReadDeadline(time.Time{}) // fails where the poller does not have it
}

func add(epoll, fd int, events uint32) error {
	return unix.EpollCtl(epoll, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: events, Fd: int32(fd)})
}

func (w *waker) close() error {
	var errs []error
	if w.outer != nil {
		errs = append(errs, w.outer.Close())
	}
	if w.inner >= 0 {
		errs = append(errs, unix.Close(w.inner))
	}
	return errors.Join(errs...)
}

func (w *waker) wake() {
	select {
	case w.woken <- struct{}{}:
	default: // woken already
	}
	_ = w.outer.SetReadDeadline(time.Unix(1, 0)) // ends a wait under way; fails only after close
}

// wait returns when a ring is ready, wake was called or timeout has passed. With
// unfinished there is something to read already.
func (w *waker) wait(timeout time.Duration, unfinished bool) error {
	if spacing := wakeSpacing - time.Since(w.last); spacing > 0 {
		if timeout >= 0 {
			spacing = min(spacing, timeout)
			timeout -= spacing
		}
		if w.pause(spacing) {
			return nil
		}
	}
	if !unfinished {
		if err := w.block(timeout); err != nil {
			return err
		}
	}
	w.last = time.Now()
	return nil
}

// block blocks until a ring is ready, wake is called, or timeout has passed.
func (w *waker) block(timeout time.Duration) error {
	var deadline time.Time
	if timeout >= 0 {
		deadline = time.Now().Add(timeout)
	}
	if err := w.outer.SetReadDeadline(deadline); err != nil {
		return err
	}
	select { // after the deadline is set: a later wake replaces it
	case <-w.woken:
		return nil
	default:
	}
	w.armed, w.failed = false, nil
	err := w.conn.Read(w.attemptFunc)
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		return errors.Join(err, w.failed)
	}
	select {
	case <-w.woken:
	default:
	}
	if !w.armed {
		return nil // timeout was 0
	}
	err = w.conn.Control(w.disarmFunc)
	return errors.Join(err, w.failed)
}

// attempt is the callback of RawConn.Read; it runs before and after blocking.
func (w *waker) attempt(outer uintptr) (done bool) {
	if w.armed {
		// A ring is ready. It is not asked again: polling a perf event clears its
		// readiness.
		w.disarm(outer)
		return true
	}
	// Epoll does not report what the rings got while it was disarmed.
	if w.anyReady() {
		return true
	}
	w.armed = true
	if w.failed = w.change(outer, unix.EPOLLIN); w.failed != nil {
		return true
	}
	if w.anyReady() {
		w.disarm(outer)
		return true
	}
	return false
}

func (w *waker) anyReady() bool { return slices.ContainsFunc(w.rings, (*Mapped).ready) }

// disarm makes the outer epoll ignore the rings until the next wait. It removes
// events that have ended, which the kernel would report for ever.
func (w *waker) disarm(outer uintptr) {
	if w.failed = w.change(outer, 0); w.failed != nil {
		return
	}
	n, err := unix.EpollWait(w.inner, w.ready, 0)
	if err != nil && err != unix.EINTR {
		w.failed = err
	}
	for _, e := range w.ready[:max(n, 0)] {
		if e.Events&(unix.EPOLLHUP|unix.EPOLLERR) != 0 {
			_ = unix.EpollCtl(w.inner, unix.EPOLL_CTL_DEL, int(e.Fd), nil)
		}
	}
}

func (w *waker) change(outer uintptr, events uint32) error {
	return unix.EpollCtl(int(outer), unix.EPOLL_CTL_MOD, w.inner, &unix.EpollEvent{Events: events, Fd: int32(w.inner)})
}

// pause returns after d, or earlier with true when wake is called.
func (w *waker) pause(d time.Duration) (woken bool) {
	w.timer.Reset(d)
	select {
	case <-w.woken:
		return true
	case <-w.timer.C:
		return false
	}
}
