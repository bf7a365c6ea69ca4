// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package offcpu

import (
	"errors"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/hotprofile/hotprofile/internal/perfevent"
)

// watching is a watch of threads of process 1. The test decides when threads
// leave their CPU and come back.
type watching struct {
	*watch
	*waits
	now  int64
	open map[int]bool
	err  error // the error of the next attempts to open events
	// opened is the number of times that the events of a thread were opened. permitted is
	// the maximum number of samples of these events.
	opened, permitted map[int]int
}

func newWatching(most, perSecond int) *watching {
	w := &watching{waits: newWaits(0, 1<<16, func(*part) {}), open: map[int]bool{}, opened: map[int]int{}, permitted: map[int]int{}}
	w.watch = newWatch(most, perSecond, func(_, tid, most int) (attachment, error) {
		if w.err != nil {
			return nil, w.err
		}
		w.open[tid] = true
		w.opened[tid]++
		w.permitted[tid] = most
		return closing{w, tid}, nil
	})
	w.setMean(10, 0)
	return w
}

type closing struct {
	of  *watching
	tid int
}

func (c closing) Detach() error {
	delete(c.of.open, c.tid)
	return nil
}

func (c closing) More(_, n int) error {
	c.of.permitted[c.tid] += n
	return nil
}

// waitEach lets each thread wait for the given time, one thread after another. Then it
// runs a review and returns the threads that are watched.
func (w *watching) waitEach(t *testing.T, length time.Duration, tids ...int) []int {
	t.Helper()
	for _, tid := range tids {
		w.left(1, tid, w.now, false, nil)
		w.now += int64(length)
		w.came(1, tid, w.now, nil)
	}
	return w.look(t)
}

func (w *watching) look(t *testing.T) (open []int) {
	t.Helper()
	w.now += reviewWait
	require.NoError(t, w.review(func() int64 { return w.now }, w.waits))
	require.Equal(t, len(w.open), len(w.attached))
	require.Empty(t, w.missed)
	for tid := range w.open {
		require.Positive(t, w.own[tid])
		open = append(open, tid)
	}
	slices.Sort(open)
	return open
}

func TestThreadsThatSwitchRarelyGetEventsOfTheirOwn(t *testing.T) {
	w := newWatching(100, 1000)
	require.Empty(t, w.waitEach(t, 4*time.Millisecond, 1, 2), "one in 10 of 250 switches a second is enough")
	require.Equal(t, []int{3}, w.waitEach(t, 50*time.Millisecond, 3))
	require.EqualValues(t, 1, w.weightAt(w.threads[3], w.now+1))
	require.EqualValues(t, 10, w.weightAt(w.threads[3], w.now-reviewWait), "before")
	require.EqualValues(t, 10, w.weightAt(w.threads[1], w.now))

	w.left(1, 4, w.now, false, nil) // thread 4 waits for the first time and does not come back
	require.Equal(t, []int{3, 4}, w.look(t))

	for range 20 { // thread 3 becomes more active
		w.waitEach(t, time.Millisecond, 3)
	}
	require.Equal(t, []int{4}, w.look(t))

	w.exited(1, 4)
	require.Empty(t, w.look(t))

	require.Equal(t, []int{5}, w.waitEach(t, time.Second, 5))
	w.forget() // as if records had been lost
	require.Equal(t, []int{5}, w.look(t))
	require.Equal(t, []int{5}, w.waitEach(t, time.Second, 5))
	require.Positive(t, w.threads[5].own)
	w.forget()
	w.now += unknownAfter
	require.Empty(t, w.look(t), "it is gone for long")

	require.Equal(t, []int{6}, w.waitEach(t, time.Second, 6))
	w.started(6) // a new thread has the same ID
	require.Empty(t, w.look(t))

	require.Equal(t, []int{7}, w.waitEach(t, time.Second, 7))
	w.setMean(1, 0)
	require.Empty(t, w.look(t), "all are sampled at each switch")
	w.left(1, 8, w.now, false, nil) // the sample of this switch was lost
	require.Empty(t, w.look(t))
	w.now += int64(time.Second)
	w.came(1, 8, w.now, nil)
	w.setMean(10, 0)
	require.Equal(t, []int{8}, w.waitEach(t, time.Second, 8))
	w.setMean(1, 0)
	w.left(1, 9, w.now, false, nil)
	w.now += int64(time.Second)
	w.came(1, 9, w.now, nil)
	w.setMean(10, 0)
	require.Equal(t, []int{8, 9}, w.look(t), "its sample was lost, and it waits long")
}

// TestSamplesOfAWatchedThreadAreBounded checks that the samples between two reviews are
// limited, even if a thread switches very often.
func TestSamplesOfAWatchedThreadAreBounded(t *testing.T) {
	w := newWatching(100, 1000)
	require.Equal(t, []int{1}, w.waitEach(t, time.Second, 1))
	require.Equal(t, leastOwn, w.permitted[1])
	for range leastOwn / 2 {
		w.watch.sampled(1, 0)
	}
	w.look(t)
	require.Equal(t, leastOwn+leastOwn/2, w.permitted[1])
	w.watch.sampled(1, 0)
	w.look(t)
	require.Equal(t, leastOwn+leastOwn/2, w.permitted[1], "there are enough left")
	require.Equal(t, 1, w.opened[1])

	w.look(t)
	w.waitEach(t, time.Second, 1) // the wait has no stack, because its sample was lost
	require.Equal(t, 2, w.opened[1])
	require.Equal(t, []int{1, 2}, w.waitEach(t, 10*time.Millisecond, 2))
	require.Equal(t, 50, w.permitted[2], "half a second's")
}

func TestLongestWaitsAreWatchedFirst(t *testing.T) {
	w := newWatching(100, 20)
	for tid, length := range map[int]time.Duration{1: 100 * time.Millisecond, 2: 90 * time.Millisecond, 3: 200 * time.Millisecond, 4: time.Second} {
		w.left(1, tid, w.now, false, nil)
		w.now += int64(length)
		w.came(1, tid, w.now, nil)
	}
	require.Equal(t, []int{1, 3, 4}, w.look(t), "10, 5 and 1 stacks a second, and no 11 more")

	w = newWatching(2, 1000)
	require.Equal(t, []int{1, 2}, w.waitEach(t, time.Second, 1, 2))
	w.left(1, 1, w.now, false, nil)
	w.now += int64(time.Second)
	require.Equal(t, []int{1, 2}, w.waitEach(t, time.Second, 3), "no place is left")
	w.now += idleAfter
	require.Equal(t, []int{2, 3}, w.waitEach(t, time.Second, 3), "thread 1 has waited for long")
}

func TestThreadsThatCannotBeWatched(t *testing.T) {
	w := newWatching(100, 1000)
	for _, err := range []error{os.ErrProcessDone, &perfevent.LimitError{}} {
		w.err = err
		require.Empty(t, w.waitEach(t, time.Second, 1, 2))
	}
	w.err = errors.New("refused")
	w.left(1, 1, w.now, false, nil)
	w.now += int64(time.Second)
	require.ErrorIs(t, w.review(func() int64 { return w.now }, w.waits), w.err)
	require.Empty(t, w.attached)
}
