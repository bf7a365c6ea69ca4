// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package fidelity

import "math"

const (
	// Points is how much a function's share may differ
	// between two samplers, beyond chance.
	Points = 0.02
	// OfTotal is how much a total may differ from the kernel's total, beyond chance.
	OfTotal = 0.01
	// Doubt is the accepted probability that a whole table
	// of comparisons fails by chance.
	Doubt = 1e-3
)

// Z returns the number of standard errors that each of n comparisons may be off in either
// direction. The probability that any comparison is off by more is at most Doubt.
// Bonferroni's bound is used because the comparisons depend on each other.
func Z(n int) float64 {
	return math.Sqrt2 * math.Erfcinv(Doubt/float64(max(n, 1)))
}

// Error returns how far a share of n samples may be off from the true share p, at z
// standard errors. It is the error of a binomial proportion, as if the samples were
// independent. If a sampler has a regular period, its error is smaller as long as the
// running function changes more slowly than the sampler samples. Its error is larger only
// if the program runs in step with the sampler.
func Error(p float64, n int, z float64) float64 {
	return z * math.Sqrt(p*(1-p)/float64(max(n, 1)))
}

// Chance returns how far two shares of the same function may differ by chance,
// at z standard errors. ours is a count in n samples, theirs is a count in m
// samples. The result is the error of the difference of two proportions,
// computed from the pooled proportion.
func Chance(ours, n, theirs, m int, z float64) float64 {
	p := float64(ours+theirs) / float64(max(n+m, 1))
	return math.Hypot(Error(p, n, z), Error(p, m, z))
}

// TotalChance returns how far a count of samples may be off by chance, at z
// standard errors. A sampler looked at the program at some instants, and at
// count of them the program was running. Each of parts has one unfinished
// period, which adds an error of one sample.
//
// If the instants are independent of the program, the count has a binomial distribution.
// If the period is the program's own CPU time, instants equals count, and only the
// unfinished periods contribute to the error.
func TotalChance(count, instants, parts int, z float64) float64 {
	p := min(float64(count)/float64(max(instants, 1)), 1)
	return z*math.Sqrt(float64(instants)*p*(1-p)) + float64(parts)
}
