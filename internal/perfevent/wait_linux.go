// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package perfevent

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// wakeSpacing is the least time between two returns of Wait that found data: a
// host that starts thousands of processes a second costs the reader no more than
// 250 turns, and a process of 20 ms is still seen while it lives.
const wakeSpacing = 4 * time.Millisecond

// waker waits for any ring, or to be woken. It never blocks in a system call: the
// runtime's monitor thread would look after one every few dozen microseconds,
// which was most of what a reader with little to read cost. So the rings are in
// an epoll, that one is in another, and the runtime's poller waits for the outer
// one as for a connection; while nobody waits the inner one is muted, since each
// record of a new process would wake a thread for nothing.
type waker struct {
	outer *os.File
	conn  syscall.RawConn
	inner int
	rings []*mappedRing
	last  time.Time
	ready []unix.EpollEvent
	// pausing is what a pause waits for.
	pausing *time.Timer
	// woken holds a wake until a wait has seen it.
	woken chan struct{}

	// attempt and ignore are try and mute, made once; waiting says that rings are
	// heard, failed why one of the two could not do its work.
	attempt func(uintptr) bool
	ignore  func(uintptr)
	waiting bool
	failed  error
}

func newWaker(rings []*mappedRing) (*waker, error) {
	w := &waker{
		inner:   -1,
		rings:   rings,
		ready:   make([]unix.EpollEvent, 16),
		pausing: time.NewTimer(0),
		woken:   make(chan struct{}, 1),
	}
	w.attempt, w.ignore = w.try, w.mute
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
	err = unix.SetNonblock(outer, true) // what the runtime goes by
	w.outer = os.NewFile(uintptr(outer), "perf rings")
	if err != nil {
		return err
	}
	if w.inner, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return err
	}
	for _, r := range w.rings {
		if err := add(w.inner, r.fd, unix.EPOLLIN); err != nil {
			return err
		}
	}
	if err := add(outer, w.inner, 0); err != nil {
		return err
	}
	if w.conn, err = w.outer.SyscallConn(); err != nil {
		return err
	}
	return w.outer.SetReadDeadline(time.Time{}) // refused where the runtime does not poll it
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

func (w *waker) wait(timeout time.Duration, pending bool) error {
	if spacing := wakeSpacing - time.Since(w.last); spacing > 0 {
		if timeout >= 0 {
			spacing = min(spacing, timeout)
			timeout -= spacing
		}
		if w.pause(spacing) {
			return nil
		}
	}
	if !pending {
		if err := w.block(timeout); err != nil {
			return err
		}
	}
	w.last = time.Now()
	return nil
}

// block waits until a ring is filled, it is woken, or timeout has passed.
func (w *waker) block(timeout time.Duration) error {
	var deadline time.Time
	if timeout >= 0 {
		deadline = time.Now().Add(timeout)
	}
	if err := w.outer.SetReadDeadline(deadline); err != nil {
		return err
	}
	select { // after the deadline was set, which a wake from here on sets anew
	case <-w.woken:
		return nil
	default:
	}
	w.waiting, w.failed = false, nil
	err := w.conn.Read(w.attempt)
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		return errors.Join(err, w.failed)
	}
	select {
	case <-w.woken:
	default:
	}
	if !w.waiting {
		return nil // timeout was 0
	}
	err = w.conn.Control(w.ignore)
	return errors.Join(err, w.failed)
}

// try is asked whether to go on waiting, before it is waited and after.
func (w *waker) try(outer uintptr) (done bool) {
	if w.waiting {
		// It is believed: asking the kernel of a ring again makes it forget.
		w.mute(outer)
		return true
	}
	// What came before is in the rings alone.
	if w.filled() {
		return true
	}
	w.waiting = true
	if w.failed = w.change(outer, unix.EPOLLIN); w.failed != nil {
		return true
	}
	if w.filled() {
		w.mute(outer)
		return true
	}
	return false
}

func (w *waker) filled() bool { return slices.ContainsFunc(w.rings, (*mappedRing).filled) }

// mute has nothing be heard of rings until it is waited again, and leaves out
// events that have ended: the kernel would report them for ever.
func (w *waker) mute(outer uintptr) {
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

// pause lets d pass, unless it is woken.
func (w *waker) pause(d time.Duration) (woken bool) {
	w.pausing.Reset(d)
	select {
	case <-w.woken:
		return true
	case <-w.pausing.C:
		return false
	}
}
