// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package monitor

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/hotprofile/hotprofile/internal/cgroup"
	"github.com/hotprofile/hotprofile/internal/procfs"
	"github.com/hotprofile/hotprofile/test/hosttest"
)

// TestHostMonitorsOfAThrottledUnit reads all monitors of a unit that needs two CPUs, but
// has a quota of only a twentieth of one CPU.
func TestHostMonitorsOfAThrottledUnit(t *testing.T) {
	s := openHost(t, 64)
	c := hosttest.NewCgroup(t, "hotprofile-throttled")
	c.SetQuota(t, 0.05)
	c.RaiseWeight(t) // exhausts the quota even on a busy machine
	u := inCgroup(t, s, c, "( "+busy+" ) & "+busy)
	monitors := []string{CPUThrottling, CPUPressure, MemoryUtilization, ThreadCount, CPURequestUtilization, HostCPUUtilization, SystemLoad, CPUHostShare}
	w, err := s.Watch(u, procfs.Process{}, monitors)
	require.NoError(t, err)
	defer w.Close()
	out := make([]Result, len(monitors))
	// On a busy machine, a reading may be late.
	var delay time.Duration
	require.Eventually(t, func() bool {
		now := time.Now()
		w.Read(now, out)
		delay = time.Since(now)
		require.NoError(t, out[0].Err)
		// A throttled shell takes some time to start the second loop.
		return out[0].Reading.Den >= 10 && (out[3].Err != nil || out[3].Reading.Num >= 2)
	}, 30*time.Second, 5*time.Millisecond)
	for i, r := range out {
		t.Logf("%s: %+v, %v, from %s", monitors[i], r.Reading, r.Err, w.From(i))
		var unavailable cgroup.Unavailable
		if errors.As(r.Err, &unavailable) {
			require.Empty(t, w.From(i))
			continue // the unit has no cgroup there, or the kernel has no such file
		}
		require.NoError(t, r.Err, monitors[i])
		require.FileExists(t, w.From(i))
	}
	require.Greater(t, out[0].Reading.Num/out[0].Reading.Den, 0.5, "it is throttled in most periods")
	if out[1].Err == nil {
		require.Positive(t, out[1].Reading.Num)
		require.LessOrEqual(t, out[1].Reading.Num, out[1].Reading.Den+(delay+4*time.Millisecond).Seconds(), "at most all of the time")
	}
	if out[3].Err == nil {
		require.GreaterOrEqual(t, out[3].Reading.Num, 2.0)
	}
	require.NoError(t, out[5].Err)
	require.NoError(t, out[6].Err)
	require.NoError(t, out[7].Err)

	started, err := s.StartedAt(u)
	require.NoError(t, err)
	require.WithinDuration(t, time.Now(), started, time.Minute)
	require.False(t, started.After(time.Now().Add(20*time.Millisecond)))
}

// TestHostThrottlingAboveCountsByUse sets a quota on a cgroup with two units. One of the
// units uses no CPU time of the quota, like the sandbox of a throttled pod.
func TestHostThrottlingAboveCountsByUse(t *testing.T) {
	s := openHost(t, 64)
	pod := hosttest.NewCgroup(t, "hotprofile-pod")
	pod.SetQuota(t, 0.1)
	pod.RaiseWeight(t)
	below := func(name string) *hosttest.Cgroup {
		return hosttest.NewCgroupCalled(t, strings.TrimPrefix(pod.Path, "/")+"/"+name)
	}
	var watchers [2]*Watcher
	for i, u := range []cgroup.Group{inCgroup(t, s, below("busy"), busy), inCgroup(t, s, below("idle"), "sleep 600")} {
		w, err := s.Watch(u, procfs.Process{}, []string{CPUThrottling})
		require.NoError(t, err)
		defer w.Close()
		watchers[i] = w
	}
	var out [2][1]Result
	require.Eventually(t, func() bool {
		for i, w := range watchers {
			w.Read(time.Now(), out[i][:])
			require.NoError(t, out[i][0].Err)
		}
		return out[0][0].Reading.Den >= 20 && out[1][0].Reading.Den >= 20
	}, 60*time.Second, 500*time.Millisecond)
	require.Greater(t, out[0][0].Reading.Num/out[0][0].Reading.Den, 0.5)
	require.Less(t, out[1][0].Reading.Num/out[1][0].Reading.Den, 0.05)
}

