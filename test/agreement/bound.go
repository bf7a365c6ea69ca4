// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package agreement

import "time"

// ofLimit is the share of the limit by which two figures may always differ.
const ofLimit = 0.01

// Bound computes the allowed difference between another program's figure and our figure.
//
// The kernel updates its CPU counters once per scheduler tick on each CPU. If two
// readings are taken at nearly the same moment, a tick can occur between them. The two
// readings then differ by one tick for each CPU that the unit runs on. The figures have
// the same error, because a figure is the difference of two such readings.
type Bound struct {
	Tick  time.Duration // scheduler tick
	CPUs  int           // maximum number of CPUs that the unit runs on at once
	Limit float64       // in cores
}

// Total returns the allowed difference, in cores, between the tool's total and our total.
func (b Bound) Total(f Figures) float64 {
	return b.cores(f, f.TotalStep) + f.Total*f.Clock
}

// Split returns the allowed difference, in cores, between the tool's user and
// system figures and our own figures. ourStep is the resolution of the file
// that our figures are read from.
func (b Bound) Split(f Figures, ourStep time.Duration) float64 {
	return b.cores(f, f.SplitStep+ourStep) + f.Total*f.Clock
}

func (b Bound) cores(f Figures, step time.Duration) float64 {
	off := time.Duration(b.CPUs)*b.Tick + step
	return ofLimit*b.Limit + off.Seconds()/f.Elapsed.Seconds()
}

// Apart returns the distance of a figure from a range. It is 0 inside the range.
func Apart(figure, low, high float64) float64 {
	return max(low-figure, figure-high, 0)
}
