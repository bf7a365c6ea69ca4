// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package fidelity_test

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/hotprofile/hotprofile/test/fidelity"
)

// drawn draws n samples of a program that spends the given share of its time in f.
func drawn(random *rand.Rand, n int, share float64) fidelity.Profile {
	in := 0
	for range n {
		if random.Float64() < share {
			in++
		}
	}
	frame := func(name string) []fidelity.Frame { return []fidelity.Frame{{Functions: []string{name}}} }
	return fidelity.Profile{Samples: []fidelity.Sample{
		{Stack: frame("f"), Count: in},
		{Stack: frame("g"), Count: n - in},
	}}
}

func disagree(ours, theirs fidelity.Profile) bool {
	for _, r := range fidelity.Compare(ours, theirs, fidelity.Self, 0.05) {
		if r.Disagrees() {
			return true
		}
	}
	return false
}

func TestSamplersOfOneTruthAgree(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for _, share := range []float64{0.05, 0.1, 0.3, 0.5} {
		for range 200 {
			require.False(t, disagree(drawn(random, 16000, share), drawn(random, 2400, share)), "share %v", share)
		}
	}
}

func TestASamplerThatIsOffIsSeen(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	for range 200 {
		require.True(t, disagree(drawn(random, 16000, 0.3), drawn(random, 2400, 0.4)), "ten points off")
		require.True(t, disagree(drawn(random, 16000, 0.05), drawn(random, 2400, 0.12)), "seven points off")
	}
}

func TestChanceIsThatOfTheSamplesThereAre(t *testing.T) {
	require.InDelta(t, 3.29, fidelity.Z(1), 0.01, "one comparison in a thousand, on both sides")
	require.Greater(t, fidelity.Z(20), fidelity.Z(1))
	require.Less(t, fidelity.Chance(3000, 10000, 3000, 10000, 1), fidelity.Chance(300, 1000, 300, 1000, 1))
	require.InDelta(t, 0.00648, fidelity.Chance(3000, 10000, 3000, 10000, 1), 1e-4)
	require.InDelta(t, 16, fidelity.TotalChance(10000, 10000, 16, 3), 1e-9, "nothing is left to chance but unfinished periods")
	require.InDelta(t, 3*50, fidelity.TotalChance(5000, 10000, 0, 3), 1e-9)
}
