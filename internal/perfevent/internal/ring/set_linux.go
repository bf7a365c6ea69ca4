// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package ring

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hotprofile/hotprofile/internal/token"
)

// Set is the rings of a number of CPUs. The sessions of records, context switches and
// uprobes share it.
type Set struct {
	// Reading is held while a goroutine waits or reads, so that Close does not unmap rings
	// in use.
	Reading sync.Mutex
	// Unfinished reports whether there are records to read without waiting, because a round
	// is under way or has left records to the next round. Reading guards it.
	Unfinished bool

	what   string // what is waited for, for errors
	cpus   []int
	rings  []*Mapped
	waker  *waker
	closed atomic.Bool

	// checking is held by Stale, which must not block while Wait does.
	checking sync.Mutex
}

// Open calls openCPU for each CPU, which maps its rings and passes them to Add. If the
// rings exceed what this user may lock, Open unmaps all, calls shrink and begins again,
// until shrink returns false. Rings of different sizes would lose samples on most CPUs.
// CPUs that are offline are left out. what names the records in errors.
func (s *Set) Open(what string, cpus []int, openCPU func(cpu int) error, shrink func() bool) error {
	s.what = what
	for {
		err := s.openAll(cpus, openCPU)
		if err == nil {
			break
		}
		if closing := s.unmap(0); closing != nil || !tooLarge(err) || !shrink() {
			return errors.Join(err, closing)
		}
	}
	w, err := newWaker(s.rings)
	if err != nil {
		return errors.Join(err, s.unmap(0))
	}
	s.waker = w
	for _, r := range s.rings {
		r.ended() // reads its clock for the first time
	}
	return nil
}

func (s *Set) openAll(cpus []int, openCPU func(cpu int) error) error {
	s.cpus = nil
	for _, cpu := range cpus {
		before := len(s.rings)
		err := openCPU(cpu)
		if errors.Is(err, unix.ENODEV) { // it went offline, maybe after the first of its events
			if err := s.unmap(before); err != nil {
				return err
			}
			continue
		}
		if err != nil {
			return err
		}
		s.cpus = append(s.cpus, cpu)
	}
	if len(s.cpus) == 0 {
		return fmt.Errorf("none of the CPUs %v is online", cpus)
	}
	return nil
}

// Add adds a ring. It is called during Open alone.
func (s *Set) Add(r *Mapped) { s.rings = append(s.rings, r) }

// Rings returns the rings in the order of Add.
func (s *Set) Rings() []*Ring {
	rings := make([]*Ring, len(s.rings))
	for i, r := range s.rings {
		rings[i] = &r.Ring
	}
	return rings
}

// Len returns the number of rings.
func (s *Set) Len() int { return len(s.rings) }

// Waiter returns the part of the Set that sessions embed.
func (s *Set) Waiter() Waiter { return Waiter{s} }

// Waiter is the part of a Set that sessions offer to their callers.
type Waiter struct{ set *Set }

// CPUs returns the CPUs that have open rings. During Open it returns the CPUs that are
// complete. A CPU that came online later is missing.
func (w Waiter) CPUs() []int { return w.set.cpus }

// Stale reports whether some of cpus, which are online now, are not covered: cpus differs
// from CPUs, or a CPU was offline in between. Events of a CPU end silently when it goes
// offline and do not resume, unlike events of a thread. Close a stale session and open
// another one.
func (w Waiter) Stale(cpus []int) bool {
	s := w.set
	s.checking.Lock()
	defer s.checking.Unlock()
	if s.closed.Load() {
		return false
	}
	stale := !slices.Equal(cpus, s.cpus)
	for _, r := range s.rings {
		stale = r.ended() || stale // each ring's clock is read, whatever the others say
	}
	return stale
}

// LossPending reports whether the kernel may still report that it lost records before the last
// round. It is for the goroutine that reads.
func (w Waiter) LossPending() (pending bool) {
	for _, r := range w.set.rings {
		pending = r.LossPending() || pending
	}
	return pending
}

// Wait blocks until a ring has enough bytes to wake its reader, Wake is called, or timeout
// has passed. A negative timeout never passes. If records follow each other closely, Wait
// returns every few milliseconds. After Close it returns os.ErrClosed.
func (w Waiter) Wait(timeout time.Duration) error {
	s := w.set
	s.Reading.Lock()
	defer s.Reading.Unlock()
	if s.closed.Load() {
		return fmt.Errorf("waiting for %s: %w", s.what, os.ErrClosed)
	}
	if err := s.waker.wait(timeout, s.Unfinished); err != nil {
		return fmt.Errorf("waiting for %s: %w", s.what, err)
	}
	return nil
}

// SetPrompt makes Wait return as soon as a ring has any unread record.
func (s *Set) SetPrompt(prompt bool) {
	s.Reading.Lock()
	defer s.Reading.Unlock()
	s.waker.prompt = prompt
}

// Wake makes the Wait under way return, or else the next one.
func (w Waiter) Wake() { w.set.waker.wake() }

// Closed reports whether Close was called.
func (s *Set) Closed() bool { return s.closed.Load() }

// Close ends the Wait under way, calls detach to close the events that write to the rings,
// and unmaps the rings. A second Close has no effect.
func (s *Set) Close(detach func() error) error {
	if s.closed.Swap(true) {
		return nil
	}
	s.waker.wake()
	s.Reading.Lock()
	defer s.Reading.Unlock()
	s.checking.Lock()
	defer s.checking.Unlock()
	return errors.Join(detach(), s.waker.close(), s.unmap(0))
}

// unmap unmaps the rings from index first on.
func (s *Set) unmap(first int) error {
	var errs []error
	for _, r := range s.rings[first:] {
		errs = append(errs, r.close())
	}
	clear(s.rings[first:])
	s.rings = s.rings[:first]
	return errors.Join(errs...)
}

