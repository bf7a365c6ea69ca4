// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package offcpu

import (
	"cmp"
	"errors"
	"os"
	"slices"
	"time"

	"github.com/hotprofile/hotprofile/internal/perfevent"
)

// watch attaches extra events to threads that switch rarely. These events sample each
// switch of their thread. If only one of several switches was sampled, such threads would
// get too few stacks, however long they wait. If not all threads can have extra events,
// threads with the longest waits have priority.
type watch struct {
	// attach opens the events of a thread. most bounds the number of their
	// samples on each CPU.
	attach func(pid, tid, most int) (attachment, error)
	// most is the maximum number of threads with extra events. perSecond is the maximum
	// number of stacks per second of all these threads together.
	most, perSecond int

	attached map[int]*watched
	reviewed int64
	rare     []candidate // candidates of the current review
}

// attachment is implemented by *perfevent.Attachment.
type attachment interface {
	Detach() error
	More(cpu, n int) error
}

type watched struct {
	attachment
	seen int64 // when the thread was last known
	// most is the number of samples on each CPU after which the kernel stops sampling.
	// taken counts the samples on each CPU since the last call of More for this CPU.
	// sampled reports whether there were samples since the last review. silent reports
	// whether there were no samples between the last two reviews.
	most            int
	taken           map[int]int
	sampled, silent bool
}

type candidate struct {
	pid, tid int
	length   int64 // average length of the thread's waits
}

const (
	// reviewWait is the minimum time between two reviews.
	reviewWait = int64(100 * time.Millisecond)
	// enough is the number of stacks per second above which a thread needs no extra events.
	enough = 20
	// maxWatched is the maximum number of threads with extra events. maxOpened is the maximum
	// number of threads for which one review opens events, because each thread takes a few
	// system calls per CPU.
	maxWatched = 256
	maxOpened  = 64
	// leastOwn and mostOwn bound the samples of a thread on one CPU between two reviews. A
	// thread with long waits may begin to switch continuously before the next review. The
	// samples of such a thread must leave room in the ring for other threads.
	leastOwn = 16
	mostOwn  = 64
	// idleAfter is the length of a wait after which a thread can lose its events to another
	// thread.
	idleAfter = int64(10 * time.Second)
	// unknownAfter is the maximum time that a thread keeps its events while its state is
	// unknown. The state becomes unknown when records are lost.
	unknownAfter = int64(30 * time.Second)
)

func newWatch(most, perSecond int, attach func(pid, tid, most int) (attachment, error)) *watch {
	return &watch{attach: attach, most: most, perSecond: perSecond, attached: make(map[int]*watched)}
}

// perSecondOf returns the maximum number of switches per second of a thread with waits of
// the given length.
func perSecondOf(length int64) int { return int(int64(time.Second) / max(length, 1)) }

// review releases threads that no longer need extra events. It attaches extra events to
// other threads that left their CPU without a sampled stack. review returns the first
// error, but ignores ended threads and limits on descriptors. After review has attached
// events, it calls now again, because the events sample only from then on.
func (w *watch) review(now func() int64, of *waits) error {
	at := now()
	if at-w.reviewed < reviewWait {
		return nil
	}
	w.reviewed = at
	used := w.release(at, of)
	w.rare = w.rare[:0]
	for _, tid := range of.missed {
		t := of.threads[tid]
		if t == nil || !t.listed {
			continue
		}
		t.listed = false
		if of.mean == 1 {
			continue
		}
		if a := w.attached[tid]; a != nil && a.silent {
			w.detach(tid, of) // the kernel has stopped sampling, and samples were lost
		}
		length := t.length(at)
		if t.state != ended && t.own == 0 && length*of.mean > int64(time.Second)/enough {
			w.rare = append(w.rare, candidate{t.pid, tid, length})
		}
	}
	of.missed = of.missed[:0]
	slices.SortFunc(w.rare, func(a, b candidate) int { return cmp.Compare(b.length, a.length) })
	for i, c := range w.rare {
		if used += perSecondOf(c.length); used > w.perSecond || i >= maxOpened {
			return nil
		}
		if len(w.attached) >= w.most && !w.releaseIdle(at, of) {
			return nil
		}
		most := min(max(perSecondOf(c.length)/2, leastOwn), mostOwn)
		a, err := w.attach(c.pid, c.tid, most)
		var limit *perfevent.LimitError
		switch {
		case err == nil:
			w.attached[c.tid] = &watched{attachment: a, seen: at, most: most, taken: make(map[int]int)}
			of.setOwn(c.tid, now())
		case errors.Is(err, os.ErrProcessDone):
		case errors.As(err, &limit):
			return nil
		default:
			return err
		}
	}
	return nil
}

// length returns the average length of the thread's recent waits, or the length of its
// current wait if that is longer.
func (t *thread) length(at int64) int64 {
	if t.state == waiting {
		return max(t.typical, at-t.began)
	}
	return t.typical
}

// release releases the threads that need no extra events. It returns the maximum number of
// stacks per second of the remaining threads.
func (w *watch) release(at int64, of *waits) (perSecond int) {
	for tid, a := range w.attached {
		t, own := of.threads[tid], of.own[tid]
		switch {
		case own == 0, of.mean == 1: // the thread has ended, or every switch of every thread is sampled
		case t == nil:
			if at-a.seen < unknownAfter {
				continue
			}
		default:
			length := t.length(at)
			a.seen = at
			if 2*length*of.mean > int64(time.Second)/enough {
				a.review()
				perSecond += perSecondOf(length)
				continue
			}
		}
		w.detach(tid, of)
	}
	return perSecond
}

// sampled records a sample of a thread that may have extra events.
func (w *watch) sampled(tid, cpu int) {
	if a := w.attached[tid]; a != nil {
		a.taken[cpu]++
		a.sampled = true
	}
}

// review makes the kernel continue on the CPUs on which the thread has used at least
// half of its allowed samples.
func (a *watched) review() {
	a.silent, a.sampled = !a.sampled, false
	for cpu, n := range a.taken {
		if 2*n >= a.most {
			_ = a.More(cpu, min(n, a.most)) // after an error there are no more samples, and the thread is attached again
			delete(a.taken, cpu)
		}
	}
}

// releaseIdle releases the thread with the longest wait, if this wait is longer than
// idleAfter.
func (w *watch) releaseIdle(at int64, of *waits) bool {
	idlest, since := 0, at-idleAfter
	for tid := range w.attached {
		if t := of.threads[tid]; t != nil && t.state == waiting && t.began < since {
			idlest, since = tid, t.began
		}
	}
	if idlest == 0 {
		return false
	}
	w.detach(idlest, of)
	return true
}

func (w *watch) detach(tid int, of *waits) {
	_ = w.attached[tid].Detach()
	delete(w.attached, tid)
	of.setOwn(tid, 0)
}

// end forgets the threads when a session ends.
func (w *watch) end(of *waits) {
	clear(w.attached)
	clear(of.own)
	w.reviewed = 0
}
