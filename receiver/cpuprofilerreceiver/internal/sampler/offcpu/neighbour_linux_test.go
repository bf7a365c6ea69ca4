// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package offcpu

import (
	"os"
	"os/exec"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/attach"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/unwind"
)

// besideNeighbour samples a program without frame pointers that sleeps some times,
// for each so long, and a program that switches all the time. It returns what the
// first one's thread was off the CPU by its own clocks, what was emitted of that,
// and the part of it with a stack.
func besideNeighbour(t *testing.T, sleeper, scope string, times int, each time.Duration) (want, all, stacked time.Duration, st Stats) {
	t.Helper()
	neighbour := exec.Command(testBinary(t))
	neighbour.Env = append(os.Environ(), helperVariable+"=allocate")
	sleep := exec.Command(sleeper, "sleep", strconv.Itoa(times), strconv.Itoa(int(each/time.Millisecond)))
	finder := new(targets)
	if scope == "cgroup" {
		g := favoured(t)
		neighbour, sleep = g.Command(neighbour.Path), g.Command(sleep.Path, sleep.Args[1:]...)
		neighbour.Env = append(os.Environ(), helperVariable+"=allocate")
		finder.set(group(t, g.Path))
	}
	noisy, p := run(t, neighbour), run(t, sleep)
	targets := 1
	if scope == "process" {
		both := process(p.Process.Pid)
		other := process(noisy.Process.Pid)
		both.Wanted.Processes = append(both.Wanted.Processes, other.Wanted.Processes...)
		both.Starts[noisy.Process.Pid] = 1
		finder.set(both)
		targets = 2
	}
	cache := tables(t)
	s, to, _ := start(t, finder, func(c *Settings) {
		c.MinDuration = 0
		c.Stacks = unwind.NewStacks(unwind.StacksConfig{Mode: unwind.Copies, Bytes: 16384, Tables: cache, Logger: zap.NewNop()})
	})
	waitFor(t, "attached", func() bool { return s.Stats().Targets == targets })
	learn(t, cache, p.Process.Pid)
	p.begin(t)
	done := make(chan struct{})
	go func() { // windows end in the middle of waits
		for {
			select {
			case <-done:
				return
			case <-time.After(time.Second):
				to.closing.Store(monotonic())
				s.Wake()
			}
		}
	}()
	began, ended := p.number(t), p.number(t)
	close(done)
	want = time.Duration(p.number(t))
	before := s.Stats()
	require.NoError(t, p.Wait())
	s.Stop()
	to.mu.Lock()
	defer to.mu.Unlock()
	for _, w := range to.all {
		if int(w.Thread.ID) != p.Process.Pid || w.end < began || w.end >= ended {
			continue
		}
		all += time.Duration(w.value)
		if w.Stack != nil && len(w.Stack.Locations) > 1 {
			stacked += time.Duration(w.value)
		}
	}
	st = s.Stats()
	seconds := time.Duration(ended - began).Seconds()
	t.Logf("%v of %v, %v with a stack; one of %d; %.0f switches/s; %+v", all, want, stacked, before.Every, float64(st.Switches)/2/seconds, st)
	return want, all, stacked, st
}

func TestTimeBesideANoisyNeighbour(t *testing.T) {
	skipWithoutRights(t)
	sleeper := waiter(t, "-fomit-frame-pointer")
	for _, scope := range []string{"process", "cgroup"} {
		t.Run(scope, func(t *testing.T) {
			want, all, stacked, _ := besideNeighbour(t, sleeper, scope, 60, 50*time.Millisecond)
			require.InEpsilon(t, want, all, 0.02)
			require.Greater(t, float64(stacked), 0.9*float64(want))
		})
	}
}

var _ attach.Finding
