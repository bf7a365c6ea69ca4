// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestWeightOfShares(t *testing.T) {
	for _, tt := range []struct{ shares, linear, other uint64 }{
		{2, 1, 1},
		{102, 4, 17},
		{512, 20, 59},
		{1024, 39, 100},
		{2000, 77, 170}, // reported by runc 1.3.1 and 1.4.0
		{2048, 79, 174},
		{262144, 10000, 10000},
		{0, 1, 1},
		{1 << 20, 10000, 10000},
	} {
		require.Equal(t, tt.linear, weightLinear.weight(tt.shares), "%d shares", tt.shares)
		require.Equal(t, tt.other, weightNew.weight(tt.shares), "%d shares", tt.shares)
	}
}

func TestSharesOfWeightIsTheInverse(t *testing.T) {
	for _, f := range []weightFormula{weightLinear, weightNew} {
		next := float64(minShares)
		for w := uint64(1); w <= maxWeight; w++ {
			s := f.shares(w)
			require.Equal(t, next, s.lo, "%s: no shares are left out before weight %d", f, w)
			require.GreaterOrEqual(t, s.hi, s.lo, "%s: weight %d", f, w)
			require.Equal(t, w, f.weight(uint64(s.lo)))
			require.Equal(t, w, f.weight(uint64(s.hi)))
			cores := s.cores()
			require.Equal(t, w, f.weight(uint64(math.Floor(cores*sharesPerCore+1e-9))), "%s: what is answered for weight %d has it", f, w)
			next = s.hi + 1
		}
		require.Equal(t, float64(maxShares+1), next)
	}
}

func TestCoresOfWeight(t *testing.T) {
	for _, tt := range []struct {
		formula weightFormula
		milli   []float64
	}{
		{weightLinear, []float64{100, 250, 500, 1000, 1500, 2000, 4000, 16000}},
		{weightNew, []float64{50, 100, 250, 500, 1000, 1500, 2000, 4000, 16000}},
	} {
		for _, milli := range tt.milli {
			w := tt.formula.weight(uint64(milli * 1024 / 1000))
			require.Equal(t, milli/1000, tt.formula.shares(w).cores(), "%s, %gm", tt.formula, milli)
		}
	}
}