// wakeSpacing is the minimum time between two returns of Wait that found data. A
// host that starts thousands of processes a second then costs at most 250 rounds a
// second, and a process of 20 ms is still seen while it lives.
const wakeSpacing = 4 * time.Millisecond

// promptSpacing is the minimum time between two returns of Wait if samples have to be read
// at once.
const promptSpacing = 200 * time.Microsecond

// waker waits until a ring is ready or wake is called.
//
// It never blocks in a system call. While one blocks, the runtime's monitor thread wakes up
// every few dozen microseconds, which was most of the cost of a reader with little to read.
// So the rings are in an inner epoll inside an outer epoll, and the runtime's poller waits
// for the outer one as for a connection. After a ring was ready, the outer epoll ignores
// the inner one until the next wait. Otherwise each further record of a new process would
// wake a thread in vain. After a timeout it does not, so waiting on a host with few records
// takes no system call of this process.
type waker struct {
	outer *os.File
	conn  syscall.RawConn // of outer
	inner int
	rings []*Mapped
	last  time.Time // of the last return of wait that found data
	// prompt reports whether a ring is ready as soon as it has something to read.
	prompt bool
	ended  []unix.EpollEvent
	// timer is used by pause.
	timer *time.Timer
	// woken holds a wake until a wait has seen it.
	woken chan struct{}

	// attemptFunc is the method attempt, made once because each would allocate.
	attemptFunc func(uintptr) bool
	// armed reports whether the outer epoll reports the inner one, blocked whether the
	// wait under way has blocked. failed is the error of attempt or disarm.
	armed, blocked bool
	failed         error
}

func newWaker(rings []*Mapped) (*waker, error) {
	w := &waker{
		inner: -1,
		rings: rings,
		ended: make([]unix.EpollEvent, 16),
		timer: time.NewTimer(0),
		woken: make(chan struct{}, 1),
	}
	w.attemptFunc = w.attempt
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
	token.Put(w.woken)
	_ = w.outer.SetReadDeadline(time.Unix(1, 0)) // ends a wait under way; fails only after close
}

// wait returns when a ring is ready, wake was called or timeout has passed. With unfinished
// it does not block, because there are records to read already.
func (w *waker) wait(timeout time.Duration, unfinished bool) error {
	if !unfinished {
		found, err := w.block(timeout)
		if err != nil || !found {
			return err
		}
	}
	spacing := wakeSpacing
	if w.prompt {
		spacing = promptSpacing
	}
	if spacing -= time.Since(w.last); spacing > 0 {
		if timeout >= 0 {
			spacing = min(spacing, timeout)
		}
		w.pause(spacing)
	}
	w.last = time.Now()
	return nil
}

// block blocks until a ring is ready, wake is called, or timeout has passed. found is
// true in the first case.
func (w *waker) block(timeout time.Duration) (found bool, err error) {
	var deadline time.Time
	if timeout >= 0 {
		deadline = time.Now().Add(timeout)
	}
	if err := w.outer.SetReadDeadline(deadline); err != nil {
		return false, err
	}
	select { // after the deadline is set: a later wake replaces it
	case <-w.woken:
		return false, nil
	default:
	}
	w.blocked, w.failed = false, nil
	err = w.conn.Read(w.attemptFunc)
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		return true, errors.Join(err, w.failed)
	}
	select {
	case <-w.woken:
	default:
	}
	return false, nil
}

// attempt is the callback of RawConn.Read. It runs before and after blocking.
func (w *waker) attempt(outer uintptr) (done bool) {
	ready := w.anyReady()
	switch {
	case w.blocked:
		// The epolls are not asked again: polling a perf event clears its readiness.
		w.disarm(outer)
		if !ready {
			w.removeEnded()
		}
		return true
	case !ready && !w.armed:
		w.arm(outer)
		ready = w.failed != nil || w.anyReady() // epoll does not report what came before
	}
	if ready {
		w.disarm(outer)
		return true
	}
	w.blocked = true
	return false
}

func (w *waker) anyReady() bool {
	return slices.ContainsFunc(w.rings, func(r *Mapped) bool { return r.ready(w.prompt) })
}

// arm makes the outer epoll report when a ring becomes ready.
func (w *waker) arm(outer uintptr) { w.change(outer, true) }

// disarm makes the outer epoll ignore the rings until the next wait.
func (w *waker) disarm(outer uintptr) {
	if w.armed {
		w.change(outer, false)
	}
}

func (w *waker) change(outer uintptr, armed bool) {
	var events uint32
	if armed {
		events = unix.EPOLLIN
	}
	err := unix.EpollCtl(int(outer), unix.EPOLL_CTL_MOD, w.inner, &unix.EpollEvent{Events: events, Fd: int32(w.inner)})
	if err != nil {
		w.failed = errors.Join(w.failed, err)
		return
	}
	w.armed = armed
}

// removeEnded removes events that have ended, which the kernel would report for ever.
func (w *waker) removeEnded() {
	n, err := unix.EpollWait(w.inner, w.ended, 0)
	if err != nil && err != unix.EINTR {
		w.failed = errors.Join(w.failed, err)
	}
	for _, e := range w.ended[:max(n, 0)] {
		if e.Events&(unix.EPOLLHUP|unix.EPOLLERR) != 0 {
			_ = unix.EpollCtl(w.inner, unix.EPOLL_CTL_DEL, int(e.Fd), nil)
		}
	}
}

// pause returns after d, or earlier when wake is called.
func (w *waker) pause(d time.Duration) {
	w.timer.Reset(d)
	select {
	case <-w.woken:
	case <-w.timer.C:
	}
}
