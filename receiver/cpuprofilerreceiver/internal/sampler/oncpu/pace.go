// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package oncpu

import "time"

// pace adapts the sampling frequency so that the cost of sampling stays below a bound.
// While the cost is above the bound, pace first restricts unwinding to the stacks of hot
// units, if permitted. Then it halves the frequency, as long as halving reduces the cost.
// Doubling the frequency at most doubles the cost, so pace doubles the frequency again if
// the doubled cost is well below the bound. pace has no clock. The time and the cost are
// arguments of its methods.
type pace struct {
	// bound is the maximum CPU time, as a fraction of the time of each sampled CPU. 0 means
	// no bound. interval is the time over which cost is summed before it is judged. lowest
	// is the maximum number of halvings.
	bound    float64
	interval time.Duration
	lowest   int

	// maySpare permits sparing. sparing is true while only the stacks of hot units are
	// unwound. Sparing begins when the cost is above its bound, before the frequency is
	// lowered. It ends after calmIntervals calm intervals at the full frequency.
	maySpare, sparing bool

	halvings int
	began    int64
	spent    time.Duration // total CPU time at the start of the interval
	// cost is the cost of the last interval. over is the number of consecutive intervals
	// above the bound. calm is the number of consecutive intervals that would be well below
	// the bound at double the frequency.
	cost       float64
	over, calm int
	// before is the cost before the last halving, or 0 once this halving was judged. rest
	// is the number of intervals before halving is tried again after it did not help. vain
	// is the number of consecutive halvings that did not help.
	before     float64
	rest, vain int
}

const (
	// overIntervals is the number of intervals above the bound before the frequency is
	// halved. A single interval is not enough, because resolving the names of new programs is
	// expensive only once.
	overIntervals = 2
	// calmIntervals is the number of calm intervals before the frequency is doubled. An
	// interval is calm if double its cost is at most calmShare of the bound. calmShare is less
	// than 1, so that the frequency does not oscillate.
	calmIntervals = 3
	calmShare     = 0.75
	// helpShare is the largest share of the cost that may remain after a halving that
	// helped. Halving may not help, because processes that start and end cost the same at any
	// frequency. A lower frequency would then yield fewer samples at the same cost.
	helpShare = 0.9
	// restIntervals is the number of intervals until halving is tried again after it did
	// not help. The number doubles with each failed attempt, up to mostRestIntervals. Attempts
	// continue because the load may change.
	restIntervals, mostRestIntervals = 8, 128
)

// newPace returns a pace that starts at a frequency in Hz.
func newPace(bound float64, interval time.Duration, frequency int) *pace {
	p := &pace{bound: bound, interval: interval}
	for f := frequency; f > 1<<p.lowest; {
		p.lowest++ // down to 1 Hz or less
	}
	return p
}

// restart starts a new interval and discards the costs of earlier intervals.
func (p *pace) restart(now int64, spent time.Duration) {
	p.began, p.spent = now, spent
	p.over, p.calm, p.before = 0, 0, 0
}

// next is called with the total CPU time spent on samples and the number of sampled CPUs.
// It reports whether an interval was judged. halvings and sparing may then have changed.
func (p *pace) next(now int64, spent time.Duration, cpus int) (judged bool) {
	elapsed := now - p.began
	if p.bound <= 0 || elapsed < int64(p.interval) || cpus <= 0 {
		return false
	}
	p.cost = float64(spent-p.spent) / float64(elapsed) / float64(cpus)
	p.began, p.spent = now, spent
	switch {
	case p.cost > p.bound:
		p.over, p.calm = p.over+1, 0
	case 2*p.cost <= calmShare*p.bound:
		p.over, p.calm = 0, p.calm+1
	default:
		p.over, p.calm = 0, 0
	}
	p.rest = max(0, p.rest-1)
	switch {
	case p.maySpare && !p.sparing && p.over >= overIntervals:
		p.sparing, p.over = true, 0
	case p.over >= overIntervals && p.before > 0 && p.cost > helpShare*p.before:
		p.halvings-- // the last halving did not help
		p.rest = min(restIntervals<<p.vain, mostRestIntervals)
		p.vain = min(p.vain+1, 8)
		p.over, p.before = 0, 0
	case p.over >= overIntervals && p.halvings < p.lowest && p.rest == 0:
		p.halvings++
		p.over, p.before = 0, p.cost
	case p.over == 0:
		p.before, p.vain = 0, 0
	}
	switch calm := p.calm >= calmIntervals; {
	case calm && p.halvings > 0:
		p.halvings--
		p.calm = 0
	case p.sparing && calm:
		p.sparing, p.calm = false, 0
	}
	return true
}

// exceeded reports whether the cost exceeds its bound and a lower frequency does not help.
// Either the frequency is already the lowest, or halving the frequency did not help.
func (p *pace) exceeded() bool {
	return p.vain > 0 || p.over >= overIntervals && p.halvings == p.lowest
}

// period returns the sampling period, given the period without halvings.
func (p *pace) period(full time.Duration) time.Duration { return full << p.halvings }
