// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package agreement_test

import (
	"fmt"
	"strings"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/hotprofile/hotprofile/internal/cgroup"
	"github.com/hotprofile/hotprofile/internal/monitor"
	"github.com/hotprofile/hotprofile/internal/procfs"
	"github.com/hotprofile/hotprofile/test/agreement"
)

const (
	window  = 4 * time.Second
	settled = 0.3 // CPU seconds that the load must use before the first reading
	// attempts is the number of measurements that must all disagree before a test fails.
	// A wrong monitor disagrees each time. A correct monitor disagrees only if a busy
	// machine delays the tool during a reading.
	attempts = 3
)

// cases lists the quotas and the duty cycles of the loads. quota is in cores, and 0 means
// no quota. duty is the share of the time that each thread of the load is busy.
var cases = []struct{ quota, duty float64 }{
	{0.5, 1},
	{1, 0.8},
	{1.5, 1},
	{0, 0.9},
}

// figures lists the names of our figures, in the order of the constants below.
var figures = []string{monitor.CPUUsage, monitor.CPUUtilization}

const (
	usage = iota
	utilization
)

func TestKernelCgroup(t *testing.T) {
	tree := openTree(t)
	agree(t, tree, agreement.InCgroup(t, tree))
}

func TestKernelContainer(t *testing.T) {
	tree := openTree(t)
	agree(t, tree, agreement.InContainer(t, tree))
}

func openTree(t *testing.T) *cgroup.Tree {
	t.Helper()
	tree, err := cgroup.Open("/")
	require.NoError(t, err)
	return tree
}

// agree reads a load under each quota with every tool and with our monitors. It compares
// the figures of the tools with the figures of the monitors.
func agree(t *testing.T, tree *cgroup.Tree, start agreement.Start) {
	t.Helper()
	tick, err := agreement.SchedulerTick()
	require.NoError(t, err)
	source, err := monitor.NewSource(tree, monitor.Options{MaxOpenFiles: 64})
	require.NoError(t, err)
	t.Cleanup(source.Close)
	t.Logf("%s, scheduler tick %v", tree.Mode(), tick)
	for _, c := range cases {
		name := fmt.Sprintf("%v cores", c.quota)
		if c.quota == 0 {
			name = "no quota"
		}
		t.Run(name, func(t *testing.T) {
			load := start(t, c.quota, c.duty)
			w, err := source.Watch(load.Unit, procfs.Process{}, figures)
			require.NoError(t, err)
			defer w.Close()
			read := ours(w)
			require.Eventually(t, func() bool {
				p, err := read()
				require.NoError(t, err)
				return p[usage].Num > settled
			}, time.Minute, 20*time.Millisecond, "the load is to be busy")

			bound := agreement.Bound{Tick: tick, CPUs: agreement.BusyThreads, Limit: load.Limit}
			var all []*agreement.Measurement
			for n := range attempts {
				all, err = agreement.Measure(read, load.Tools(t, tree, window), window)
				require.NoError(t, err)
				require.Equal(t, load.Limit, w.Capacity().Cores, "the limit that was set; found: %+v", w.Capacity())
				report(t, all, bound)
				var faults []string
				for _, m := range all {
					for figure, err := range disagreements(m, bound) {
						faults = append(faults, fmt.Sprintf("%s, %s: %v", m.Tool, figure, err))
					}
				}
				if len(faults) == 0 {
					break
				}
				if t.Logf("attempt %d of %d: %s", n+1, attempts, strings.Join(faults, "\n")); n+1 == attempts {
					t.Fail()
				}
			}
			t.Run("a wrong capacity is seen", func(t *testing.T) { wrongCapacityIsSeen(t, all, bound) })
			t.Run("lost ticks are seen", func(t *testing.T) { lostTicksAreSeen(t, all, bound) })
		})
	}
}

