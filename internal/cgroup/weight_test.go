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
		{2000, 77, 170}, // as reported of runc 1.3.1 and 1.4.0
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

func TestFormulaOfAPod(t *testing.T) {
	weights := func(f weightFormula, milli ...uint64) (out []uint64) {
		for _, m := range milli {
			out = append(out, f.weight(max(2, m*1024/1000)))
		}
		return out
	}
	// made is a pod by the formulas of a kubelet and of a runtime, among others.
	made := func(kubelet, runtime weightFormula, others []uint64, milli ...uint64) pod {
		var all uint64
		for _, m := range milli {
			all += m
		}
		p := pod{containers: weights(runtime, append(milli, 0)...), weight: weights(kubelet, all)[0]}
		pods := append([]uint64{all}, others...)
		var tier uint64
		for _, m := range pods {
			tier += m
		}
		p.siblings, p.tier = weights(kubelet, pods...), weights(kubelet, tier)[0]
		return p
	}
	others := []uint64{250, 1000, 100}
	for name, tt := range map[string]struct {
		pod  pod
		want weightFormula
	}{
		"new runtime, one container":                   {made(weightLinear, weightNew, nil, 500), weightNew},
		"new runtime, several containers":              {made(weightLinear, weightNew, others, 500, 250), weightNew},
		"old runtime, several containers":              {made(weightLinear, weightLinear, nil, 500, 1000), weightLinear},
		"old runtime, one container, other pods":       {made(weightLinear, weightLinear, others, 500), weightLinear},
		"old runtime, one container, alone":            {made(weightLinear, weightLinear, nil, 500), ""},
		"all new, one container, alone":                {made(weightNew, weightNew, nil, 500), ""},
		"all new, one container, other pods":           {made(weightNew, weightNew, others, 500), weightNew},
		"all new, several containers":                  {made(weightNew, weightNew, nil, 500, 1000), weightNew},
		"containers of before and after an upgrade":    {pod{containers: []uint64{20, 170}, weight: 100}, ""},
		"nothing but containers without a request":     {made(weightLinear, weightNew, nil, 0, 0), ""},
		"an unknown weight":                            {pod{}, ""},
		"a pod that is larger than what its parts ask": {pod{containers: []uint64{39, 1}, weight: 400}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			got, ok := tt.pod.formula()
			require.Equal(t, tt.want, got, "%+v", tt.pod)
			require.Equal(t, tt.want != "", ok)
		})
	}
}
