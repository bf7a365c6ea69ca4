// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package perfevent

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/hotprofile/hotprofile/internal/perfevent/switches"
	"github.com/hotprofile/hotprofile/internal/procfs"
	"github.com/hotprofile/hotprofile/test/hosttest"
	"github.com/hotprofile/hotprofile/test/programtest"
)

// TestCPUThatWasOffline covers a CPU that goes offline for a short time. The events of the
// CPU end permanently. Sessions must detect this, even if the CPU is online again when the
// list of online CPUs is checked next. The next session must use the CPU again.
func TestCPUThatWasOffline(t *testing.T) {
	cpu := hosttest.HotplugCPU(t)
	online, err := OnlineCPUs()
	require.NoError(t, err)
	wide := open(t, Options{HostWide: true, Period: time.Millisecond})
	own := open(t, Options{Period: time.Millisecond})
	contextSwitches, err := switches.Open()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, contextSwitches.Close()) })
	probes := open(t, Options{HostWide: true, Probes: true})
	all := map[string]interface{ Stale([]int) bool }{"host": wide, "own": own, "switches": contextSwitches, "probes": probes}

	h := programtest.Start(t)
	for range 2 {
		h.Order("thread")
	}
	host := attached(t)(wide.AttachHost())
	process := attached(t)(own.AttachProcess(h.PID()))
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
	readUntil(t, wide, "samples on the CPU", on(host, pinned.PID(), cpu.Number))

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
	readUntil(t, wide, "samples on another CPU", on(host, h.PID(), other))
	readUntil(t, own, "samples of a process on another CPU", on(process, h.PID(), other))
	require.NoError(t, wide.Pause(), "the events of the offline CPU are an error")
	require.NoError(t, wide.Resume())
	require.NoError(t, contextSwitches.Snapshot())

	cpu.Online(t)
	for name, rings := range all {
		// Events of threads resume when the CPU is online again.
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
	fresh := startPinned(t, cpu.Number) // the first program lost its CPU affinity
	readUntil(t, again, "samples on the CPU that is back", on(host, fresh.PID(), cpu.Number))
	require.NoError(t, again.Close())
}

// opened opens a session of the given kind and returns its CPUs.
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
		rings, err = switches.Open()
	case "probes":
		rings, err = Open(Options{HostWide: true, Probes: true})
	}
	require.NoError(t, err)
	cpus := slices.Clone(rings.CPUs())
	require.NoError(t, rings.Close())
	return cpus
}

// startPinned starts a program that spins on one CPU while the CPU is online.
func startPinned(t *testing.T, cpu int) *programtest.Program {
	t.Helper()
	h := programtest.Start(t)
	var set unix.CPUSet
	set.Set(cpu)
	tids, err := procfs.At("").Threads(h.PID())
	require.NoError(t, err)
	for _, tid := range tids {
		require.NoError(t, unix.SchedSetaffinity(tid, &set))
	}
	h.Order("thread")
	return h
}
