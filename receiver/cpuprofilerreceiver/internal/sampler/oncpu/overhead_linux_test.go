// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package oncpu

import (
	"math/bits"
	"os/exec"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/hotprofile/hotprofile/internal/perfevent"
	"github.com/hotprofile/hotprofile/internal/procfs"
	"github.com/hotprofile/hotprofile/internal/samples"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/cputime"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/perftargets"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/processes"
)

// costly is a sink that uses a millisecond of CPU time for each sample.
type costly struct {
	discard
	mu sync.Mutex
	// sampled is the CPU time that the samples represent, by sampling period.
	sampled map[time.Duration]time.Duration
	lost    uint64
	// periods contains the period of each capture. outside is the number of samples whose
	// time or period does not match their capture.
	periods map[*samples.Capture]int64
	outside int
}

func (c *costly) AddValue(k samples.Key, at, _ int64) bool {
	span := cputime.Begin()
	for spent := time.Duration(0); spent < time.Millisecond; span = cputime.Begin() {
		for range 1000 {
			_ = bits.Len64(uint64(spent))
		}
		spent += span.End()
	}
	span.End()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sampled[time.Duration(k.Period)] += time.Duration(k.Period)
	if was, seen := c.periods[k.Capture]; at < k.Capture.From || at >= k.Capture.Until() || seen && was != k.Period && k.Capture.From > 0 {
		c.outside++
	}
	c.periods[k.Capture] = k.Period
	return true
}

func (c *costly) KernelLost(_ *samples.Type, n uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lost += n
}

// TestKernelFrequencyFallsUnderALoadAndRecovers samples a program that constantly uses CPU
// time. The samples cost more than the limit allows.
func TestKernelFrequencyFallsUnderALoadAndRecovers(t *testing.T) {
	skipWithoutRights(t)
	cmd := exec.Command("sh", "-c", "while :; do :; done")
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	pid := cmd.Process.Pid
	sink := &costly{sampled: make(map[time.Duration]time.Duration), periods: make(map[*samples.Capture]int64)}
	found := &finding{Finding: perftargets.Finding{
		Wanted: perftargets.Wanted{Processes: []processes.Match{{Process: procfs.Process{PID: pid, Start: 1}, Threads: 1}}},
	}}
	cpus, err := perfevent.OnlineCPUs()
	require.NoError(t, err)
	s, _, logs := newTestSampler(found, func(c *Settings) {
		c.Frequency, c.Sink = 199, sink
		// The limit is a fifth of the cost of all samples, but many times the cost of
		// reading without samples.
		c.MaxOverhead = 0.04 / float64(len(cpus))
		c.CostInterval, c.Meter = 500*time.Millisecond, new(cputime.Meter)
	})
	before := cpuTimeOf(t, pid)
	require.NoError(t, s.Start(t.Context()))
	defer func() { require.NoError(t, s.Stop(t.Context())) }()
	require.Eventually(t, func() bool { return s.Targets() == 1 }, patience, time.Millisecond)
	attached := cpuTimeOf(t, pid)
	require.Eventually(t, func() bool { return s.Stats().Lowered >= 2 }, 3*patience, 10*time.Millisecond)
	low := s.Stats().Frequency
	require.LessOrEqual(t, low, 199.0/2)
	lowered := logs.FilterMessage("sampling frequency lowered: sampling costs more than max_overhead").All()
	require.GreaterOrEqual(t, len(lowered), 2)
	first := lowered[0].ContextMap()
	require.EqualValues(t, 199, first["from"])
	require.EqualValues(t, 99.5, first["to"])
	require.Greater(t, first["cost_percent"], first["max_overhead_percent"])

	require.NoError(t, cmd.Process.Signal(unix.SIGSTOP))
	require.Eventually(t, func() bool { return s.Stats().Frequency == 199 }, 6*patience, 10*time.Millisecond)
	require.Equal(t, s.Stats().Lowered, s.Stats().Raised)
	end := cpuTimeOf(t, pid)
	require.NoError(t, s.Stop(t.Context()))

	sink.mu.Lock()
	defer sink.mu.Unlock()
	require.GreaterOrEqual(t, len(sink.sampled), 2, "more than one period")
	require.GreaterOrEqual(t, len(sink.periods), len(sink.sampled), "each period has its time")
	require.LessOrEqual(t, sink.outside, 1, "but a sample may be read between two")
	total, most := time.Duration(0), time.Duration(0)
	for period, of := range sink.sampled {
		shift := bits.TrailingZeros64(uint64(period / s.reader.full))
		require.Equal(t, s.reader.full<<shift, period, "a period that was really used")
		total += of
		most = max(most, period)
	}
	// Each change of the frequency starts a new period, so up to one period is lost or
	// gained per change. Samples also include interrupts and the steal time of a virtual
	// machine, which do not count as CPU time of the program.
	slack := time.Duration(s.Stats().Lowered+s.Stats().Raised+2)*most + (end-before)/4
	t.Logf("%v sampled of %v, %d changes, %d lost, periods %v", total, end-before, s.Stats().Lowered+s.Stats().Raised, sink.lost, sink.sampled)
	require.LessOrEqual(t, total, end-before+slack, "nothing is counted twice")
	require.GreaterOrEqual(t, total+time.Duration(sink.lost)*most, end-attached-slack)
}

func cpuTimeOf(t *testing.T, pid int) time.Duration {
	t.Helper()
	var ts unix.Timespec
	const clockSched = 2 // CPUCLOCK_SCHED in linux/posix-timers.h
	require.NoError(t, unix.ClockGettime(int32(^pid<<3|clockSched), &ts))
	return time.Duration(ts.Nano())
}
