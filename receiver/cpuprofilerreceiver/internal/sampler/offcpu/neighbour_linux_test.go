// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package offcpu

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/unwind"
	"github.com/hotprofile/hotprofile/test/hosttest"
)

// besideNeighbour samples two programs. The first program has no frame pointers
// and sleeps several times, each time for the given duration. The second program
// causes context switches all the time. besideNeighbour returns the off-CPU time
// of the first program's thread, as measured by that program, and the elapsed
// time. It also returns the emitted off-CPU time, the part of this time with a
// stack, and the number of lost records.
func besideNeighbour(t *testing.T, sleeper, scope string, times int, each time.Duration) (want, elapsed, all, stacked time.Duration, lost uint64) {
	t.Helper()
	neighbour := exec.Command(testBinary(t))
	neighbour.Env = append(os.Environ(), helperVariable+"=allocate")
	sleep := exec.Command(sleeper, "sleep", strconv.Itoa(times), strconv.Itoa(int(each/time.Millisecond)))
	finder := new(targets)
	switch scope {
	case "host":
		finder.Wanted.Host = true
	case "cgroup":
		g := hosttest.NewCgroup(t, "hotprofile-offcpu")
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
		finder.set(both)
		targets = 2
	}
	cache := tables(t)
	s, to, _ := start(t, finder, func(c *Settings) {
		c.MinDuration = 0
		if scope == "host" {
			return // stacks are not copied if the whole host is sampled
		}
		c.Stacks = unwind.NewStacks(unwind.StacksConfig{Mode: unwind.Copies, Bytes: 16384, Tables: cache, Logger: zap.NewNop()})
	})
	waitFor(t, "attached", func() bool { return s.Targets() == targets })
	learn(t, cache, p.Process.Pid)
	// From here on, the state of the program is known, because the program waits again. A
	// window ends during this wait. The rest of the wait belongs to the next window.
	_, err := fmt.Fprintln(p.stdin, "wait")
	require.NoError(t, err)
	p.number(t)
	to.close(t, s)
	from := to.closing.Load()
	p.begin(t)
	windows := time.NewTicker(time.Second) // windows end while the program waits
	defer windows.Stop()
	done := make(chan struct{})
	go func() {
		for {
			select {
			case <-done:
				return
			case <-windows.C:
				to.closing.Store(monotonic())
				s.Wake()
			}
		}
	}()
	began, ended := p.number(t), p.number(t)
	close(done)
	want = time.Duration(p.number(t) + began - from)
	before := s.Stats()
	require.NoError(t, p.Wait())
	require.NoError(t, s.Stop(t.Context()))
	require.NoError(t, noisy.stdin.Close())
	require.NoError(t, noisy.Wait())
	to.mu.Lock()
	defer to.mu.Unlock()
	for _, w := range to.all {
		if int(w.Thread.ID) != p.Process.Pid || w.end < from || w.end >= ended {
			continue
		}
		all += time.Duration(w.value)
		if leaf := w.Stack.Locations[0]; len(leaf.Lines) == 0 || leaf.Lines[0].Function != "[no stack]" {
			stacked += time.Duration(w.value)
		}
	}
	st := s.Stats()
	seconds := time.Duration(ended - from).Seconds()
	t.Logf("%v of %v, %v with a stack; one of %d; %d watched; %.0f switches/s; %+v", all, want, stacked, before.Every, before.Watched, float64(st.Switches)/2/seconds, st)
	return want, time.Duration(ended - from), all, stacked, st.Lost
}

// TestTimeBesideANoisyNeighbour also runs on busy machines. If the reader is too late and
// records are lost, the measurement starts again.
func TestTimeBesideANoisyNeighbour(t *testing.T) {
	timesBesideNeighbour(t, []string{"process", "cgroup", "host"}, 1, 100, "somewhere")
}

// TestKernelTimeBesideANoisyNeighbour repeats the measurement many times. The neighbour
// causes most switches on a quiet machine. With the race detector, the reader may be too
// late even on a quiet machine.
func TestKernelTimeBesideANoisyNeighbour(t *testing.T) {
	timesBesideNeighbour(t, []string{"process", "cgroup", "host"}, 20, 40, "quiet")
}

// TestKernelTimeBesideANoisyNeighbourOnABusyMachine runs two busy loops for each CPU.
func TestKernelTimeBesideANoisyNeighbourOnABusyMachine(t *testing.T) {
	for range 2 * runtime.NumCPU() {
		loop := exec.Command("sh", "-c", "while :; do :; done")
		require.NoError(t, loop.Start())
		t.Cleanup(func() {
			_ = loop.Process.Kill()
			_ = loop.Wait()
		})
	}
	timesBesideNeighbour(t, []string{"process", "cgroup"}, 20, 40, "busy")
}

// timesBesideNeighbour checks the emitted off-CPU time of several runs. In each run, the
// emitted time must be at least 98 % of the program's own time. On a quiet machine, it must
// be at most 102 % of the program's own time. On other machines, it must be at most 102 % of
// the elapsed time, because the program also waits for a CPU. At least 90 % of the time of
// all runs must have a stack. On machine "somewhere", stacks are not checked, and a run that
// lost records must only have some off-CPU time.
func timesBesideNeighbour(t *testing.T, scopes []string, runs, times int, machine string) {
	t.Helper()
	skipWithoutRights(t)
	sleeper := waiter(t, "-fomit-frame-pointer")
	tries := attempts
	if machine == "somewhere" {
		tries = 2
	}
	for _, scope := range scopes {
		t.Run(scope, func(t *testing.T) {
			var whole, withStack time.Duration
			for range runs {
				var want, elapsed, all, stacked time.Duration
				lost := uint64(1)
				for try := 0; try < tries && lost > 0 && float64(min(all, stacked)) < 0.98*float64(want)+1; try++ {
					want, elapsed, all, stacked, lost = besideNeighbour(t, sleeper, scope, times, 50*time.Millisecond)
					// On a busy machine, the program also
					// waits for a CPU between its sleeps.
					require.Less(t, float64(all), 1.02*float64(elapsed))
					// Only copies of stacks are lost, so the time must be complete.
					if scope == "cgroup" && machine != "somewhere" {
						require.Greater(t, float64(all), 0.98*float64(want))
					}
				}
				// Each attempt lost records, so some time may be missing.
				if lost > 0 && machine == "somewhere" {
					require.Positive(t, all)
					continue
				}
				require.Greater(t, float64(all), 0.98*float64(want))
				if machine == "quiet" {
					require.Less(t, float64(all), 1.02*float64(want))
				}
				whole, withStack = whole+want, withStack+stacked
			}
			// In a single run, all waits within a second may lack a stack.
			if machine != "somewhere" {
				require.GreaterOrEqual(t, float64(withStack), 0.9*float64(whole))
			}
		})
	}
}
