// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package offcpu

import (
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/hotprofile/hotprofile/internal/samples"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/mappedfile"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/processes"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/stuckread"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/symbolizer"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/unwind"
)

func tables(t testing.TB) *unwind.Cache {
	t.Helper()
	c := unwind.NewCache(unwind.Config{
		Open: func(c *stuckread.Call, m *samples.Mapping) (*os.File, mappedfile.ID, error) {
			return mappedfile.Open(c, "/", m)
		},
		VDSO: mappedfile.VDSO,
	})
	t.Cleanup(c.Close)
	return c
}

// TestKernelWaitsWithoutFramePointersAreWhole runs a program without frame pointers once for
// each way to block. The stacks must lead through the program's own functions to its entry.
// The emitted time must equal the time that the program reports. If stacks are copied only
// where needed, the need is detected before the program begins.
func TestKernelWaitsWithoutFramePointersAreWhole(t *testing.T) {
	skipWithoutRights(t)
	binary := waiter(t, "-fomit-frame-pointer")
	in := map[string]string{"sleep": "block_briefly", "mutex": "block_in_mutex", "pipe": "block_in_read", "socket": "block_in_read"}
	for how, function := range in {
		for _, c := range []struct {
			name  string
			mode  unwind.Mode
			group bool
		}{
			{"of a process, where needed", unwind.CopiesWhereNeeded, false},
			{"of a process, always", unwind.Copies, false},
			{"of a cgroup, always", unwind.Copies, true},
		} {
			t.Run(how+" "+c.name, func(t *testing.T) {
				var lost uint64
				for range attempts {
					if lost = wholeWaits(t, binary, how, function, c.mode, c.group); lost == 0 {
						return
					}
				}
				require.Zero(t, lost)
			})
		}
	}
}

// wholeWaits checks the waits for one way to block. If records were lost, wholeWaits
// returns the number of lost records instead of checking the waits.
func wholeWaits(t *testing.T, binary, how, function string, mode unwind.Mode, inGroup bool) (without uint64) {
	t.Helper()
	cmd := exec.Command(binary, how, "60", "10")
	finder := new(targets)
	if inGroup {
		g := favoured(t)
		cmd = g.Command(cmd.Path, cmd.Args[1:]...)
		finder.set(group(t, g.Path))
	}
	p := run(t, cmd)
	if !inGroup {
		finder.set(process(p.Process.Pid))
	}
	symbols := symbolizer.New(symbolizer.Config{})
	defer symbols.Close()
	cache := tables(t)
	core, said := observer.New(zap.InfoLevel)
	s, to, logs := start(t, finder, func(cfg *Settings) {
		cfg.MinDuration, cfg.MaxEventsPerSecond = 0, 1e6
		cfg.Table = processes.NewTable(processes.Config{Track: symbols.Track})
		cfg.Stacks = unwind.NewStacks(unwind.StacksConfig{Mode: mode, Bytes: 16384, Tables: cache, Logger: zap.New(core)})
	})
	waitFor(t, "attached", func() bool { return s.Targets() == 1 })
	if mode == unwind.CopiesWhereNeeded {
		waitFor(t, "found to be needed", func() bool { return said.FilterMessageSnippet("stacks are copied").Len() == 1 })
		// The targets are logged each time events are attached. The events are attached
		// again right after the log line above.
		reports := func() int { return logs.FilterMessage("off-CPU targets").Len() }
		before := reports()
		waitFor(t, "attached anew", func() bool { return reports() > before && s.Targets() == 1 })
	}
	learn(t, cache, p.Process.Pid)
	to.close(t, s) // separates the wait for standard input from the windows below
	p.begin(t)
	began, ended := p.number(t), p.number(t)
	want := time.Duration(p.number(t))
	whole, all := 0, 0
	// own is the off-CPU time of the program's main thread. named is the part of this
	// time whose stacks contain the expected functions.
	var named, own time.Duration
	var partial []string
	s.Wake()
	require.NoError(t, p.Wait())
	require.NoError(t, s.Stop(t.Context()))
	to.mu.Lock()
	for _, w := range to.all {
		if w.end < began || w.end >= ended || w.Type.Name != "off_cpu" {
			continue
		}
		all++
		names := resolve(symbols, p.Process.Pid, w.Stack)
		if w.Stack.Whole {
			whole++
		} else if len(partial) < 5 {
			partial = append(partial, strings.Join(names, " "))
		}
		if int(w.Thread.ID) != p.Process.Pid {
			continue
		}
		own += time.Duration(w.value)
		if slices.Contains(names, function) && slices.Contains(names, "main") {
			named += time.Duration(w.value)
		}
	}
	to.mu.Unlock()
	blocked, _ := to.of("off_cpu", p.Process.Pid, began, ended)
	queued, _ := to.of("runqueue", p.Process.Pid, began, ended)
	t.Logf("%d of %d waits are whole, %v of %v in %s; %+.2f%%; %+v", whole, all, named, own, function,
		100*(float64(blocked+queued)/float64(want)-1), s.Stats())
	if lost := s.Stats().Lost + s.Stats().Unreadable; lost > 0 {
		return lost
	}
	require.GreaterOrEqual(t, 100*whole, 95*all, strings.Join(partial, "\n"))
	require.GreaterOrEqual(t, 100*named, 95*own)
	require.InEpsilon(t, want, blocked+queued, 0.02)
	return 0
}

// learn waits until all files that a process has mapped are read.
func learn(t *testing.T, cache *unwind.Cache, pid int) {
	t.Helper()
	p := processes.NewTable(processes.Config{}).Lookup(pid, 0)
	waitFor(t, "tables", func() bool {
		for _, m := range p.Mapped() {
			if _, ready := cache.Lookup(m); !ready {
				return false
			}
		}
		return true
	})
}

func resolve(symbols *symbolizer.Symbolizer, pid int, s *samples.Stack) (names []string) {
	symbols.Begin(nil)
	for _, l := range s.Locations {
		if !l.Resolved {
			symbols.Resolve(pid, l)
		}
		if len(l.Lines) == 0 {
			names = append(names, "?")
		}
		for _, line := range l.Lines {
			names = append(names, line.Function)
		}
	}
	return names
}
