// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package window

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func randomTest(r *rand.Rand) Test {
	t := Test{Threshold: float64(20 + r.IntN(60))}
	if r.IntN(2) == 0 {
		t.AverageOver = time.Duration(1+r.IntN(20)) * time.Second
	} else {
		t.Period = time.Duration(1+r.IntN(20)) * time.Second
		t.Count = 1 + r.IntN(int(t.Period/time.Second))
	}
	if r.IntN(2) == 0 {
		below := t.Threshold / 2
		t.ReleaseBelow = &below
	}
	return t
}

// TestBulkAdoptKeepsWhatWasObserved changes the tests of a history at random times. A test
// that remains must have the same result as in an unchanged history. A new test must have
// this result after its span has passed. Before that, a new test uses the readings in the
// history. The first readings of the span may then be missing from the mean. If the
// readings arrive in time, the two histories may have rings of different lengths.
func TestBulkAdoptKeepsWhatWasObserved(t *testing.T) {
	settled, early := 0, 0
	for seed := range uint64(300) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 3))
			kind := []Kind{{Scale: 100}, {Gauge: true}, {Scale: 100, Sparse: true}}[r.IntN(3)]
			tests := []Test{randomTest(r), randomTest(r), randomTest(r), randomTest(r)}
			regular := seed%2 == 0
			plan := func(tests []Test) (*Monitor, []int) {
				m, numbers := NewMonitor(kind, time.Second), []int(nil)
				if !regular {
					m.Add(Test{Threshold: 1, AverageOver: time.Minute}) // keeps readings for a minute
				}
				for _, test := range tests {
					numbers = append(numbers, m.Add(test))
				}
				return m, numbers
			}
			reference, all := plan(tests)
			want := reference.NewHistory()
			some := []int{0, 1} // indices into tests
			since := map[int]time.Duration{0: 0, 1: 0}
			m, numbers := plan([]Test{tests[0], tests[1]})
			h := m.NewHistory()
			var now time.Duration
			var num, den float64
			level := 0.5
			type leveled struct {
				at    time.Duration
				level float64
			}
			var levels []leveled
			for range 400 {
				step := time.Duration(900+r.IntN(200)) * time.Millisecond
				if regular {
					step = time.Second
				} else if r.IntN(40) == 0 {
					step = time.Duration(r.IntN(300)) * time.Second
				}
				now += step
				if r.IntN(8) == 0 {
					level = r.Float64()
				}
				levels = append(levels, leveled{now, level})
				num, den = num+level*step.Seconds(), den+step.Seconds()
				if r.IntN(60) == 0 {
					num, den = 0, 0
				}
				if kind.Gauge {
					num = level * 100
				}
				want.Observe(int64(now), num, den)
				h.Observe(int64(now), num, den)
				if r.IntN(15) == 0 {
					some = some[:0]
					var chosen []Test
					for i := range tests {
						if i == 0 || r.IntN(2) == 0 { // the first test always stays
							some, chosen = append(some, i), append(chosen, tests[i])
							if _, was := since[i]; !was {
								since[i] = now
							}
						} else {
							delete(since, i)
						}
					}
					m, numbers = plan(chosen)
					h = m.Adopt(h)
				}
				require.NoError(t, h.verify())
				at := now + time.Duration(r.IntN(1500))*time.Millisecond
				var scratch []float32
				for place, i := range some {
					value, ok := h.Value(numbers[place], int64(at), &scratch)
					reference, enough := want.Value(all[i], int64(at), &scratch)
					if now-since[i] > tests[i].Span()+5*time.Second || since[i] == 0 {
						settled++
						require.Equal(t, enough, ok, "test %d", i)
						require.Equal(t, want.Holds(all[i], int64(at)), h.Holds(numbers[place], int64(at)))
						require.Equal(t, want.Released(all[i], int64(at)), h.Released(numbers[place], int64(at)))
						require.InDelta(t, reference, value, 1e-3, "test %d", i)
					} else if ok {
						early++
						least, most := 1.0, 0.0
						for _, l := range levels {
							if l.at >= now-tests[i].Span()-2*time.Second {
								least, most = min(least, l.level), max(most, l.level)
							}
						}
						if !kind.Sparse { // a sparse counter without events has the value 0
							require.GreaterOrEqual(t, value, least*100*0.999, "%+v %+v at %v since %v %+v", kind, tests[i], now, since[i], h.windows[numbers[place]])
						}
						require.LessOrEqual(t, value, most*100*1.001)
					}
				}
			}
		})
	}
	require.Greater(t, settled, 10_000)
	require.Greater(t, early, 1000)
}

// TestAdoptWithoutReadings changes the tests of a history without readings. It also checks
// that a history without tests keeps no readings.
func TestAdoptWithoutReadings(t *testing.T) {
	none := NewMonitor(Kind{}, time.Second)
	short, long := NewMonitor(Kind{}, time.Second), NewMonitor(Kind{}, time.Second)
	short.Add(Test{Threshold: 1, AverageOver: 2 * time.Second})
	long.Add(Test{Threshold: 1, Period: time.Minute, Count: 1})
	h := none.NewHistory()
	for _, m := range []*Monitor{short, long, none, long, short} {
		h = m.Adopt(h)
		require.NoError(t, h.verify())
		require.Len(t, h.windows, len(m.tests))
	}
	h = long.Adopt(h)
	for at := range int64(5) {
		h.Observe(at*int64(time.Second), float64(2*at), float64(at))
	}
	require.True(t, h.Holds(0, 4*int64(time.Second)))
	h = short.Adopt(h)
	require.True(t, h.Holds(0, 4*int64(time.Second)))
	h = none.Adopt(h)
	h = short.Adopt(h)
	require.False(t, h.Holds(0, 4*int64(time.Second)), "nobody kept the readings")
}