func ours(w *monitor.Watcher) agreement.Ours {
	return func() ([]agreement.Point, error) {
		out, points := make([]monitor.Result, len(figures)), make([]agreement.Point, len(figures))
		w.Read(time.Now(), out)
		for i, r := range out {
			if r.Err != nil || r.Restarted {
				return nil, fmt.Errorf("%s: restarted %v: %w", figures[i], r.Restarted, r.Err)
			}
			points[i] = agreement.Point{At: r.Reading.Time, Num: r.Reading.Num, Den: r.Reading.Den}
		}
		return points, nil
	}
}

// disagreements returns an error for each of our figures that is too far from the tool's
// figure. The keys are the names of our figures. No tool reports cpu_utilization, so it
// is compared with the tool's cores divided by the limit.
func disagreements(m *agreement.Measurement, b agreement.Bound) map[string]error {
	out := map[string]error{}
	within := b.Total(m.Theirs)
	low, high := m.Range(usage)
	if apart := agreement.Apart(m.Theirs.Total, low, high); apart > within {
		out[monitor.CPUUsage] = fmt.Errorf("theirs is %.4f cores, ours %.4f to %.4f: %.4f apart, more than %.4f", m.Theirs.Total, low, high, apart, within)
	}
	low, high = m.Range(utilization)
	low, high, theirs, points := 100*low, 100*high, 100*m.Theirs.Total/b.Limit, 100*within/b.Limit
	if apart := agreement.Apart(theirs, low, high); apart > points {
		out[monitor.CPUUtilization] = fmt.Errorf("theirs is %.2f %%, ours %.2f to %.2f: %.2f points apart, more than %.2f", theirs, low, high, apart, points)
	}
	return out
}

// wrongCapacityIsSeen checks that the same readings disagree if the limit is wrong.
func wrongCapacityIsSeen(t *testing.T, all []*agreement.Measurement, b agreement.Bound) {
	b.Limit /= 2
	for _, m := range all {
		require.Contains(t, disagreements(m, b), monitor.CPUUtilization, m.Tool)
	}
}

// lostTicksAreSeen lowers a tool's figure to the limit at which it still agrees with our
// figures. With one more lost tick per CPU, the figures must disagree. With one fewer lost
// tick per CPU, the figures must agree.
func lostTicksAreSeen(t *testing.T, all []*agreement.Measurement, b agreement.Bound) {
	for _, m := range all {
		tick := float64(b.CPUs) * b.Tick.Seconds() / m.Theirs.Elapsed.Seconds()
		low, _ := m.Range(usage)
		lost := *m
		// The allowed difference depends on the tool's figure, because the error of a tool's
		// clock is a share of this figure. The figure is therefore computed repeatedly until
		// it converges.
		lose := func(beyond float64) {
			for range 20 {
				lost.Theirs.Total = low - b.Total(lost.Theirs) - beyond
			}
		}
		lose(tick)
		require.Contains(t, disagreements(&lost, b), monitor.CPUUsage, m.Tool)
		lose(-tick)
		require.NotContains(t, disagreements(&lost, b), monitor.CPUUsage, m.Tool)
	}
}

func report(t *testing.T, all []*agreement.Measurement, b agreement.Bound) {
	t.Helper()
	var s strings.Builder
	tab := tabwriter.NewWriter(&s, 0, 0, 2, ' ', 0)
	fmt.Fprintf(tab, "\nlimit %v cores\tspan\tcores\tours\tours may be\t%% of limit\tours\tapart, points\tat most\n", b.Limit)
	for _, m := range all {
		percent := 100 * m.Theirs.Total / b.Limit
		low, high := m.Range(usage)
		lowU, highU := m.Range(utilization)
		fmt.Fprintf(tab, "%s\t%.3fs\t%.4f\t%.4f\t%.4f..%.4f\t%.2f\t%.2f\t%.2f\t%.2f\n", m.Tool, m.Theirs.Elapsed.Seconds(),
			m.Theirs.Total, m.Ours(usage), low, high, percent, 100*m.Ours(utilization),
			agreement.Apart(percent, 100*lowU, 100*highU), 100*b.Total(m.Theirs)/b.Limit)
	}
	_ = tab.Flush()
	t.Log(s.String())
}
