// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package perfevent

import (
	"errors"
	"fmt"
	"os"
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
	poll        []unix.PollFd

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
	w := &waker{epoll: epoll, stop: stop, ready: make([]unix.EpollEvent, 16)}
	w.poll = []unix.PollFd{{Fd: int32(stop), Events: unix.POLLIN}}
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

// Wait blocks until there is something worth reading, Wake is called or timeout
// has passed (negative: never). Samples alone do not end it before a ring is a
// quarter full, so timeout is the most that a sample is old when it is read.
// After Close it returns os.ErrClosed.
func (s *Session) Wait(timeout time.Duration) error {
	s.reading.Lock()
	defer s.reading.Unlock()
	if s.closed.Load() {
		return fmt.Errorf("waiting for perf events: %w", os.ErrClosed)
	}
	if err := s.waker.wait(timeout, s.merger.pending || s.round); err != nil {
		return fmt.Errorf("waiting for perf events: %w", err)
	}
	return nil
}

// Wake makes the Wait under way, or else the next one, return.
func (s *Session) Wake() {
	s.waker.wake()
}

func (w *waker) wake() {
	w.waking.Lock()
	defer w.waking.Unlock()
	if w.closed {
		return
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
		stopped, err := w.pause(spacing)
		if stopped || err != nil {
			return err
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
			// A CPU went offline: the kernel would report it for ever.
			_ = unix.EpollCtl(w.epoll, unix.EPOLL_CTL_DEL, int(e.Fd), nil)
		}
	}
	w.last = time.Now()
	return nil
}

// pause lets d pass, unless it is stopped.
func (w *waker) pause(d time.Duration) (stopped bool, err error) {
	n, err := unix.Poll(w.poll, milliseconds(d))
	if err != nil && err != unix.EINTR {
		return false, err
	}
	if n > 0 {
		w.drain()
	}
	return n > 0, nil
}

func (w *waker) drain() {
	var b [8]byte
	_, _ = unix.Read(w.stop, b[:])
}

// milliseconds rounds up, so that a wait never spins.
func milliseconds(d time.Duration) int {
	if d < 0 {
		return -1
	}
	return int(min((d+time.Millisecond-1)/time.Millisecond, 1<<30))
}
