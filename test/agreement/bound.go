// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package agreement

import "time"

// ofLimit is the difference of two figures that is always allowed: one point of
// the limit.
const ofLimit = 0.01

// A Bound is the allowed difference of another program's figure from ours.
//
// The kernel brings its CPU counters up to date once per scheduler tick on each
// CPU. Two readings of the same moment, one before and one after a tick, differ by
// a tick per CPU that the unit runs on, and so does a span between such readings.
type Bound struct {
	Tick  time.Duration // of the scheduler
	CPUs  int           // that the unit runs on at once, at most
	Limit float64       // cores
}

// Total returns the allowed difference of the tool's total from ours, in cores.
func (b Bound) Total(f Figures) float64 {
	return b.cores(f, f.TotalStep) + f.Total*f.Clock
}

// Split returns the allowed difference of the tool's user and system figures from ours,
// in cores.
// OurStep is by how much ours may be off because their file counts in steps.
func (b Bound) Split(f Figures, ourStep time.Duration) float64 {
	return b.cores(f, f.SplitStep+ourStep) + f.Total*f.Clock
}

func (b Bound) cores(f Figures, step time.Duration) float64 {
	off := time.Duration(b.CPUs)*b.Tick + step
	return ofLimit*b.Limit + off.Seconds()/f.Elapsed.Seconds()
}

// Apart returns the distance of a figure from a range; 0 inside.
func Apart(figure, low, high float64) float64 {
	return max(low-figure, figure-high, 0)
}