func TestHostBusiestThread(t *testing.T) {
	s := openHost(t, 64)
	s.busyFrom = 0.01 // low enough for a busy machine
	c := hosttest.NewCgroup(t, "hotprofile-busiest")
	u := inCgroup(t, s, c, "( "+busy+" ) & "+busy)
	w, err := s.Watch(u, procfs.Process{}, []string{CPUBusiestThread, CPUUsage})
	require.NoError(t, err)
	defer w.Close()
	var out [2]Result
	deadline := time.Now().Add(30 * time.Second)
	for out[0].Err != nil || out[0].Reading.Den < 1 {
		require.True(t, time.Now().Before(deadline))
		<-time.After(100 * time.Millisecond)
		w.Read(time.Now(), out[:])
		var gap Gap
		if out[0].Err != nil && !errors.As(out[0].Err, &gap) {
			require.NoError(t, out[0].Err)
		}
	}
	share, usage := out[0].Reading.Num/out[0].Reading.Den, out[1].Reading.Num/out[1].Reading.Den
	t.Logf("busiest %.2f, usage %.2f", share, usage)
	require.LessOrEqual(t, share, 1.0)
	require.Greater(t, share, usage/4, "the busier of two loops")
}

// TestHostAllMonitorsOfAProcess reads the monitors of this process.
func TestHostAllMonitorsOfAProcess(t *testing.T) {
	s := openHost(t, 64)
	monitors := []string{CPUThrottling, MemoryUtilization, ThreadCount, CPURequestUtilization, HostCPUUtilization, SystemLoad, CPUHostShare, CPUUsage}
	w, err := s.Watch(cgroup.Group{}, processNow(t, os.Getpid()), monitors)
	require.NoError(t, err)
	defer w.Close()
	out := make([]Result, len(monitors))
	w.Read(time.Now(), out)
	for i, r := range out {
		t.Logf("%s: %+v, %v, from %s", monitors[i], r.Reading, r.Err, w.From(i))
		var unavailable cgroup.Unavailable
		if !errors.As(r.Err, &unavailable) {
			require.NoError(t, r.Err, monitors[i])
		}
	}
	require.NoError(t, out[1].Err)
	require.Positive(t, out[1].Reading.Num)
	require.Less(t, out[1].Reading.Num, 100.0)
	require.GreaterOrEqual(t, out[2].Reading.Num, 2.0, "a Go program has several threads")
}

func TestAllMonitorsDoNotAllocate(t *testing.T) {
	s := openHost(t, 64)
	c := hosttest.NewCgroup(t, "hotprofile-allocs-all")
	c.SetQuota(t, 0.5)
	monitors := []string{CPUThrottling, CPUPressure, MemoryUtilization, HostCPUUtilization, SystemLoad, CPUHostShare, CPUUsage, CPUUtilization, CPURequestUtilization, MemoryPressure, IOPressure, MemoryEvents, MemoryEventsOf([]string{"max", "oom_kill"})}
	w, err := s.Watch(inCgroup(t, s, c, "sleep 60"), procfs.Process{}, monitors)
	require.NoError(t, err)
	defer w.Close()
	out := make([]Result, len(monitors))
	now := time.Now()
	read := func() {
		now = now.Add(time.Second)
		w.Read(now, out)
	}
	read()
	for i := len(out) - 1; i >= 0; i-- { // unavailable monitors return errors, which may allocate
		if out[i].Err != nil {
			monitors = append(monitors[:i], monitors[i+1:]...)
		}
	}
	w.Close()
	if w, err = s.Watch(w.unit, procfs.Process{}, monitors); err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	out = out[:len(monitors)]
	read()
	t.Log(monitors)
	require.Zero(t, testing.AllocsPerRun(recheckEvery/2, read))
}

