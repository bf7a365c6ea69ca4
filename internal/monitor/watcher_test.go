// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package monitor

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/hotprofile/hotprofile/internal/cgroup"
	"github.com/hotprofile/hotprofile/internal/procfs"
)

func TestKindsAreSortedAndFound(t *testing.T) {
	kinds := Kinds()
	require.NotEmpty(t, kinds)
	for i, k := range kinds {
		require.True(t, i == 0 || kinds[i-1].Name < k.Name)
		got, ok := KindOf(k.Name)
		require.True(t, ok)
		require.Equal(t, k, got)
	}
	_, ok := KindOf("cpu")
	require.False(t, ok)
}

// host simulates a host with 8 CPUs. The v2 tree of the host contains one service.
type host struct {
	t    *testing.T
	root string
	tree *cgroup.Tree
	unit cgroup.Group
}

const service = "/system.slice/checkout.service"

func newHost(t *testing.T) *host {
	h := &host{t: t, root: t.TempDir()}
	h.write("sys/devices/system/cpu/online", "0-7\n")
	h.write("sys/fs/cgroup/cgroup.controllers", "cpu cpuset\n")
	h.write("sys/fs/cgroup/cgroup.procs", "2\n")
	h.write("sys/fs/cgroup/system.slice/cgroup.procs", "")
	h.cgroup("cgroup.procs", "100\n")
	h.cgroup("cpu.stat", "usage_usec 5000000\n")
	h.cgroup("cpu.max", "max 100000\n")
	h.write("proc/100/cgroup", "0::"+service+"\n")
	var err error
	h.tree, err = cgroup.Open(h.root)
	require.NoError(t, err)
	p, err := h.tree.PathsOf(100)
	require.NoError(t, err)
	h.unit = h.tree.GroupOf(p)
	return h
}

func (h *host) write(name, content string) {
	path := filepath.Join(h.root, name)
	require.NoError(h.t, os.MkdirAll(filepath.Dir(path), 0o755))
	require.NoError(h.t, os.WriteFile(path, []byte(content), 0o644))
}

func (h *host) cgroup(file, content string) {
	h.write(filepath.Join("sys/fs/cgroup", service, file), content)
}

func (h *host) watch(monitors ...string) *Watcher { return h.watchKeeping(64, monitors...) }

// watchKeeping returns a Watcher that keeps at most keep files open. An open file of a
// real cgroup cannot be read after the cgroup was removed (ENODEV). The plain files of the
// tests, however, stay readable, so the tests notice a removed file only if keep is 0.
func (h *host) watchKeeping(keep int, monitors ...string) *Watcher {
	s, err := NewSource(h.tree, Options{MaxOpenFiles: keep})
	require.NoError(h.t, err)
	w, err := s.Watch(h.unit, procfs.Process{}, monitors)
	require.NoError(h.t, err)
	h.t.Cleanup(func() {
		w.Close()
		s.Close()
		require.Zero(h.t, s.files.Kept(), "every file is closed")
	})
	return w
}

func value(kind string, from, to Reading) float64 {
	k, _ := KindOf(kind)
	return k.Scale * (to.Num - from.Num) / (to.Den - from.Den)
}

