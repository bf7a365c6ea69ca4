// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package monitor

import (
	"math"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/hotprofile/hotprofile/internal/cgroup"
	"github.com/hotprofile/hotprofile/internal/monitor/bottleneck"
	"github.com/hotprofile/hotprofile/internal/perfevent"
	"github.com/hotprofile/hotprofile/internal/procfs"
	"github.com/hotprofile/hotprofile/test/hosttest"
)

// followBusyHost makes a source follow switches even if other tests switch often.
func followBusyHost(s *Source) {
	s.switches = bottleneck.New(s.tree, s.procfs, bottleneck.Options{Least: s.options.Least[CPUBottleneck], MaxSwitches: 10_000_000})
}

// TestKernelHostBottleneckThroughAWatcher reads cpu_bottleneck in the
// same way as a collector.
func TestKernelHostBottleneckThroughAWatcher(t *testing.T) {
	if err := perfevent.Probe().HostWide; err != nil {
		hosttest.SkipUnprivileged(t, "%v", err)
	}
	tree, err := cgroup.Open("/")
	require.NoError(t, err)
	s, err := NewSource(tree, Options{MaxOpenFiles: 64, Least: map[string]float64{CPUBottleneck: 5}})
	require.NoError(t, err)
	defer s.Close()
	followBusyHost(s)
	c := hosttest.NewCgroup(t, "hotprofile-bottleneck")
	c.RaiseWeight(t)
	u, pid := inCgroupWithPID(t, s, c, busy)
	monitors := []string{CPUBottleneck, CPUUsage, CPUUtilization}
	unit, err := s.Watch(u, procfs.Process{}, monitors)
	require.NoError(t, err)
	defer unit.Close()
	process, err := s.Watch(cgroup.Group{}, processNow(t, pid), monitors)
	require.NoError(t, err)
	defer process.Close()

	for name, w := range map[string]*Watcher{"unit": unit, "process": process} {
		var out [3]Result
		w.Read(time.Now(), out[:])
		require.NoError(t, out[0].Err, "the first reading is a starting point")
		apart := 0.0
		for range 3 { // on a busy machine, there is more time between the readings of the two monitors
			bottleneck, cores := watchedFor(t, w)
			t.Logf("%s: bottleneck %.1f %%, usage %.3f", name, 100*bottleneck, cores)
			if apart = math.Abs(bottleneck - cores); apart <= 0.2 {
				break
			}
		}
		require.LessOrEqual(t, apart, 0.2, "one thread: as long as it has CPU time")
		require.NotEmpty(t, w.From(0))
	}
	require.NotZero(t, s.switches.Stats().Through)
}

// TestHostSwitchesAreFollowedWhileNeeded adds cpu_bottleneck to the monitors of
// a busy unit, and removes it again. Context switches must be recorded only
// while the unit has the monitor.
func TestHostSwitchesAreFollowedWhileNeeded(t *testing.T) {
	if err := perfevent.Probe().HostWide; err != nil {
		hosttest.SkipUnprivileged(t, "%v", err)
	}
	tree, err := cgroup.Open("/")
	require.NoError(t, err)
	s, err := NewSource(tree, Options{MaxOpenFiles: 64, Least: map[string]float64{CPUUsage: 1}})
	require.NoError(t, err)
	defer s.Close()
	u := inCgroup(t, s, hosttest.NewCgroup(t, "hotprofile-following"), busy)
	w, err := s.Watch(u, procfs.Process{}, []string{CPUUsage})
	require.NoError(t, err)
	defer w.Close()
	var out [2]Result
	w.Read(time.Now(), out[:])
	require.Nil(t, s.switches)
	followBusyHost(s)
	for range 2 {
		s.SetLeast(map[string]float64{CPUBottleneck: 0.1})
		require.NoError(t, w.SetMonitors([]string{CPUUsage, CPUBottleneck}))
		until(t, w, out[:], func() bool { return perfEvents(t) > 0 })
		require.NoError(t, w.SetMonitors([]string{CPUUsage}))
		until(t, w, out[:], func() bool { return perfEvents(t) == 0 })
	}
}

// perfEvents returns the number of perf events that this process has open.
func perfEvents(t *testing.T) (n int) {
	files, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	for _, f := range files {
		if to, err := os.Readlink("/proc/self/fd/" + f.Name()); err == nil && to == "anon_inode:[perf_event]" {
			n++
		}
	}
	return n
}

// watchedFor reads the monitors until one second has passed without a gap. It returns the
// bottleneck and the used cores in this second.
func watchedFor(t *testing.T, w *Watcher) (bottleneck, cores float64) {
	t.Helper()
	var first, out [3]Result
	end := time.Now().Add(time.Minute)
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for begun := false; ; <-tick.C {
		require.True(t, time.Now().Before(end), "no second without a gap")
		w.Read(time.Now(), out[:])
		switch {
		case out[0].Err != nil:
			require.ErrorAs(t, out[0].Err, new(Gap))
			begun = false
		case !begun:
			first, begun = out, true
		case out[0].Reading.Den-first[0].Reading.Den > 1:
			span := func(i int) float64 {
				return (out[i].Reading.Num - first[i].Reading.Num) / (out[i].Reading.Den - first[i].Reading.Den)
			}
			return span(0), span(1)
		}
	}
}