func TestHostRecreatedCgroupHasItsNewQuota(t *testing.T) {
	for name, keep := range map[string]int{"kept open": 64, "opened each time": 0} {
		t.Run(name, func(t *testing.T) {
			s := openHost(t, keep)
			const called = "hotprofile-made-anew.service"
			c := hosttest.NewCgroupCalled(t, called)
			c.SetQuota(t, 0.5)
			u, ok := s.tree.GroupAt(c.Path)
			require.True(t, ok)
			w, err := s.Watch(u, procfs.Process{}, []string{CPUUtilization, CPUThrottling})
			require.NoError(t, err)
			defer w.Close()
			var out [2]Result
			w.Read(time.Now(), out[:])
			require.NoError(t, out[0].Err)
			require.Equal(t, 0.5, w.Capacity().Cores)
			c.Remove(t)
			c = hosttest.NewCgroupCalled(t, called)
			c.SetQuota(t, 1)
			w.Read(time.Now().Add(time.Second), out[:])
			require.NoError(t, out[0].Err)
			require.True(t, out[0].Restarted)
			require.Equal(t, 1.0, w.Capacity().Cores)
			c.SetQuota(t, 1.25)
			w.Read(time.Now().Add(2*time.Second), out[:])
			require.False(t, out[0].Restarted)
			require.Equal(t, 1.25, w.Capacity().Cores, "a limit changed later counts from the next reading")
		})
	}
}

// TestHostMemoryOfAUnitAtItsLimit reads a unit whose files do not fit into its memory
// limit. The kernel therefore reclaims pages of the files. Later, the test starts a
// program that does not fit into the limit either.
func TestHostMemoryOfAUnitAtItsLimit(t *testing.T) {
	const limit = 16 << 20
	s := openHost(t, 64)
	c := hosttest.NewCgroup(t, "hotprofile-out-of-memory")
	c.LimitMemory(t, limit)
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "file"), make([]byte, 3*limit), 0o600))
	u := inCgroup(t, s, c, "cd "+dir+" && cat file >copy; until [ -e enough ]; do cat copy >/dev/null; done; "+
		// tail keeps its input in memory while the input has no line break.
		"until [ -e done ]; do head -c 64M /dev/zero | tail >kept; done; sleep 60")
	monitors := []string{MemoryEventsOf([]string{cgroup.MemoryMax}), MemoryEvents, MemoryPressure, IOPressure}
	w, err := s.Watch(u, procfs.Process{}, monitors)
	require.NoError(t, err)
	defer w.Close()
	out := make([]Result, len(monitors))
	w.Read(time.Now(), out)
	for i, r := range out {
		t.Logf("%s: %v, from %s", monitors[i], r.Err, w.From(i))
	}
	require.NoError(t, out[0].Err)
	require.NoError(t, out[1].Err)
	waits := func(i int) bool {
		var unavailable cgroup.Unavailable
		return errors.As(out[i].Err, &unavailable) || out[i].Reading.Num > 0
	}
	var disk unix.Statfs_t
	require.NoError(t, unix.Statfs(dir, &disk))
	until(t, w, out, func() bool {
		require.NoError(t, out[0].Err)
		return out[0].Reading.Num >= 10 && waits(2) && (waits(3) || disk.Type == unix.TMPFS_MAGIC)
	})
	t.Logf("while files are read: %+v", out)
	before := out[1].Reading.Num // 0, unless the disk is slow to store the pages of copy
	require.NoError(t, os.WriteFile(filepath.Join(dir, "enough"), nil, 0o600))
	until(t, w, out, func() bool {
		require.NoError(t, out[1].Err)
		return out[1].Reading.Num > before
	})
	require.NoError(t, os.WriteFile(filepath.Join(dir, "done"), nil, 0o600))
	t.Logf("while a program is killed: %+v", out)
}
