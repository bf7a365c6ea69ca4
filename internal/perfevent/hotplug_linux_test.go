// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package perfevent

import (
	"os"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/hotprofile/hotprofile/internal/hosttest"
	"github.com/hotprofile/hotprofile/internal/procfs"
)

// A CPU that is offline for a moment, shorter than anyone looks at the list of
// those that are online, takes the events on it along for good: that must be
// noticed by what is open, and what is opened next must see the CPU.
func TestCPUThatWasOffline(t *testing.T) {
	cpu := hosttest.HotplugCPU(t)
	online, err := OnlineCPUs()
	require.NoError(t, err)
	wide := open(t, Options{HostWide: true, Period: time.Millisecond})
	own := open(t, Options{Period: time.Millisecond})
	switches := openSwitches(t, SwitchOptions{})
	probes, err := OpenUprobes(UprobeOptions{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, probes.Close()) })
	all := map[string]interface{ Stale([]int) bool }{"host": wide, "own": own, "switches": switches, "probes": probes}

	h := newHelper(t)
	for range 2 {
		h.tell("thread")
	}
	host := attached(t)(wide.AttachHost())
	process := attached(t)(own.AttachProcess(h.pid()))
	for name, rings := range all {
		require.False(t, rings.Stale(online), name)
		require.False(t, rings.Stale(online), name)
	}
	pinned := startPinned(t, cpu.Number)
	on := func(attachment *Attachment, pid, cpu int) func(*Record) bool {
		return func(r *Record) bool {
			return r.Type == TypeSample && r.Attachment == attachment && r.PID == pid && r.CPU == cpu
		}
	}
	readUntil(t, wide, "samples on the CPU", on(host, pinned.pid(), cpu.Number))

	cpu.Offline(t)
	left, err := OnlineCPUs()
	require.NoError(t, err)
	require.NotContains(t, left, cpu.Number)
	for name, rings := range all {
		require.True(t, rings.Stale(left), name)
		require.NotContains(t, opened(t, name), cpu.Number, "opened while it is offline")
	}
	other := left[0]
	drain(t, wide, func(*Record) {})
	readUntil(t, wide, "samples on another CPU", on(host, h.pid(), other))
	readUntil(t, own, "samples of a process on another CPU", on(process, h.pid(), other))
	require.NoError(t, wide.Pause(), "the events of the CPU that is gone are no error")
	require.NoError(t, wide.Resume())
	require.NoError(t, switches.Look())

	cpu.Online(t)
	for name, rings := range all {
		// Events of threads go on with the CPU.
		require.Equal(t, name != "own", rings.Stale(online), name)
		require.Equal(t, online, opened(t, name))
	}
	for _, s := range []*Session{wide, own} {
		require.Zero(t, s.Stats().Corrupt)
		require.NoError(t, s.Wait(0))
	}
	again := open(t, Options{HostWide: true, Period: time.Millisecond})
	require.False(t, again.Stale(online))
	host = attached(t)(again.AttachHost())
	fresh := startPinned(t, cpu.Number) // the first lost its place with the CPU
	readUntil(t, again, "samples on the CPU that is back", on(host, fresh.pid(), cpu.Number))
	require.NoError(t, again.Close())
}

// opened opens one of a kind and returns its CPUs.
func opened(t *testing.T, kind string) []int {
	t.Helper()
	var rings interface {
		CPUs() []int
		Close() error
	}
	var err error
	switch kind {
	case "host", "own":
		rings, err = Open(Options{HostWide: kind == "host"})
	case "switches":
		rings, err = OpenSwitches(SwitchOptions{})
	case "probes":
		rings, err = OpenUprobes(UprobeOptions{})
	}
	require.NoError(t, err)
	cpus := slices.Clone(rings.CPUs())
	require.NoError(t, rings.Close())
	return cpus
}

// startPinned starts a helper that spins on one CPU as long as there is that CPU.
func startPinned(t *testing.T, cpu int) *helper {
	t.Helper()
	h := newHelper(t)
	var set unix.CPUSet
	set.Set(cpu)
	tids, err := procfs.At("").Threads(h.pid())
	require.NoError(t, err)
	for _, tid := range tids {
		require.NoError(t, unix.SchedSetaffinity(tid, &set))
	}
	h.tell("thread")
	return h
}

// A CPU that is not there leaves nothing behind, whichever of its events is the
// first to find that out.
func TestCPUsThatAreOfflineAreLeftOut(t *testing.T) {
	open(t, Options{HostWide: true})
	files := openFiles(t)
	for _, missing := range []string{"first", "second"} {
		c := &cpuRings{what: "a test"}
		anchor := switchAttr(unix.PERF_COUNT_SW_DUMMY, unix.PerfBitExcludeKernel)
		err := c.open([]int{0, 1 << 10}, func(cpu int) error {
			if cpu != 0 && missing == "first" {
				return unix.ENODEV
			}
			r, err := mapRing(anchor, pidAll, 0, os.Getpagesize())
			require.NoError(t, err)
			c.add(r)
			if cpu != 0 {
				return unix.ENODEV
			}
			return nil
		}, nil)
		require.NoError(t, err)
		require.Equal(t, []int{0}, c.CPUs(), missing)
		require.Len(t, c.rings, 1, missing)
		require.False(t, c.Stale([]int{0}), missing)
		require.True(t, c.Stale([]int{0, 1}), missing)
		require.NoError(t, c.close(func() error { return nil }))
		require.False(t, c.Stale([]int{0, 1}), "closed")
		require.Equal(t, files, openFiles(t), missing)
	}
}
