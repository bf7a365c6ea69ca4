// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package fidelity

import "math"

const (
	// Points is the maximum difference between a function's shares in two samplers, in
	// addition to the difference by chance.
	Points = 0.02
	// OfTotal is the maximum relative difference between a total and the kernel's total,
	// in addition to the difference by chance.
	OfTotal = 0.01
	// Doubt is the accepted probability that a whole table
	// of comparisons fails by chance.
	Doubt = 1e-3
)

// Z returns the number of standard errors by which each of n comparisons may be off in
// either direction. The probability that any comparison is off by more is at most Doubt.
// Bonferroni's bound is used because the comparisons depend on each other.
func Z(n int) float64 {
	return math.Sqrt2 * math.Erfcinv(Doubt/float64(max(n, 1)))
}

// Error returns the maximum difference between a share of n samples and the true share p,
// at z standard errors. It is the error of a binomial proportion, as if the samples were
// independent. The error of a sampler with a regular period is smaller as long as the
// running function changes more slowly than the sampler samples. The error is larger only
// if the program runs in step with the sampler.
func Error(p float64, n int, z float64) float64 {
	return z * math.Sqrt(p*(1-p)/float64(max(n, 1)))
}

// Chance returns the maximum difference between two shares of the same function that
// chance can explain, at z standard errors. ours is a count in n samples, and theirs is
// a count in m samples. The result is the error of the difference of two proportions,
// computed from the pooled proportion.
func Chance(ours, n, theirs, m int, z float64) float64 {
	p := float64(ours+theirs) / float64(max(n+m, 1))
	return math.Hypot(Error(p, n, z), Error(p, m, z))
}

// TotalChance returns the maximum error by chance of a count of samples, at z standard
// errors. instants is the number of moments at which the sampler checked whether the program
// was running. count is the number of these moments at which the program was running. Each
// of parts has one unfinished period, which adds an error of one sample.
//
// If the instants are independent of the program, the count has a binomial distribution.
// If the period is the program's own CPU time, instants equals count, and only the
// unfinished periods contribute to the error.
func TotalChance(count, instants, parts int, z float64) float64 {
	p := min(float64(count)/float64(max(instants, 1)), 1)
	return z*math.Sqrt(float64(instants)*p*(1-p)) + float64(parts)
}
