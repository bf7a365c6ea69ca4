// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package offcpu

import (
	"math"
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/unwind"
	"github.com/hotprofile/hotprofile/test/hosttest"
)

// BenchmarkSlowdown measures how much sampling slows down a program with two threads
// that only wake each other. It measures the wall time and the CPU time of pairs of
// runs, with and without sampling. The order of the two runs alternates. Run it with
// -benchtime 20x or more, because the 95 % intervals are computed from one pair per
// iteration.
func BenchmarkSlowdown(b *testing.B) {
	skipWithoutRights(b)
	binary := waiter(b, "-fno-omit-frame-pointer")
	for _, c := range []struct {
		name   string
		most   int
		group  bool
		copied int // the size of each stack copy in bytes
	}{
		{"process/bound=default", 10_000, false, 0},
		{"process/bound=none", 10_000_000, false, 0},
		{"process/copied=16KiB", 10_000, false, 16 << 10},
		{"cgroup/bound=default", 10_000, true, 0},
		{"cgroup/bound=none", 10_000_000, true, 0},
		{"cgroup/copied=16KiB", 10_000, true, 16 << 10},
	} {
		b.Run(c.name, func(b *testing.B) {
			var passed, used []float64
			var perSecond, perSwitch, every, lost float64
			n := 0
			for b.Loop() {
				var first, second measured
				if n%2 == 0 {
					first, second = ask(b, binary, c.most, c.copied, c.group), ask(b, binary, 0, 0, c.group)
				} else {
					second, first = ask(b, binary, 0, 0, c.group), ask(b, binary, c.most, c.copied, c.group)
				}
				n++
				passed = append(passed, 100*(first.passed/second.passed-1))
				used = append(used, 100*(first.used/second.used-1))
				perSecond += float64(first.switches) / first.passed
				perSwitch += 1e6 * (first.used - second.used) / float64(first.switches)
				every += first.every
				lost += first.lost
			}
			report := func(what string, of []float64) {
				mean, half := interval(of)
				b.ReportMetric(mean, what+"-slower-%")
				b.ReportMetric(mean+half, what+"-at-most-%")
			}
			report("wall", passed)
			report("cpu", used)
			b.ReportMetric(perSecond/float64(n), "switches/s")
			b.ReportMetric(perSwitch/float64(n), "µs-cpu/switch")
			b.ReportMetric(every/float64(n), "switches/stack")
			b.ReportMetric(lost/float64(n), "lost/run")
		})
	}
}

// measured contains the wall time and the CPU time of a run, in seconds, and
// the number of context switches.
type measured struct {
	passed, used float64
	switches     uint64
	every, lost  float64
}

// ask runs the program. If most is positive, the program is sampled. If copied
// is positive, stacks are copied.
func ask(b *testing.B, binary string, most, copied int, inGroup bool) (m measured) {
	b.Helper()
	const times = "50000"
	finder := new(targets)
	cmd := exec.Command(binary, "ask", times, "0")
	if inGroup {
		g := hosttest.NewCgroup(b, "hotprofile-offcpu")
		cmd = g.Command(binary, "ask", times, "0")
		finder.set(group(b, g.Path))
	}
	p := run(b, cmd)
	var s *Sampler
	if most > 0 {
		if !inGroup {
			finder.set(process(p.Process.Pid))
		}
		s, _, _ = start(b, finder, func(c *Settings) {
			c.MaxEventsPerSecond, c.DiscoveryInterval = most, time.Second
			if copied > 0 {
				c.Stacks = unwind.NewStacks(unwind.StacksConfig{Mode: unwind.Copies, Bytes: copied, Tables: tables(b)})
			}
		})
		waitFor(b, "attached", func() bool { return s.Targets() == 1 })
	}
	p.begin(b)
	began, ended := p.number(b), p.number(b)
	p.number(b)
	require.NoError(b, p.Wait())
	m.passed = float64(ended-began) / 1e9
	m.used = (p.ProcessState.UserTime() + p.ProcessState.SystemTime()).Seconds()
	if s != nil {
		m.every = float64(s.Stats().Every)
		require.NoError(b, s.Stop(b.Context()))
		m.switches = s.Stats().Switches / 2
		m.lost = float64(s.Stats().Lost)
	}
	return m
}

// interval returns the mean of values and half the width of its 95 % confidence interval.
func interval(values []float64) (mean, half float64) {
	for _, v := range values {
		mean += v / float64(len(values))
	}
	for _, v := range values {
		half += (v - mean) * (v - mean)
	}
	n := float64(len(values))
	if n < 2 {
		return mean, math.NaN()
	}
	return mean, 1.96 * math.Sqrt(half/(n-1)/n)
}
