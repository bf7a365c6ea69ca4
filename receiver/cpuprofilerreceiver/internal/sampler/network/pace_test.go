// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package network

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/hotprofile/hotprofile/internal/perfevent"
)

// calls simulates the calls of targets. The calls are sampled at the rates that the pace
// has most recently set.
type calls struct {
	*pace
	now   int64
	means map[*perfevent.Attachment][]int
}

const playedSources = 9

func newCalls(most int) *calls {
	return &calls{pace: newPace(most, 0), means: make(map[*perfevent.Attachment][]int)}
}

// begin registers a target. At first, all of its calls are sampled.
func (c *calls) begin() *perfevent.Attachment {
	of := &perfevent.Attachment{}
	sources := make([]source, playedSources)
	for i := range sources {
		sources[i] = *played(i)
	}
	c.began(of, sources, false)
	return of
}

// played returns the source with the given index. Sources 0 to 3 are for sent bytes,
// sources 4 to 7 are for received bytes, and source 8 is for connects.
func played(index int) *source {
	if index == 8 {
		return &source{kind: connects, size: 1, every: 1}
	}
	return &source{kind: []kind{sent, received}[index/4], size: float64(classes[index%4].typical), every: 1}
}

// span simulates the given numbers of calls by target and source. It
// returns the number of samples.
func (c *calls) span(demands map[*perfevent.Attachment]map[int]int) (samples int) {
	for of, by := range demands {
		for index, n := range by {
			mean := 1
			if m := c.means[of]; m != nil {
				mean = max(m[index], 1)
			}
			for range n / mean {
				c.sampled(of, index, played(index).kind, uint64(mean))
				samples++
			}
		}
	}
	c.now += span
	for of, means := range c.next(c.now, 1, playedSources) {
		if c.means[of] == nil {
			c.means[of] = make([]int, playedSources)
		}
		for i, mean := range means {
			if mean > 0 {
				c.means[of][i] = mean
			}
		}
	}
	return samples
}

func perSpan(most int) float64 { return float64(most) * float64(span) / float64(time.Second) }

func TestFewCallsAreAllSampled(t *testing.T) {
	c := newCalls(10000)
	of := c.begin()
	for range 100 {
		require.Equal(t, 1500, c.span(map[*perfevent.Attachment]map[int]int{of: {0: 1000, 7: 500}}))
	}
	require.Empty(t, c.means)
}

// TestLargeCallsAreSampledMoreOften simulates the same number of calls of each size. If
// there are too many calls, the largest calls must be sampled most often.
func TestLargeCallsAreSampledMoreOften(t *testing.T) {
	const most = 10000
	c := newCalls(most)
	of := c.begin()
	demand := map[*perfevent.Attachment]map[int]int{of: {0: 20000, 1: 20000, 2: 20000, 3: 20000}}
	c.span(demand)
	for range 20 {
		n := c.span(demand)
		require.LessOrEqual(t, float64(n), perSpan(most))
		require.Greater(t, float64(n), 0.6*perSpan(most))
	}
	m := c.means[of]
	for i := range 3 {
		// The sampling rates are proportional to the sizes, within
		// the rounding to whole numbers.
		require.InEpsilon(t, float64(classes[i+1].typical)/float64(classes[i].typical), float64(m[i])/float64(m[i+1]), 0.1)
	}
}

// TestABusyTargetLeavesRoomForOthers samples two targets. One target makes calls all
// the time, and the other target uses less than its share.
func TestABusyTargetLeavesRoomForOthers(t *testing.T) {
	const most = 1000
	c := newCalls(most)
	busy, calm := c.begin(), c.begin()
	demand := map[*perfevent.Attachment]map[int]int{busy: {0: 50000, 4: 50000}, calm: {0: 40, 8: 5}}
	c.span(demand)
	for range 20 {
		require.LessOrEqual(t, float64(c.span(demand)), perSpan(most))
	}
	require.Empty(t, c.means[calm], "each of its calls is sampled")
	require.Greater(t, c.means[busy][0], 100)

	// When the busy target makes fewer calls, all of its calls are sampled
	// again. Then the target is forgotten.
	demand[busy] = map[int]int{0: 10}
	for range 2 * calmSpans {
		c.span(demand)
	}
	require.Equal(t, 1, c.means[busy][0])
	delete(demand, busy)
	for range 2 * calmSpans {
		c.span(demand)
	}
	c.forget(busy)
	c.forget(calm)
	require.Empty(t, c.flows)
	c.sampled(calm, 0, sent, 1) // this sample was left in a ring
	require.Empty(t, c.flows)
}

func TestABurstIsBoundedBeforeTheSpanEnds(t *testing.T) {
	c := newCalls(1000)
	of := c.begin()
	for range 1000 {
		c.sampled(of, 0, sent, 1)
	}
	require.Empty(t, c.next(leastSpan-1, 1, playedSources))
	require.Greater(t, c.next(leastSpan, 1, playedSources)[of][0], 10)
}

func TestDrawnNumbersDoNotRunInLockstep(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	require.Equal(t, 1, draw(1, rnd.IntN))
	for _, mean := range []int{2, 5, 7, 11, 100, 5000} {
		var sum float64
		const n = 10000
		for range n {
			drawn := draw(mean, rnd.IntN)
			for _, loop := range []int{2, 3, 4, 6, 8, 9} {
				require.NotZero(t, drawn%loop)
			}
			sum += float64(drawn)
		}
		require.InDelta(t, float64(mean), sum/n, math.Max(4, 0.05*float64(mean)))
	}
}

func TestBegunConnectsAreFoundOnce(t *testing.T) {
	b := newBegun(3)
	to := remote{port: 80, address4: [4]byte{127, 0, 0, 1}}
	for socket := range uint64(4) {
		b.Add(socket+1, connect{to: to, hits: int64(socket)})
	}
	_, ok := b.take(1, to)
	require.False(t, ok, "the oldest is replaced")
	_, ok = b.take(2, remote{port: 81})
	require.False(t, ok, "another connection with the memory of the socket")
	c, ok := b.take(2, to)
	require.True(t, ok)
	require.EqualValues(t, 1, c.hits)
	_, ok = b.take(2, to)
	require.False(t, ok)
	// This socket connects again.
	b.Add(4, connect{to: remote{port: 443}, hits: 7})
	c, ok = b.take(4, remote{port: 443})
	require.True(t, ok)
	require.EqualValues(t, 7, c.hits)
	for socket := range uint64(100) {
		b.Add(socket+1, connect{to: to})
		require.LessOrEqual(t, b.Len(), 3)
	}
}

// TestANewTargetIsSampledSparselyAtFirst checks that only some calls of a new target are
// sampled until its number of calls is known.
func TestANewTargetIsSampledSparselyAtFirst(t *testing.T) {
	p := newPace(10000, 0)
	quiet, busy := &perfevent.Attachment{}, new(perfevent.Attachment)
	sources := []source{{kind: sent, size: 64, every: 61}, {kind: connects, size: 1, every: 1}, {kind: failures, size: 1, every: 1}}
	p.began(quiet, sources, false)
	p.began(busy, sources, false)
	p.began(quiet, sources, false)
	require.Len(t, p.flows, 4)
	require.Equal(t, 61, p.every())
	for range 1000 {
		p.sampled(busy, 0, sent, 61)
	}
	set := p.next(span, 1, len(sources))
	require.Equal(t, []int{1, 0, 0}, set[quiet])
	require.InDelta(t, 61000/perSpan(10000)/aim, set[busy][0], 3)
}