func TestReadings(t *testing.T) {
	h := newHost(t)
	w := h.watch(CPUUtilization, CPUUsage)
	start := time.Now()
	read := func(at time.Duration) [2]Result {
		var out [2]Result
		w.Read(start.Add(at), out[:])
		return out
	}
	first := read(0)
	require.NoError(t, first[0].Err)
	require.False(t, first[0].Restarted)
	require.Equal(t, Reading{Time: start}, first[0].Reading, "the first reading is only a starting point")
	require.Equal(t, Reading{Time: start}, first[1].Reading)

	h.cgroup("cpu.stat", "usage_usec 7000000\n") // 2 s of CPU time in 1 s, with 8 cores
	second := read(time.Second)
	require.InDelta(t, 25, value(CPUUtilization, first[0].Reading, second[0].Reading), 1e-9)
	require.InDelta(t, 2, value(CPUUsage, first[1].Reading, second[1].Reading), 1e-9)
	require.Equal(t, cgroup.Capacity{Cores: 8, By: cgroup.ByOnline}, w.Capacity())

	h.cgroup("cpu.max", "250000 100000\n")
	h.cgroup("cpu.stat", "usage_usec 9000000\n") // 2 s of CPU time in 1 s, with 2.5 cores
	third := read(2 * time.Second)
	require.InDelta(t, 80, value(CPUUtilization, second[0].Reading, third[0].Reading), 1e-9, "the new limit counts from this reading")
	require.InDelta(t, 100*4/10.5, value(CPUUtilization, first[0].Reading, third[0].Reading), 1e-9, "each second counts with its own capacity")

	h.cgroup("cpu.max", "max 100000\n")
	h.cgroup("cpu.stat", "usage_usec 29000000\n") // 20 s of CPU time in a reading that is 9 s late
	fourth := read(12 * time.Second)
	require.InDelta(t, 25, value(CPUUtilization, third[0].Reading, fourth[0].Reading), 1e-9, "a late reading does not distort the value")
}

// TestSetMonitorsKeepsWhatIsRead changes the monitors of a watcher. The remaining
// monitors continue from their last reading, and new monitors start.
func TestSetMonitorsKeepsWhatIsRead(t *testing.T) {
	h := newHost(t)
	h.cgroup("cpu.max", "200000 100000\n")
	w := h.watch(CPUUtilization, CPUUsage)
	start := time.Now()
	read := func(second, monitors int) []Result {
		h.cgroup("cpu.stat", fmt.Sprintf("usage_usec %d\nnr_periods %d\nnr_throttled %d\n", 5_000_000+second*1_000_000, 10*second, 5*second)) // one core
		out := make([]Result, monitors)
		w.Read(start.Add(time.Duration(second)*time.Second), out)
		return out
	}
	read(0, 2)
	before := read(1, 2)
	require.NoError(t, w.SetMonitors([]string{CPUThrottling, CPUUtilization, CPURequestUtilization}))
	after := read(2, 3)
	require.NoError(t, after[0].Err)
	require.False(t, after[1].Restarted)
	require.InDelta(t, 50, value(CPUUtilization, before[0].Reading, after[1].Reading), 1e-9, "as if nothing had happened")

	require.NoError(t, w.SetMonitors([]string{CPUThrottling}))
	alone := read(3, 1)
	require.InDelta(t, 50, value(CPUThrottling, after[0].Reading, alone[0].Reading), 1e-9)

	require.NoError(t, w.SetMonitors([]string{CPUUsage, CPUThrottling}))
	first := read(10, 2)
	require.NoError(t, first[0].Err)
	second := read(11, 2)
	require.InDelta(t, 1, value(CPUUsage, first[0].Reading, second[0].Reading), 1e-9)
	require.InDelta(t, 50, value(CPUThrottling, alone[0].Reading, second[1].Reading), 1e-9)

	require.NoError(t, w.SetMonitors([]string{ThreadCount}))
	require.Nil(t, w.use.counter, "no monitor needs the CPU time")

	require.Error(t, w.SetMonitors([]string{"nothing", CPUUsage}))
}

func TestFailedReadingIsAGap(t *testing.T) {
	h := newHost(t)
	w := h.watch(CPUUtilization, CPUUsage)
	var out [2]Result
	now := time.Now()
	read := func() [2]Result {
		now = now.Add(time.Second)
		w.Read(now, out[:])
		return out
	}
	first := read()

	h.cgroup("cpu.stat", "no figure\n")
	for _, r := range read() {
		require.ErrorContains(t, r.Err, "cpu.stat")
		var reason cgroup.Unavailable
		require.False(t, errors.As(r.Err, &reason), "a file that fails now may be read later")
	}
	h.cgroup("cpu.stat", "usage_usec 6000000\n")
	h.cgroup("cpu.max", "broken\n")
	broken := read()
	require.ErrorContains(t, broken[0].Err, "cpu.max")
	require.NoError(t, broken[1].Err, "the usage needs no capacity")

	h.cgroup("cpu.max", "100000 100000\n")
	after := read()
	require.InDelta(t, 100*1.0/3, value(CPUUtilization, first[0].Reading, after[0].Reading), 1e-9, "one second of CPU in three of one core")
	require.InDelta(t, 1.0/3, value(CPUUsage, first[1].Reading, after[1].Reading), 1e-9)
}

