// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package traces

import "fmt"

// period is the kernel's quota period in seconds. tick is the interval, in seconds, at which
// the kernel updates its CPU counters.
const (
	period = 0.1
	tick   = 0.004
)

// Synthesize returns the trace of a schedule that is not recorded. It simulates a fair
// scheduler with the kernel's quotas. Readings are taken once per second. They have the
// kernel's tick error and a few milliseconds of jitter.
func Synthesize(s *Schedule) (header []string, rows []Row) {
	header = []string{
		s.About,
		fmt.Sprintf("synthetic, from schedules/%s.txt", s.Name),
		fmt.Sprintf("machine: %d CPUs, imagined", s.CPUs),
	}
	var m machine
	for second := 0; second <= s.Seconds; second++ {
		if second > 0 {
			for step := range stepsPerSecond {
				m.step(s, float64(second-1)+float64(step)/stepsPerSecond)
			}
		}
		t := float64(second)
		if s.IsDown(t) {
			m = machine{}
			continue
		}
		row := m.read(s, t)
		if !s.IsMissing(t) {
			rows = append(rows, row)
		}
	}
	return header, rows
}

const stepsPerSecond, stepsPerPeriod = 50, 5

// machine simulates the cgroup of a unit, and the parent cgroup if there is one.
type machine struct {
	steps       int
	used, shown float64 // CPU seconds so far, and their value at the last reading
	own, parent bandwidth
}

// bandwidth is the quota of one cgroup.
type bandwidth struct {
	left               float64 // CPU seconds that are left in this period
	active, throttled  bool    // in this period
	periods, throttles uint64
}

func (b *bandwidth) begin(quota float64) {
	if b.active {
		b.periods++
	}
	if b.throttled {
		b.throttles++
	}
	*b = bandwidth{left: quota * period, periods: b.periods, throttles: b.throttles}
}

func (m *machine) step(s *Schedule, t float64) {
	if s.IsDown(t) {
		return
	}
	quota := s.Quota(t)
	if m.steps%stepsPerPeriod == 0 {
		m.own.begin(quota)
		m.parent.begin(s.Parent)
	}
	m.steps++
	const dt = 1.0 / stepsPerSecond
	want, others := s.Demand(t)*dt, s.Neighbour(t)*dt
	got := min(want, float64(s.CPUs)*dt)
	if quota > 0 {
		m.own.active = m.own.active || want > 0
		got = m.own.take(got)
	}
	if s.Parent > 0 {
		m.parent.active = m.parent.active || want+others > 0
		// A load that demands less than half of the quota gets all of its demand. If both
		// loads demand more than half, each of them gets half.
		left := m.parent.left
		if got+others > left {
			m.parent.throttled = true
			got = min(got, max(left/2, left-others))
		}
		m.parent.left = max(0, left-got-others)
	}
	m.used += got
}

func (b *bandwidth) take(want float64) float64 {
	got := min(want, b.left)
	if want > b.left+1e-9 {
		b.throttled = true
	}
	b.left -= got
	return got
}

// read returns the values of the counters. The values are up to one
// tick late for each running CPU.
func (m *machine) read(s *Schedule, t float64) Row {
	late := (s.noise(int(t)+1_000_000) + 1) / 2
	running := min(s.Demand(max(0, t-0.01)), s.Limit(t))
	m.shown = max(m.shown, m.used-late*tick*running)
	row := Row{At: t, CPU: m.shown, Capacity: s.Limit(t)}
	if t > 0 {
		row.At += 0.003 * (s.noise(int(t)+2_000_000) + 1) / 2
	}
	b := m.own
	if s.Parent > 0 && (s.Quota(t) == 0 || s.Parent < s.Quota(t)) {
		b = m.parent
	}
	row.Periods, row.Throttled = b.periods, b.throttles
	return row
}
