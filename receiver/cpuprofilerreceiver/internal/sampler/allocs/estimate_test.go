// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package allocs

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestWeightIsOneByTheProbabilityOfBeingSampled(t *testing.T) {
	for _, c := range []struct {
		size uint64
		rate int64
		want float64
	}{
		{8, 512 << 10, 65536.5},
		{512 << 10, 512 << 10, 1.5819767},
		{1 << 20, 512 << 10, 1.1565176},
		{1 << 30, 512 << 10, 1},
		{48, 1, 1},
		{48, 0, 1},
		{0, 512 << 10, 1},
	} {
		require.InEpsilon(t, c.want, weight(c.size, c.rate), 1e-6, "%+v", c)
	}
}

func TestRoundingIsRightOnAverage(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for _, v := range []float64{1, 1.156, 1.5, 2.99, 65536.5} {
		const n = 100_000
		sum := 0.0
		for range n {
			got := round(v, r)
			require.LessOrEqual(t, math.Abs(float64(got)-v), 1.0)
			sum += float64(got)
		}
		require.InDelta(t, v, sum/n, 4*0.5/math.Sqrt(n))
	}
	require.Equal(t, int64(1<<62), round(1e300, r))
}

// TestReservoirKeepsEachWithTheSameProbability counts how often each position of a stream
// is kept. The number of runs is large enough that each count has a normal distribution
// around its mean. The sum of the squared deviations therefore has a chi-squared
// distribution.
func TestReservoirKeepsEachWithTheSameProbability(t *testing.T) {
	const k, n, runs = 16, 100, 20_000
	r := rand.New(rand.NewPCG(3, 4))
	var kept [n]float64
	for range runs {
		var s reservoir
		for i := range n {
			if to, ok := s.slot(k, r); ok {
				to.time = int64(i)
			}
		}
		require.Len(t, s.kept, k)
		require.InDelta(t, float64(n)/k, s.factor(), 1e-12)
		for _, a := range s.kept {
			kept[a.time]++
		}
	}
	const p = float64(k) / n
	chi := 0.0
	for _, c := range kept {
		chi += (c - runs*p) * (c - runs*p) / (runs * p * (1 - p))
	}
	// The counts of a run always add up to k. This constraint removes one degree of
	// freedom and increases the other terms by the factor n/(n-1).
	const freedom = n - 1
	chi *= float64(n-1) / n
	require.InDelta(t, freedom, chi, 4.5*math.Sqrt(2*freedom))
}

// TestLimiterIsUnbiased estimates the totals of streams of allocations, which differ in
// the order of sizes. The mean of the estimates must equal the true total.
func TestLimiterIsUnbiased(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	streams := map[string]func(i int) float64{
		"equal sizes":         func(int) float64 { return 64 },
		"growing":             func(i int) float64 { return float64(i) },
		"large ones at first": func(i int) float64 { return 1e6 / float64(i+1) },
		"a rare large one":    func(i int) float64 { return map[bool]float64{true: 1e6, false: 100}[i == 777] },
		"in turn":             func(i int) float64 { return float64(i%10) * 1000 },
	}
	for name, size := range streams {
		t.Run(name, func(t *testing.T) {
			for _, n := range []int{1, 15, 16, 17, 1000} {
				const k, runs = 16, 3000
				truth := 0.0
				for i := range n {
					truth += size(i)
				}
				var sum, squares float64
				for range runs {
					var s reservoir
					for i := range n {
						if to, ok := s.slot(k, r); ok {
							to.size = uint64(size(i))
						}
					}
					total := 0.0
					for _, a := range s.kept {
						total += float64(a.size) * s.factor()
					}
					sum += total
					squares += total * total
				}
				mean := sum / runs
				sd := math.Sqrt(max(0, squares/runs-mean*mean) / runs)
				// Sizes are rounded to whole numbers, which adds an
				// error of less than 1 per event.
				require.InDelta(t, truth, mean, 4*sd+float64(n), "%d events", n)
			}
		})
	}
}
