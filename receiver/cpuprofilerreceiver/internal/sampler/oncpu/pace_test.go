// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package oncpu

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// host simulates a load on two CPUs and the cost of sampling it, with a fake clock.
type host struct {
	*pace
	now     int64
	spent   time.Duration
	changes int
}

func newHost(bound float64, frequency int) *host {
	return &host{pace: newPace(bound, 10*time.Second, frequency)}
}

// run advances the clock by a number of intervals. load is the cost of sampling at the full
// frequency, and fixed is the cost at any frequency. Both costs are shares of each CPU.
func (h *host) run(intervals int, load, fixed float64) *host {
	const cpus = 2
	for range intervals * 10 { // next is called more often than it decides
		was := h.halvings
		h.now += int64(time.Second)
		h.spent += time.Duration((load/float64(int(1)<<h.halvings) + fixed) * cpus * float64(time.Second))
		h.next(h.now, h.spent, cpus)
		if h.halvings != was {
			h.changes++
		}
	}
	return h
}

func TestFrequencyFollowsTheCost(t *testing.T) {
	const bound = 0.02
	for name, test := range map[string]struct {
		load, fixed float64
		halvings    int
	}{
		"no cost":                   {0, 0, 0},
		"within the bound":          {0.019, 0, 0},
		"at the bound":              {0.02, 0, 0},
		"a little above":            {0.021, 0, 1},
		"three times the bound":     {0.06, 0, 2},
		"thirty times":              {0.6, 0, 5},
		"above it at any frequency": {10, 0, 7},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHost(bound, 97).run(100, test.load, test.fixed)
			require.Equal(t, test.halvings, h.halvings)
			require.Equal(t, test.halvings, h.changes, "it does not go up and down")
			require.Equal(t, test.load/float64(int(1)<<h.halvings)+test.fixed > bound, h.exceeded())
			h.run(100, 0.001, 0)
			require.Zero(t, h.halvings, "it recovers")
			require.Equal(t, 2*test.halvings, h.changes)
			require.False(t, h.exceeded())
		})
	}
}

// TestFrequencyIsNotLoweredInVain covers a cost that does not depend on the
// frequency. The frequency then stays the same, except that a lower
// frequency is tried from time to time.
func TestFrequencyIsNotLoweredInVain(t *testing.T) {
	h := newHost(0.02, 97).run(2*overIntervals, 0.002, 0.05)
	require.Zero(t, h.halvings)
	require.Equal(t, 2, h.changes)
	require.True(t, h.exceeded())
	lowered := 0
	for range 1000 {
		h.run(1, 0.002, 0.05)
		lowered += h.halvings
		require.True(t, h.exceeded())
	}
	require.LessOrEqual(t, h.halvings, 1)
	require.Less(t, lowered, 30, "tries")
	require.Greater(t, h.changes, 10, "it is tried again")

	// If a part of the cost depends on the frequency, the frequency is lowered as
	// long as the cost decreases enough.
	require.Equal(t, 3, newHost(0.02, 97).run(5*overIntervals, 0.03, 0.021).halvings)

	h.run(mostRestIntervals+20, 0.16, 0) // the cost of this load depends on the frequency
	require.Equal(t, 3, h.halvings)
	require.False(t, h.exceeded())
	h.run(100, 0.001, 0)
	require.Zero(t, h.halvings)
}

func TestFrequencyChangesStepByStep(t *testing.T) {
	h := newHost(0.02, 97).run(overIntervals-1, 1, 0)
	require.Zero(t, h.halvings, "a burst")
	h.run(1, 1, 0)
	require.Equal(t, 1, h.halvings)
	h.run(overIntervals, 1, 0)
	require.Equal(t, 2, h.halvings)
	h.run(calmIntervals-1, 0, 0)
	require.Equal(t, 2, h.halvings, "a pause")
	h.run(1, 0, 0)
	require.Equal(t, 1, h.halvings)
}

func TestBurstAtTheStartChangesNothing(t *testing.T) {
	h := newHost(0.02, 97)
	h.spent = 15 * time.Second // the cost of reading all symbols of a host
	require.Zero(t, h.run(50, 0.01, 0).changes)
}

func TestUnsteadyLoadNearTheBoundChangesNothingForLong(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	h := newHost(0.02, 97).run(20, 0.03, 0)
	require.Equal(t, 1, h.changes)
	for range 500 {
		h.run(1, 0.03*(0.8+0.4*random.Float64()), 0)
	}
	require.Equal(t, 1, h.changes)
}

func TestWhatIsNotToBeJudged(t *testing.T) {
	h := newHost(0.02, 97)
	for range 100 {
		h.run(overIntervals-1, 1, 0)
		h.restart(h.now, h.spent)
	}
	require.Zero(t, h.changes)

	require.Zero(t, newHost(0, 97).run(100, 1, 0).changes, "no bound")

	h = newHost(0.02, 97)
	require.False(t, h.next(int64(time.Hour), time.Hour, 0), "no CPU")
}

// TestUnwindingIsSparedBeforeTheFrequencyFalls checks that stacks outside of hot units
// are no longer unwound before the frequency is lowered. These stacks are unwound again
// only after the frequency is restored.
func TestUnwindingIsSparedBeforeTheFrequencyFalls(t *testing.T) {
	h := newHost(0.02, 97)
	h.maySpare = true
	h.run(overIntervals-1, 0.03, 0)
	require.False(t, h.sparing, "a burst")
	h.run(1, 0.03, 0)
	require.True(t, h.sparing)
	require.Zero(t, h.halvings)
	h.run(100, 0.018, 0)
	require.True(t, h.sparing, "twice as much would be too much")
	require.Zero(t, h.halvings)
	h.run(overIntervals, 0.03, 0)
	require.Equal(t, 1, h.halvings, "sparing was not enough")
	h.run(calmIntervals, 0.001, 0)
	require.Zero(t, h.halvings)
	require.True(t, h.sparing)
	h.run(calmIntervals, 0.001, 0)
	require.False(t, h.sparing)
}

func TestLowestFrequency(t *testing.T) {
	for frequency, halvings := range map[int]int{1: 0, 2: 1, 3: 2, 4: 2, 97: 7, 999: 10} {
		p := newPace(0.02, time.Second, frequency)
		require.Equal(t, halvings, p.lowest)
		p.halvings = p.lowest
		lowest := float64(time.Second) / float64(p.period(time.Second/time.Duration(frequency)))
		require.LessOrEqual(t, lowest, 1.01)
		require.Greater(t, lowest, 0.5)
	}
}

func BenchmarkPace(b *testing.B) {
	p := newPace(0.02, 10*time.Second, 97)
	b.ReportAllocs()
	now := int64(0)
	for b.Loop() {
		now += int64(250 * time.Millisecond)
		p.next(now, time.Duration(now/100), 2)
	}
}
