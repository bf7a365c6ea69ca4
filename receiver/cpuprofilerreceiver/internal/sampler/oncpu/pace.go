// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package oncpu

import "time"

// pace decides the sampling frequency by its cost, and before that whether to spare the
// unwinding of stacks. It halves the frequency while the cost is above its bound and
// halving helps, and doubles it again when twice the current cost, which is the most that
// the double frequency can cost, would be well below. It has no clock: time and cost are
// arguments.
type pace struct {
	// bound is the most CPU time per time and CPU, 0 for none. interval is the time
	// over which cost is summed before it is judged. lowest is how often the
	// frequency may be halved.
	bound    float64
	interval time.Duration
	lowest   int

	// maySpare permits sparing: only the stacks of hot units are unwound. It begins when
	// the cost is above its bound, before the frequency is lowered, and ends when the cost
	// is calm.
	maySpare, sparing bool

	halvings int
	began    int64
	spent    time.Duration // when the interval began
	// cost is that of the last interval. over is the number of consecutive intervals
	// above the bound; calm that of intervals that would be below it at the double
	// frequency.
	cost       float64
	over, calm int
	// before is the cost that the last halving was to lower, 0 once that was judged.
	// rest is the number of intervals until halving is tried again after it did not
	// help, vain the number of consecutive times that it did not.
	before     float64
	rest, vain int
}

const (
	// overIntervals have to be above the bound before the frequency is halved:
	// resolving the names of new programs is expensive only once.
	overIntervals = 2
	// calmIntervals have to be calm before it is doubled: at most calmShare of the
	// bound at the double frequency. Between the two nothing changes, so that the
	// frequency does not oscillate under a load near the bound.
	calmIntervals = 3
	calmShare     = 0.75
	// helpShare is the most that may remain of the cost for halving to have helped.
	// Processes that start and end cost the same at any frequency: a lower one would
	// yield fewer samples at the same cost.
	helpShare = 0.9
	// restIntervals pass until halving is tried again after it did not help, twice as
	// many each time up to mostRestIntervals: a load changes.
	restIntervals, mostRestIntervals = 8, 128
)

// newPace returns a pace that begins at a frequency in Hz.
func newPace(bound float64, interval time.Duration, frequency int) *pace {
	p := &pace{bound: bound, interval: interval}
	for f := frequency; f > 1<<p.lowest; {
		p.lowest++ // to 1 Hz or less
	}
	return p
}

// restart begins a new interval: earlier cost is not judged.
func (p *pace) restart(now int64, spent time.Duration) {
	p.began, p.spent = now, spent
	p.over, p.calm, p.before = 0, 0, 0
}

// next adds the CPU time that was spent by now on samples of so many CPUs. It reports
// whether an interval was judged; halvings and sparing may have changed then.
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
		p.halvings-- // it did not help
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

// exceeded reports whether the bound is exceeded and a lower frequency does not
// help: it is at its lowest, or halving did not help.
func (p *pace) exceeded() bool {
	return p.vain > 0 || p.over >= overIntervals && p.halvings == p.lowest
}

// period returns the sampling period, given that without halvings.
func (p *pace) period(full time.Duration) time.Duration { return full << p.halvings }
