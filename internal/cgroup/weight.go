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

// sum adds up the shares of several weights.
func (f weightFormula) sum(weights []uint64) span {
	var total span
	for _, w := range weights {
		s := f.shares(w)
		total.lo += s.lo
		total.hi += s.hi
	}
	return total
}

// matches reports whether the sum of n parts can be the shares of the whole. The
// shares of each part are rounded down, and a part without a request has 2 that the
// whole does not count.
func (s span) matches(whole span, n int) bool {
	return s.lo-float64(minShares*n) <= whole.hi && s.hi+float64(n) >= whole.lo
}

// A pod is the weights in and around a Kubernetes pod: those of its containers, its
// own, those of all burstable pods, and that of the cgroup that holds these.
type pod struct {
	containers []uint64
	weight     uint64
	siblings   []uint64
	tier       uint64
}

// formula returns the formula of the containers' weights if only one is possible.
// The kubelet gives a pod the sum of its containers' requests, and the burstable
// pods together the sum of theirs, by a formula of its own. So the sums match for the
// formulas that were used, and rarely for others.
func (p pod) formula() (weightFormula, bool) {
	formulas := [...]weightFormula{weightLinear, weightNew}
	var kubelet []weightFormula
	for _, k := range formulas {
		if k.sum(p.siblings).matches(k.shares(p.tier), len(p.siblings)) {
			kubelet = append(kubelet, k)
		}
	}
	if len(kubelet) != 1 || len(p.siblings) < 2 {
		kubelet = formulas[:]
	}
	var found []weightFormula
	for _, runtime := range formulas {
		for _, k := range kubelet {
			if runtime.sum(p.containers).matches(k.shares(p.weight), len(p.containers)) {
				found = append(found, runtime)
				break
			}
		}
	}
	if len(found) != 1 {
		return "", false
	}
	return found[0], true
}
