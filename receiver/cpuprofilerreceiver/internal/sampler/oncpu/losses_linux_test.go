// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package oncpu

import (
	"os/exec"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/hotprofile/hotprofile/internal/perfevent"
	"github.com/hotprofile/hotprofile/internal/samples"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/perftargets"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/unwind"
	"github.com/hotprofile/hotprofile/test/hosttest"
)

// stuckSink is a sink that blocks its reader until the sink is released. It reports the
// count of lost samples twice: when all records up to the release have been read, and half
// a second later.
type stuckSink struct {
	discard
	stuck, release chan struct{}
	once           sync.Once
	sampled        bool

	mu       sync.Mutex
	released int64 // in nanoseconds of the monotonic clock; 0 before the release
	lost     uint64
	lostThen chan uint64
}

func (s *stuckSink) AddValue(samples.Key, int64, int64) bool {
	s.sampled = true
	return true
}

// Batch blocks the reader, because it is called before the rings are read.
func (s *stuckSink) Batch() uint64 {
	if s.sampled {
		s.once.Do(func() {
			close(s.stuck)
			<-s.release
		})
	}
	return 1
}

func (s *stuckSink) KernelLost(_ *samples.Type, n uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lost += n
}

func (s *stuckSink) ReadUpTo(at int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.released > 0 && at >= s.released {
		select {
		case s.lostThen <- s.lost:
			s.released += int64(time.Second / 2)
		default:
		}
	}
}

// TestKernelLossesAreCountedBeforeTheirWindowEnds checks that a loss is counted in the
// window in which it happened. A window ends at the time up to which all records are read,
// but the kernel reports a loss only with the first sample after the loss.
func TestKernelLossesAreCountedBeforeTheirWindowEnds(t *testing.T) {
	if err := perfevent.Probe().HostWide; err != nil {
		hosttest.SkipUnprivileged(t, "%v", err)
	}
	for range runtime.NumCPU() {
		busy := exec.Command("sh", "-c", "while :; do :; done")
		require.NoError(t, busy.Start())
		t.Cleanup(func() { _ = busy.Process.Kill(); _ = busy.Wait() })
	}
	sink := &stuckSink{stuck: make(chan struct{}), release: make(chan struct{}), lostThen: make(chan uint64, 2)}
	now := func() int64 { return time.Now().UnixNano() - perfevent.ClockOffset() }
	s, _, _ := newTestSampler(&finding{Finding: perftargets.Finding{Wanted: perftargets.Wanted{Host: true}}}, func(c *Settings) {
		c.Sink = sink
		// With stack copies of this size, the rings are full after between one and two
		// seconds of sampling.
		c.Stacks = unwind.NewStacks(unwind.StacksConfig{Mode: unwind.Copies, Bytes: 16384, Tables: tables(t)})
	})
	require.NoError(t, s.Start(t.Context()))
	defer func() { require.NoError(t, s.Stop(t.Context())) }()
	<-sink.stuck
	time.Sleep(3 * time.Second) // the rings become full
	sink.mu.Lock()
	sink.released, sink.lost = now(), 0
	sink.mu.Unlock()
	close(sink.release)
	first, second := <-sink.lostThen, <-sink.lostThen
	require.Positive(t, second)
	require.Equal(t, second, first)
}
