// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package oncpu

import (
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/hotprofile/hotprofile/internal/procfs"
	"github.com/hotprofile/hotprofile/internal/samples"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/mappedfile"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/perftargets"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/processes"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/stuckread"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/unwind"
	"github.com/hotprofile/hotprofile/test/hosttest"
)

// tally is a sink that counts complete and incomplete stacks.
type tally struct {
	discard
	mu                  sync.Mutex
	whole, other, depth int
}

func (s *tally) AddValue(k samples.Key, _, _ int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if k.Stack.Whole {
		s.whole++
		s.depth += len(k.Stack.Locations)
	} else {
		s.other++
	}
	return true
}

func (s *tally) get() (whole, other, depth int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.whole, s.other, s.depth
}

// forget resets the counters.
func (s *tally) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.whole, s.other, s.depth = 0, 0, 0
}

// withoutFramePointers starts a program that has no frame pointers.
func withoutFramePointers(t testing.TB) perftargets.Finding {
	t.Helper()
	gcc := hosttest.Tool(t, "gcc")
	program := filepath.Join(t.TempDir(), "program")
	out, err := exec.Command(gcc, "-O2", "-fomit-frame-pointer", "-o", program, "../../unwind/testdata/calls.c", "-lm", "-lpthread").CombinedOutput()
	require.NoError(t, err, string(out))
	cmd := exec.Command(program)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	pid := cmd.Process.Pid
	return perftargets.Finding{
		Wanted: perftargets.Wanted{Processes: []processes.Match{{Process: procfs.Process{PID: pid, Start: 1}, Threads: 2}}},
	}
}

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

func TestStacksWithoutFramePointersAreWhole(t *testing.T) {
	skipWithoutRights(t)
	for name, mode := range map[string]unwind.Mode{"always": unwind.Copies, "as needed": unwind.CopiesAsNeeded} {
		t.Run(name, func(t *testing.T) {
			sink := new(tally)
			s, _, _ := newTestSampler(&finding{Finding: withoutFramePointers(t)}, func(c *Settings) {
				c.Frequency, c.Sink = 997, sink
				c.Stacks = unwind.NewStacks(unwind.StacksConfig{Mode: mode, Bytes: 16384, Tables: tables(t)})
			})
			require.NoError(t, s.Start(t.Context()))
			defer func() { require.NoError(t, s.Stop(t.Context())) }()
			// The first stacks are incomplete, because the files of the new program must be
			// read first.
			require.Eventually(t, func() bool { whole, _, _ := sink.get(); return whole > 0 }, patience, 10*time.Millisecond)
			var whole, other, depth int
			for range 3 { // reading the files may take longer on a busy machine
				sink.forget()
				require.Eventually(t, func() bool { whole, other, depth = sink.get(); return whole+other >= 1000 }, 3*patience, 10*time.Millisecond)
				if whole*100 >= (whole+other)*95 {
					break
				}
			}
			require.GreaterOrEqual(t, whole*100, (whole+other)*95, "%d of %d", whole, whole+other)
			require.Greater(t, depth, 5*whole)
		})
	}
}

// BenchmarkReading measures the collector's CPU time per sample, from the ring to the
// sink, with and without copied stacks. The sampled program has no frame pointers.
func BenchmarkReading(b *testing.B) {
	for name, mode := range map[string]unwind.Mode{"frame_pointers": unwind.FramePointers, "copies_of_16KiB": unwind.Copies} {
		b.Run(name, func(b *testing.B) {
			sink := new(tally)
			s, _, _ := newTestSampler(&finding{Finding: withoutFramePointers(b)}, func(c *Settings) {
				c.Frequency, c.Sink, c.DiscoveryInterval = 499, sink, time.Hour
				c.Stacks = unwind.NewStacks(unwind.StacksConfig{Mode: mode, Bytes: 16384, Tables: tables(b)})
			})
			require.NoError(b, s.Start(b.Context()))
			defer func() { require.NoError(b, s.Stop(b.Context())) }()
			seen := func() int { whole, other, _ := sink.get(); return whole + other }
			wait := func(n int) {
				for seen() < n {
					time.Sleep(50 * time.Millisecond)
				}
			}
			wait(50) // by then, the program's files are read and its stacks are known
			began, from := cpuTime(b), seen()
			wait(from + b.N)
			b.ReportMetric(float64(cpuTime(b)-began)/float64(seen()-from), "cpu-ns/sample")
		})
	}
}

func cpuTime(b *testing.B) time.Duration {
	var r unix.Rusage
	require.NoError(b, unix.Getrusage(unix.RUSAGE_SELF, &r))
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}

var _ unwind.Process = (*processes.Process)(nil)
