// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"math"
	"sort"
)

// A weightFormula is the formula by which a container runtime converts the CPU shares of a
// request into a cpu.weight of the v2 tree. Shares range from 2 to 262144, with 1024 per
// core. Weights range from 1 to 10000.
type weightFormula string

// These are the formulas that container runtimes use.
const (
	// weightLinear is the formula of runc before 1.3.2, of crun before 1.23, and of the
	// kubelet for pods. With this formula, one core has a weight of 39.
	weightLinear weightFormula = "linear"
	// weightNew is the formula of runc since 1.3.2 and of crun since 1.23. With this
	// formula, one core has a weight of 100.
	weightNew weightFormula = "new"
)

const (
	minShares, maxShares = 2, 1 << 18
	minWeight, maxWeight = 1, 10_000
	sharesPerCore        = 1024
)

// weight returns the weight that the formula assigns to shares.
func (f weightFormula) weight(shares uint64) uint64 {
	shares = min(max(shares, minShares), maxShares)
	if f == weightLinear {
		return 1 + (shares-minShares)*(maxWeight-1)/(maxShares-minShares)
	}
	// This curve passes through (2, 1), (1024, 100) and (262144, 10000).
	l := math.Log2(float64(shares))
	return uint64(math.Ceil(math.Pow(10, (l*l+125*l)/612-7.0/34)))
}

// span is the range of shares that a formula converts into the same
// weight. The range includes lo and hi.
type span struct{ lo, hi float64 }

// shares returns the span of shares that result in a weight. The span is never empty.
func (f weightFormula) shares(weight uint64) span {
	return span{float64(f.least(weight)), float64(f.least(weight+1) - 1)}
}

// least returns the smallest number of shares that result in at least the given weight.
func (f weightFormula) least(weight uint64) uint64 {
	more := sort.Search(maxShares+1-minShares, func(i int) bool { return f.weight(uint64(minShares+i)) >= weight })
	return uint64(minShares + more)
}

// cores returns the most likely request in a span of shares. It prefers the
// roundest number of millicores, because people usually choose round numbers.
// Without a round number it returns the middle.
func (s span) cores() float64 {
	for _, step := range [...]float64{1000, 500, 250, 100, 50, 25, 10, 5} {
		// Runtimes receive milli × 1024 / 1000, rounded down.
		first := math.Ceil(s.lo*1000/sharesPerCore/step) * step
		if milli := first; milli > 0 && math.Floor(milli*sharesPerCore/1000) <= s.hi {
			return milli / 1000
		}
	}
	return (s.lo + s.hi) / 2 / sharesPerCore
}
