// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package fidelity

import "math"

const (
	// Points is the allowed difference of a function's share from another sampler's, beyond
	// chance.
	Points = 0.02
	// OfTotal is the allowed difference of a total from the kernel's, beyond chance.
	OfTotal = 0.01
	// Doubt is the probability with which a whole table of comparisons may fail by chance.
	Doubt = 1e-3
)

// Z returns the number of standard errors that each of n comparisons may be off, in both
// directions, so that all of them together are off by chance as often as Doubt
// says (Bonferroni's bound: they depend on each other).
func Z(n int) float64 {
	return math.Sqrt2 * math.Erfcinv(Doubt/float64(max(n, 1)))
}

// Error returns the allowed difference of a share from its truth p in n samples, at z standard
// errors: the error of a binomial proportion, as if each sample had been drawn
// anew. A sampler that ticks evenly is off by less where what runs changes more
// slowly than it ticks, and by more only where that keeps step with the ticks.
func Error(p float64, n int, z float64) float64 {
	return z * math.Sqrt(p*(1-p)/float64(max(n, 1)))
}

// Chance returns the difference that chance allows between two shares of one truth, at z
// standard errors. ours is a share of n samples, theirs a share of m samples. The result is
// the error of the difference of two proportions, computed from the pooled proportion.
func Chance(ours, n, theirs, m int, z float64) float64 {
	p := float64(ours+theirs) / float64(max(n+m, 1))
	return math.Hypot(Error(p, n, z), Error(p, m, z))
}

// TotalChance returns the number of samples that a count may be off by chance, at z standard
// errors, where instants were looked at and count of them found the program
// running, and each of parts has an unfinished period of its own. Where the
// instants do not depend on what runs the count is binomial; where the period is
// one of the program's own CPU time, instants is count, and only the unfinished
// periods remain.
func TotalChance(count, instants, parts int, z float64) float64 {
	p := min(float64(count)/float64(max(instants, 1)), 1)
	return z*math.Sqrt(float64(instants)*p*(1-p)) + float64(parts)
}
