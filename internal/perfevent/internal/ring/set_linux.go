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

// Set contains the rings of several CPUs. The sessions of records, context
// switches and uprobes share this type.
type Set struct {
	// Reading is held while a goroutine waits or reads, so that Close does not unmap rings
	// that are in use.
	Reading sync.Mutex
	// Unfinished reports whether there are records to read without waiting. This
	// is the case if a round is in progress or has left records for the next
	// round. Reading guards Unfinished.
	Unfinished bool

	what   string // names the events that are waited for, for errors
	cpus   []int
	rings  []*Mapped
	waker  *waker
	closed atomic.Bool

	// checking is held while Stale runs. Stale does not hold Reading, because
	// it must not block during Wait.
	checking sync.Mutex
}

// Open calls openCPU for each CPU. openCPU maps the CPU's rings and passes them to Add.
// If the rings exceed the user's limit of locked memory, Open unmaps all rings, calls
// shrink and starts again, until shrink returns false. All CPUs get rings of the same
// size, because rings of different sizes would lose samples on most CPUs. CPUs that are
// offline are omitted. Errors use the string in what as the name of the records.
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
		r.ended() // initializes the ring's clock
	}
	return nil
}

func (s *Set) openAll(cpus []int, openCPU func(cpu int) error) error {
	s.cpus = nil
	for _, cpu := range cpus {
		before := len(s.rings)
		err := openCPU(cpu)
		if errors.Is(err, unix.ENODEV) { // the CPU went offline, maybe after its first event was opened
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

// Add adds a ring. It must only be called during Open.
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

// CPUs returns the CPUs that have open rings. During Open it returns the CPUs whose rings
// are complete. CPUs that came online later are missing.
func (w Waiter) CPUs() []int { return w.set.cpus }

// Stale reports whether the rings no longer cover cpus, the CPUs that are online now. It
// returns true if cpus differs from CPUs, or if a CPU was offline in between. When a CPU
// goes offline, its events end silently and do not resume, unlike events of a thread. Close
// a stale session and open a new one.
func (w Waiter) Stale(cpus []int) bool {
	s := w.set
	s.checking.Lock()
	defer s.checking.Unlock()
	if s.closed.Load() {
		return false
	}
	stale := !slices.Equal(cpus, s.cpus)
	for _, r := range s.rings {
		stale = r.ended() || stale // ended must run for each ring
	}
	return stale
}

// LossPending reports whether the kernel may still report records that it lost before the
// last round. Only the goroutine that reads may call LossPending.
func (w Waiter) LossPending() (pending bool) {
	for _, r := range w.set.rings {
		pending = r.LossPending() || pending
	}
	return pending
}

// Wait blocks until a ring has enough bytes to wake its reader, Wake is called, or timeout
// has passed. A negative timeout means no timeout. While records arrive continuously, Wait
// returns every few milliseconds. After Close, Wait returns os.ErrClosed.
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

// SetPrompt sets whether Wait returns as soon as a ring has any unread record.
func (s *Set) SetPrompt(prompt bool) {
	s.Reading.Lock()
	defer s.Reading.Unlock()
	s.waker.prompt = prompt
}

// Wake makes the current Wait return. If there is no current Wait,
// it makes the next Wait return.
func (w Waiter) Wake() { w.set.waker.wake() }

// Closed reports whether Close was called.
func (s *Set) Closed() bool { return s.closed.Load() }

// Close ends a current Wait, calls detach to close the events that write to the rings, and
// unmaps the rings. A second call has no effect.
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

// unmap unmaps the rings from index first onward.
func (s *Set) unmap(first int) error {
	var errs []error
	for _, r := range s.rings[first:] {
		errs = append(errs, r.close())
	}
	clear(s.rings[first:])
	s.rings = s.rings[:first]
	return errors.Join(errs...)
}

// wakeSpacing is the minimum time between two returns of Wait that found data. It limits
// the reader to 250 rounds a second, even if a host starts thousands of processes a second.
// It is short enough that a process that lives for only 20 ms is seen while it runs.
const wakeSpacing = 4 * time.Millisecond

// promptSpacing is the minimum time between two returns of Wait if samples must be read at
// once.
const promptSpacing = 200 * time.Microsecond

// waker waits until a ring is ready or wake is called.
//
// waker never blocks in a system call. While a system call blocks, the runtime's monitor
// thread wakes up every few dozen microseconds. These wakeups were most of the cost of a
// reader with few records. waker therefore puts the rings into an inner epoll inside an
// outer epoll, and the runtime's poller waits for the outer epoll as for a connection.
//
// After a ring was ready, the outer epoll ignores the inner epoll until the next wait.
// Otherwise each further record of a new process would wake a thread needlessly. After a
// timeout, the outer epoll stays armed, so that the next wait needs no epoll_ctl call on a
// host with few records.
type waker struct {
	outer *os.File
	conn  syscall.RawConn // the RawConn of outer
	inner int
	rings []*Mapped
	last  time.Time // when wait last found data
	// prompt reports whether a ring is ready as soon as it has any unread record.
	prompt bool
	ended  []unix.EpollEvent
	// timer is used by pause.
	timer *time.Timer
	// woken holds a wake until a wait consumes it.
	woken chan struct{}

	// attemptFunc is the method value w.attempt. It is stored because creating it for each
	// wait would allocate memory.
	attemptFunc func(uintptr) bool
	// armed reports whether the outer epoll watches the inner epoll. blocked reports
	// whether the current wait has blocked. failed is the error of attempt or arm.
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
	err = unix.SetNonblock(outer, true) // else os.NewFile would not add it to the poller
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
	return w.outer.SetReadDeadline(time.Time{}) // fails if the poller does not watch the file
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
	_ = w.outer.SetReadDeadline(time.Unix(1, 0)) // ends a current wait; fails only after close
}

// wait returns when a ring is ready, wake is called or timeout has passed. If unfinished
// is true, wait does not block for a ring, because there are already unread records.
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

// block blocks until a ring is ready, wake is called, or timeout has passed. found reports
// whether a ring was ready.
func (w *waker) block(timeout time.Duration) (found bool, err error) {
	var deadline time.Time
	if timeout >= 0 {
		deadline = time.Now().Add(timeout)
	}
	if err := w.outer.SetReadDeadline(deadline); err != nil {
		return false, err
	}
	select { // after SetReadDeadline: a later wake replaces the deadline
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

// attempt is the callback of RawConn.Read, which runs before and after blocking.
func (w *waker) attempt(outer uintptr) (done bool) {
	ready := w.anyReady()
	switch {
	case w.blocked:
		// Do not query the epolls again, because polling a perf event clears its
		// readiness.
		w.arm(outer, false)
		if !ready {
			w.removeEnded()
		}
		return true
	case !ready && !w.armed:
		w.arm(outer, true)
		ready = w.failed != nil || w.anyReady() // epoll does not report earlier readiness
	}
	if ready {
		w.arm(outer, false)
		return true
	}
	w.blocked = true
	return false
}

func (w *waker) anyReady() bool {
	return slices.ContainsFunc(w.rings, func(r *Mapped) bool { return r.ready(w.prompt) })
}

// arm sets whether the outer epoll reports that a ring is ready. If armed is false, the
// outer epoll ignores the rings until the next wait.
func (w *waker) arm(outer uintptr, armed bool) {
	if armed == w.armed {
		return
	}
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

// removeEnded removes ended events. The inner epoll would report them forever.
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
