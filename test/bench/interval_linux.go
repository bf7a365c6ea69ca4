// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"math"
)

// interval is a mean with its 95 % confidence interval.
type interval struct {
	mean, half float64
	n          int
}

func (i interval) atMost() float64 { return i.mean + i.half }

func (i interval) String() string {
	return fmt.Sprintf("%+.2f %% (%+.2f to %+.2f)", i.mean, i.mean-i.half, i.mean+i.half)
}

// slower returns the mean difference between the first and the second value of each pair,
// in percent of the second value.
func slower(with, without []float64) interval {
	n := min(len(with), len(without))
	each := make([]float64, n)
	for i := range each {
		each[i] = 100 * (with[i]/without[i] - 1)
	}
	return meanOf(each)
}

// meanOf returns the mean and its interval according to Student's t.
// The values must be drawn independently from one distribution.
func meanOf(values []float64) interval {
	i := interval{n: len(values)}
	for _, v := range values {
		i.mean += v / float64(i.n)
	}
	if i.n < 2 {
		i.half = math.Inf(1)
		return i
	}
	var squares float64
	for _, v := range values {
		squares += (v - i.mean) * (v - i.mean)
	}
	n := float64(i.n)
	i.half = student95(n-1) * math.Sqrt(squares/(n-1)/n)
	return i
}

// student95 returns the 97.5 % quantile of Student's t, for a two-sided interval of 95 %.
// The quantile is exact for one and two degrees of freedom. Otherwise, it is approximated
// by an expansion around the quantile of the normal distribution.
func student95(degrees float64) float64 {
	switch degrees {
	case 1:
		return 12.706
	case 2:
		return 4.303
	}
	const z = 1.959964
	z3, z5, z7 := z*z*z, z*z*z*z*z, z*z*z*z*z*z*z
	return z + (z3+z)/(4*degrees) +
		(5*z5+16*z3+3*z)/(96*degrees*degrees) +
		(3*z7+19*z5+17*z3-15*z)/(384*degrees*degrees*degrees)
}
