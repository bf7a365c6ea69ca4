// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package bottleneck

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// scene contains a number of CPUs and the threads of one unit.
type scene struct {
	*simultaneity
	idle, other *process
	threads     []*process
	tally       *tally
}

func newScene(cpus, threads int) *scene {
	s := &scene{
		simultaneity: newSimultaneity(cpus),
		idle:         &process{known: true},
		other:        &process{pid: 1, known: true},
	}
	s.tally = s.newTally()
	for i := range threads {
		s.threads = append(s.threads, &process{pid: 100 + i, known: true, tallies: []*tally{s.tally}})
	}
	for cpu := range cpus {
		s.runs(cpu, s.idle, 0, -1)
	}
	return s
}

// to puts a process on a CPU at time t.
func (s *scene) to(cpu int, p *process, t int64) {
	before := -1
	if last := s.cpus[cpu]; last != nil {
		before = last.pid
	}
	s.runs(cpu, p, t, before)
}

// figures returns the sums up to a time. It also checks invariants of the sums.
func (s *scene) figures(t *testing.T, until int64) (busy, known, cpu int64) {
	t.Helper()
	s.advance(until)
	s.settle(s.tally)
	busy, known, cpu = sums(s.tally.at)
	require.Equal(t, s.known, known, "the tally has all known time")
	require.LessOrEqual(t, busy, known)
	require.LessOrEqual(t, busy, cpu)
	require.LessOrEqual(t, cpu, busy*int64(len(s.cpus)))
	for k, at := range s.tally.at {
		require.GreaterOrEqual(t, at, int64(0), "t(%d)", k)
	}
	return busy, known, cpu
}

func TestUtilizationAndBottleneckOfSixteenCPUs(t *testing.T) {
	const (
		cpus = 16
		span = int64(16_000_000_000)
		n    = 1600 // number of slices
	)
	for _, c := range []struct {
		name                    string
		script                  func(*scene)
		utilization, bottleneck float64
		cpu                     int64 // CPU time according to the script
	}{
		{"all busy for a sixteenth of the time", func(s *scene) {
			for cpu := range cpus {
				s.to(cpu, s.threads[cpu], 0)
			}
			for cpu := range cpus {
				s.to(cpu, s.idle, span/16)
			}
		}, 6.25, 100.0 / 16, span},
		{"one busy all the time", func(s *scene) {
			s.to(3, s.threads[0], 0)
		}, 6.25, 100, span},
		{"one at a time, each slice another", func(s *scene) {
			for i := range n {
				s.to((i+cpus-1)%cpus, s.idle, span/n*int64(i))
				s.to(i%cpus, s.threads[i%cpus], span/n*int64(i))
			}
		}, 6.25, 100, span},
		{"nine busy for half of the time", func(s *scene) {
			for i := range int64(10) {
				for cpu := range 9 {
					s.to(cpu, s.threads[cpu], span/10*i)
				}
				for cpu := range 9 {
					s.to(cpu, s.idle, span/10*i+span/20)
				}
			}
		}, 28.125, 50, 9 * span / 2},
		{"nothing", func(*scene) {}, 0, 0, 0},
		{"others", func(s *scene) {
			for cpu := range cpus {
				s.to(cpu, s.other, 0)
			}
		}, 0, 0, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newScene(cpus, cpus)
			c.script(s)
			busy, known, cpu := s.figures(t, span)
			require.Equal(t, span, known)
			require.Equal(t, c.cpu, cpu)
			require.InDelta(t, c.utilization, 100*float64(cpu)/float64(known*cpus), 1e-9)
			require.InDelta(t, c.bottleneck, 100*float64(busy)/float64(known), 1e-9)
			require.Zero(t, s.surprises)
			require.Zero(t, s.late)
		})
	}
}

