// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package perfevent

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// wakeSpacing is the least time between two returns of Wait that found data: a
// host that starts thousands of processes a second costs the reader no more than
// 250 turns, and a process of 20 ms is still seen while it lives.
const wakeSpacing = 4 * time.Millisecond

// waker waits for any ring, or to be stopped.
type waker struct {
	epoll, stop int
	last        time.Time
	ready       []unix.EpollEvent
	// pausing is what a pause waits for, woken what ends it early.
	pausing *time.Timer
	woken   chan struct{}

	// waking guards stop against a wake after close, when the number may already
	// be another file's.
	waking sync.Mutex
	closed bool
}

func newWaker(rings []*mappedRing) (*waker, error) {
	epoll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("waiting for rings: %w", err)
	}
	stop, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		unix.Close(epoll)
		return nil, fmt.Errorf("waiting for rings: %w", err)
	}
	w := &waker{
		epoll:   epoll,
		stop:    stop,
		ready:   make([]unix.EpollEvent, 16),
		pausing: time.NewTimer(0),
		woken:   make(chan struct{}, 1),
	}
	fds := []int{stop}
	for _, r := range rings {
		fds = append(fds, r.fd)
	}
	for _, fd := range fds {
		e := unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(fd)}
		if err := unix.EpollCtl(epoll, unix.EPOLL_CTL_ADD, fd, &e); err != nil {
			return nil, errors.Join(fmt.Errorf("waiting for rings: %w", err), w.close())
		}
	}
	return w, nil
}

func (w *waker) close() error {
	w.waking.Lock()
	defer w.waking.Unlock()
	w.closed = true
	return errors.Join(unix.Close(w.epoll), unix.Close(w.stop))
}

func (w *waker) wake() {
	w.waking.Lock()
	defer w.waking.Unlock()
	if w.closed {
		return
	}
	select {
	case w.woken <- struct{}{}:
	default: // woken already
	}
	one := [8]byte{1, 1, 1, 1, 1, 1, 1, 1} // any number but 0, in any byte order
	_, _ = unix.Write(w.stop, one[:])      // fails only when it is woken already
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
	if pending {
		timeout = 0
	}
	n, err := unix.EpollWait(w.epoll, w.ready, milliseconds(timeout))
	if err != nil && err != unix.EINTR {
		return err
	}
	for _, e := range w.ready[:max(n, 0)] {
		switch {
		case int(e.Fd) == w.stop:
			w.drain()
		case e.Events&(unix.EPOLLHUP|unix.EPOLLERR) != 0:
			// The event has ended: the kernel would report it for ever.
			_ = unix.EpollCtl(w.epoll, unix.EPOLL_CTL_DEL, int(e.Fd), nil)
		}
	}
	w.last = time.Now()
	return nil
}

// pause lets d pass, unless it is woken. It is a timer and no system call: one
// that blocks has the runtime's monitor thread look after it every few dozen
// microseconds, which on a host that starts many processes was a third of all
// that the reader cost.
func (w *waker) pause(d time.Duration) (woken bool) {
	w.pausing.Reset(d)
	select {
	case <-w.woken:
		w.drain()
		return true
	case <-w.pausing.C:
		return false
	}
}

// drain forgets that it was woken. What wakes it meanwhile is kept in stop.
func (w *waker) drain() {
	var b [8]byte
	_, _ = unix.Read(w.stop, b[:])
	select {
	case <-w.woken:
	default:
	}
}

// milliseconds rounds up, so that a wait never spins.
func milliseconds(d time.Duration) int {
	if d < 0 {
		return -1
	}
	return int(min((d+time.Millisecond-1)/time.Millisecond, 1<<30))
}