func TestCounterThatRunsBackwardsIsANewStartingPoint(t *testing.T) {
	h := newHost(t)
	w := h.watch(CPUUtilization, CPUUsage)
	var out [2]Result
	now := time.Now()
	read := func(usage string) [2]Result {
		h.cgroup("cpu.stat", "usage_usec "+usage+"\n")
		now = now.Add(time.Second)
		w.Read(now, out[:])
		return out
	}
	read("5000000")
	before := read("6000000")
	restarted := read("100000")
	for i := range restarted {
		require.NoError(t, restarted[i].Err)
		require.True(t, restarted[i].Restarted)
		require.Equal(t, before[i].Reading.Num, restarted[i].Reading.Num, "readings never run backwards")
		require.Equal(t, before[i].Reading.Den, restarted[i].Reading.Den)
	}
	after := read("4100000")
	require.False(t, after[0].Restarted)
	require.InDelta(t, 50, value(CPUUtilization, restarted[0].Reading, after[0].Reading), 1e-9)
}

func TestRemovedUnitIsGone(t *testing.T) {
	h := newHost(t)
	w := h.watchKeeping(0, CPUUsage)
	var out [1]Result
	w.Read(time.Now(), out[:])
	require.NoError(t, out[0].Err)
	require.NoError(t, os.RemoveAll(filepath.Join(h.root, "sys/fs/cgroup", service)))
	w.Read(time.Now(), out[:])
	require.Equal(t, ErrGone, out[0].Err)
	_, err := w.source.Watch(h.unit, procfs.Process{}, []string{CPUUsage})
	require.Equal(t, ErrGone, err)
}

func TestCgroupThatBecomesSharedIsNotRead(t *testing.T) {
	h := newHost(t)
	w := h.watch(CPUUsage)
	var out [1]Result
	now := time.Now()
	read := func() Result {
		now = now.Add(time.Second)
		w.Read(now, out[:])
		return out[0]
	}
	require.NoError(t, read().Err)
	h.cgroup("worker/cgroup.procs", "101\n")
	for range recheckEvery {
		read()
	}
	require.Equal(t, ForeignPIDs, read().Err, "not the sum of both; these processes do not exist")
	require.NoError(t, os.RemoveAll(filepath.Join(h.root, "sys/fs/cgroup", service, "worker")))
	for range recheckEvery {
		read()
	}
	require.NoError(t, read().Err)
}

func TestUnknownMonitorAndProcessUnitAreRefused(t *testing.T) {
	h := newHost(t)
	s, err := NewSource(h.tree, Options{MaxOpenFiles: 8})
	require.NoError(t, err)
	defer s.Close()
	_, err = s.Watch(h.unit, procfs.Process{}, []string{"cpu"})
	require.ErrorContains(t, err, `"cpu"`)
	_, err = s.Watch(cgroup.Group{}, procfs.Process{}, []string{CPUUsage})
	require.Error(t, err)
	h.write("proc/100/stat", "100 (checkout) S 1 100 100 0 -1 4194304 0 0 0 0 0 0 0 0 20 0 7 0 4242 0 0\n")
	w, err := s.Watch(cgroup.Group{}, procfs.Process{PID: 100}, []string{CPUUsage})
	require.NoError(t, err)
	defer w.Close()
	var out [1]Result
	w.Read(time.Now(), out[:])
	require.Equal(t, ForeignPIDs, out[0].Err, "never the clock of a process here with that pid")
}