func TestGapsAreLeftOut(t *testing.T) {
	for _, c := range []struct {
		name             string
		script           func(*scene)
		busy, known, cpu int64
	}{
		{"records lost on an idle CPU", func(s *scene) {
			s.to(0, s.threads[0], 0)
			s.lose(1, 30)
			s.to(1, s.idle, 50)
		}, 80, 80, 80},
		{"records lost on the CPU of a thread", func(s *scene) {
			s.to(0, s.threads[0], 0)
			s.lose(0, 30)
			s.to(0, s.threads[0], 40)
		}, 90, 90, 90},
		{"two CPUs lost at overlapping times", func(s *scene) {
			s.to(0, s.threads[0], 0)
			s.lose(0, 30)
			s.lose(1, 40)
			s.to(0, s.idle, 50)
			s.to(1, s.idle, 60)
		}, 30, 70, 30},
		{"lost twice before it is known again", func(s *scene) {
			s.lose(1, 40)
			s.lose(1, 50)
			s.to(1, s.threads[1], 60)
		}, 40, 80, 40},
		{"an unknown process", func(s *scene) {
			stranger := &process{pid: 7}
			s.to(0, s.threads[0], 0)
			s.to(1, stranger, 10)
			s.lose(1, 20)
			s.to(1, stranger, 30)
			s.to(1, s.idle, 40)
		}, 70, 70, 70},
		{"a process that is looked up while it runs", func(s *scene) {
			stranger := &process{pid: 7}
			s.to(1, stranger, 10)
			s.to(2, stranger, 15) // another thread of the same process
			s.advance(20)
			s.assign(stranger, []*tally{s.tally}, true)
			s.to(1, s.idle, 50)
			s.to(2, s.idle, 60)
		}, 40, 90, 70},
		{"a process that moves away while it runs", func(s *scene) {
			s.to(0, s.threads[0], 0)
			s.advance(25)
			s.assign(s.threads[0], nil, true)
		}, 25, 100, 25},
		{"a process that becomes unknown while it runs", func(s *scene) {
			s.to(0, s.threads[0], 0)
			s.advance(25)
			s.assign(s.threads[0], nil, false)
			s.to(0, s.idle, 35)
		}, 25, 90, 25},
		{"a CPU that goes offline is idle", func(s *scene) {
			s.to(0, s.threads[0], 0)
			s.to(0, s.idle, 40)
			s.to(1, s.threads[0], 40)
		}, 100, 100, 100},
		{"CPUs that are followed anew", func(s *scene) {
			s.to(0, s.threads[0], 0)
			s.reset(3, 20)
			for cpu := range 3 {
				s.to(cpu, s.threads[0], 30+int64(cpu))
			}
		}, 88, 88, 20 + 3*68},
		{"a late record counts from when it comes", func(s *scene) {
			s.to(0, s.other, 30)
			s.to(1, s.threads[0], 20)
		}, 70, 100, 70},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newScene(2+1, 2)
			c.script(s)
			busy, known, cpu := s.figures(t, 100)
			require.Equal(t, []int64{c.busy, c.known, c.cpu}, []int64{busy, known, cpu})
		})
	}
}

func TestNothingIsKnownBeforeTheFirstSwitchOfEachCPU(t *testing.T) {
	s := &scene{simultaneity: newSimultaneity(2), idle: &process{known: true}}
	s.tally = s.newTally()
	thread := &process{pid: 9, known: true, tallies: []*tally{s.tally}}
	s.to(0, thread, 10)
	s.to(1, s.idle, 40)
	busy, known, cpu := s.figures(t, 100)
	require.Equal(t, []int64{60, 60, 60}, []int64{busy, known, cpu})
}

func TestUnexpectedLeavesAreCounted(t *testing.T) {
	s := newScene(1, 1)
	s.runs(0, s.threads[0], 10, 0)
	require.Zero(t, s.surprises)
	s.runs(0, s.idle, 20, 100)
	require.Zero(t, s.surprises)
	s.runs(0, s.threads[0], 30, 55)
	require.Equal(t, uint64(1), s.surprises)
}

// TestAnyScheduleAddsUp runs random schedules. It compares the results with sums that the
// test computes itself.
func TestAnyScheduleAddsUp(t *testing.T) {
	for seed := range uint64(50) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 1))
			cpus := 1 + random.IntN(5)
			s := newScene(cpus, 4)
			stranger := &process{pid: 7}
			want := make([]int64, cpus+1)
			now := int64(0)
			for range 300 {
				next := now + int64(random.IntN(20))
				k, gap := 0, false
				for _, p := range s.cpus {
					gap = gap || p == nil || !p.known
					if p != nil && len(p.tallies) > 0 {
						k++
					}
				}
				if !gap {
					want[k] += next - now
				}
				now = next
				cpu := random.IntN(cpus)
				switch random.IntN(12) {
				case 0:
					s.lose(cpu, now)
				case 1:
					s.to(cpu, stranger, now)
				case 2:
					s.advance(now)
					known := random.IntN(2) == 0
					var tallies []*tally
					if known && random.IntN(2) == 0 {
						tallies = []*tally{s.tally}
					}
					s.assign(stranger, tallies, known)
				case 3, 4, 5:
					s.to(cpu, s.idle, now)
				default:
					s.to(cpu, s.threads[random.IntN(len(s.threads))], now)
				}
			}
			s.figures(t, now)
			require.Equal(t, want, s.tally.at)
		})
	}
}

func TestAccountingASwitchDoesNotAllocate(t *testing.T) {
	s := newScene(4, 2)
	now := int64(0)
	require.Zero(t, testing.AllocsPerRun(1000, func() {
		now += 10
		s.to(1, s.threads[0], now)
		s.to(1, s.idle, now+5)
	}))
}

// BenchmarkAccountSwitch measures the time to account for a context switch. The baseline
// is a single assignment.
func BenchmarkAccountSwitch(b *testing.B) {
	s := newScene(16, 2)
	b.Run("assignment", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			s.cpus[1] = s.threads[0]
		}
	})
	s = newScene(16, 2)
	now := int64(0)
	for name, to := range map[string]*process{"of a unit": s.threads[0], "of others": s.other} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			on := false
			for b.Loop() {
				now += 10
				on = !on
				if on {
					s.runs(1, to, now, 0)
				} else {
					s.runs(1, s.idle, now, to.pid)
				}
			}
		})
	}
}
