// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package collect

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/hotprofile/hotprofile/internal/cgroup"
	"github.com/hotprofile/hotprofile/internal/identify"
	"github.com/hotprofile/hotprofile/internal/procfs"
	"github.com/hotprofile/hotprofile/processor/cputriggerprocessor/internal/units"
	"github.com/hotprofile/hotprofile/test/agreement"
)

// TestKernelUserShareAgrees compares our user and system times with the times that other
// tools measured over the same period. The user_share in log messages is computed from
// these times.
func TestKernelUserShareAgrees(t *testing.T) {
	tree, err := cgroup.Open("/")
	require.NoError(t, err)
	inCgroup := agreement.InCgroup(t, tree)
	t.Run("cgroup", func(t *testing.T) { userShareAgrees(t, tree, inCgroup, 0.5, false) })
	t.Run("cgroup without quota", func(t *testing.T) { userShareAgrees(t, tree, inCgroup, 0, false) })
	t.Run("process", func(t *testing.T) { userShareAgrees(t, tree, inCgroup, 0, true) })
	t.Run("container", func(t *testing.T) { userShareAgrees(t, tree, agreement.InContainer(t, tree), 0.5, false) })
}

// These constants are the indices of the figures that are compared.
const (
	userCores = iota
	systemCores
)

func userShareAgrees(t *testing.T, tree *cgroup.Tree, start agreement.Start, quota float64, asProcess bool) {
	t.Helper()
	const window = 4 * time.Second
	tick, err := agreement.SchedulerTick()
	require.NoError(t, err)
	load := start(t, quota, 1)
	u, step := &units.Unit{Identity: identify.Identity{Group: load.Unit}}, procfs.Tick
	if asProcess {
		u = &units.Unit{Identity: identify.Identity{Process: processOf(t, load.PID)}}
	} else if _, err := tree.Own(load.Unit, cgroup.V2Tree); err == nil {
		step = time.Microsecond
	}
	times := &userTimes{readNow: OpenUserTimes(tree, u)}
	require.NotNil(t, times)
	began := time.Now()
	var first, last []agreement.Point
	read := func() ([]agreement.Point, error) {
		now := time.Now()
		if times.read(now); times.last.at != now {
			return nil, errors.New("it cannot be read")
		}
		elapsed := now.Sub(began).Seconds()
		last = []agreement.Point{
			userCores:   {At: now, Num: float64(times.last.user) * step.Seconds(), Den: elapsed},
			systemCores: {At: now, Num: float64(times.last.system) * step.Seconds(), Den: elapsed},
		}
		if first == nil {
			first = last
		}
		return last, nil
	}
	require.Eventually(t, func() bool {
		p, err := read()
		require.NoError(t, err)
		return p[userCores].Num+p[systemCores].Num > 0.3
	}, 20*time.Second, 20*time.Millisecond, "the load is to be busy")
	times.older, first = cpuTimes{}, nil // marks the unit as newly warm

	all, err := agreement.Measure(read, load.Tools(t, tree, window), window)
	require.NoError(t, err)
	user, system := last[userCores].Num-first[userCores].Num, last[systemCores].Num-first[systemCores].Num
	require.InDelta(t, user/(user+system), times.share(), 1e-9)

	bound := agreement.Bound{Tick: tick, CPUs: agreement.BusyThreads, Limit: load.Limit}
	var s strings.Builder
	tab := tabwriter.NewWriter(&s, 0, 0, 2, ' ', 0)
	fmt.Fprintf(tab, "\nlimit %v cores\tspan\tuser, cores\tours\tsystem\tours\tapart, points\tat most\tuser share\tours\n", load.Limit)
	for _, m := range all {
		f := m.Theirs
		if !agreement.Shows(f.User) {
			continue
		}
		apart, within := splitApart(m), bound.Split(f, step)
		user, system := m.Ours(userCores), m.Ours(systemCores)
		fmt.Fprintf(tab, "%s\t%.3fs\t%.4f\t%.4f\t%.4f\t%.4f\t%.2f\t%.2f\t%.3f\t%.3f\n", m.Tool, f.Elapsed.Seconds(),
			f.User, user, f.System, system, 100*apart/load.Limit, 100*within/load.Limit, f.User/(f.User+f.System), user/(user+system))
		if apart > within {
			t.Errorf("%s: user and system are %.4f cores apart, more than %.4f", m.Tool, apart, within)
		}
		wrong := *m
		wrong.Theirs.User, wrong.Theirs.System = f.User+f.System, 0
		require.Greater(t, splitApart(&wrong), within, "what counts system time as user time must be seen: %s", m.Tool)
	}
	_ = tab.Flush()
	t.Log(s.String())
}

// splitApart compares the tool's user time and system time with our own figures. It
// returns the larger of the two differences.
func splitApart(m *agreement.Measurement) float64 {
	low, high := m.Range(userCores)
	user := agreement.Apart(m.Theirs.User, low, high)
	low, high = m.Range(systemCores)
	return max(user, agreement.Apart(m.Theirs.System, low, high))
}

func processOf(t *testing.T, pid int) procfs.Process {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	require.NoError(t, err)
	s, err := procfs.ParseStat(b)
	require.NoError(t, err)
	return procfs.Process{PID: pid, Start: s.Start}
}
