// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"math"
	"sort"
)

// A weightFormula converts the CPU shares of a request into a cpu.weight of the v2
// tree, as a container runtime did. Shares go from 2 to 262144, 1024 for a core, and
// weights from 1 to 10000.
type weightFormula string

// The formulas.
const (
	// weightLinear is the formula of runc before 1.3.2, of crun before 1.23, and of the
	// kubelet for pods: one core is a weight of 39.
	weightLinear weightFormula = "linear"
	// weightNew is the formula of runc from 1.3.2 and of crun from 1.23 on: one core is
	// a weight of 100.
	weightNew weightFormula = "new"
)

const (
	minShares, maxShares = 2, 1 << 18
	minWeight, maxWeight = 1, 10_000
	sharesPerCore        = 1024
)

// weight returns the weight that the formula gives for shares.
func (f weightFormula) weight(shares uint64) uint64 {
	shares = min(max(shares, minShares), maxShares)
	if f == weightLinear {
		return 1 + (shares-minShares)*(maxWeight-1)/(maxShares-minShares)
	}
	// The curve through (2, 1), (1024, 100) and (262144, 10000).
	l := math.Log2(float64(shares))
	return uint64(math.Ceil(math.Pow(10, (l*l+125*l)/612-7.0/34)))
}

// span is a range of shares that a formula gives one weight for, both ends included.
type span struct{ lo, hi float64 }

// shares is the inverse of weight. Every weight has shares.
func (f weightFormula) shares(weight uint64) span {
	return span{float64(f.least(weight)), float64(f.least(weight+1) - 1)}
}

// least returns the fewest shares that give at least a weight.
func (f weightFormula) least(weight uint64) uint64 {
	more := sort.Search(maxShares+1-minShares, func(i int) bool { return f.weight(uint64(minShares+i)) >= weight })
	return uint64(minShares + more)
}

// cores returns the request in a span of shares: the roundest number of thousandths
// of a core, since people choose requests, else the middle.
func (s span) cores() float64 {
	for _, step := range [...]float64{1000, 500, 250, 100, 50, 25, 10, 5} {
		// Runtimes are given milli × 1024 / 1000, rounded down.
		first := math.Ceil(s.lo*1000/sharesPerCore/step) * step
		if milli := first; milli > 0 && math.Floor(milli*sharesPerCore/1000) <= s.hi {
			return milli / 1000
		}
	}
	return (s.lo + s.hi) / 2 / sharesPerCore
}
