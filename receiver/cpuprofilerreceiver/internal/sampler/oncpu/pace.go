// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package oncpu

import "time"

// pace decides how often is sampled, by what it costs. It halves the frequency
// while the cost is above its bound and halving helps, and doubles it again when
// twice the cost of now, which is the most that the double can cost, would be well
// below. It has no clock: time and cost are arguments.
type pace struct {
	// bound is the most CPU time per time and CPU, 0 for none; window how long cost
	// is added up before it is judged; lowest how often the frequency may be halved.
	bound  float64
	window time.Duration
	lowest int

	halvings int
	began    int64
	spent    time.Duration // when the window began
	// cost is that of the last window; over and calm are how many windows in a row
	// were above the bound, and would be below it at the double frequency.
	cost       float64
	over, calm int
	// before is the cost that the last halving was to lower, 0 where that has been
	// judged; rest is how many windows pass until halving is tried again after it
	// was in vain, and vain how often in a row it was.
	before     float64
	rest, vain int
}

const (
	// overWindows have to be above the bound before the frequency is halved: names
	// of programs that are seen for the first time cost much once.
	overWindows = 2
	// calmWindows have to be calm before it is doubled, at most calmShare of the
	// bound at the double frequency: what is between is left as it is, so that a
	// load near the bound does not have the frequency go up and down.
	calmWindows = 3
	calmShare   = 0.75
	// helpShare is the most that is left of the cost where halving has helped.
	// Processes that start and end cost the same at any frequency: lowering it for
	// them would end in no profile and the same cost.
	helpShare = 0.9
	// restWindows pass until what was in vain is tried again, twice as many each
	// time up to mostRestWindows: a load changes.
	restWindows, mostRestWindows = 8, 128
)

// newPace begins at a frequency in Hz.
func newPace(bound float64, window time.Duration, frequency int) *pace {
	p := &pace{bound: bound, window: window}
	for f := frequency; f > 1<<p.lowest; {
		p.lowest++ // to 1 Hz, or less where halving does not meet it
	}
	return p
}

// restart begins a window anew: what came before is not to be judged.
func (p *pace) restart(now int64, spent time.Duration) {
	p.began, p.spent = now, spent
	p.over, p.calm, p.before = 0, 0, 0
}

// next takes the CPU time that was spent by now, on samples of so many CPUs. It
// reports whether a window has been judged; halvings may have changed then.
func (p *pace) next(now int64, spent time.Duration, cpus int) (judged bool) {
	elapsed := now - p.began
	if p.bound <= 0 || elapsed < int64(p.window) || cpus <= 0 {
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
	case p.over >= overWindows && p.before > 0 && p.cost > helpShare*p.before:
		p.halvings-- // it was in vain
		p.rest = min(restWindows<<p.vain, mostRestWindows)
		p.vain = min(p.vain+1, 8)
		p.over, p.before = 0, 0
	case p.over >= overWindows && p.halvings < p.lowest && p.rest == 0:
		p.halvings++
		p.over, p.before = 0, p.cost
	case p.over == 0:
		p.before, p.vain = 0, 0
	}
	if p.calm >= calmWindows && p.halvings > 0 {
		p.halvings--
		p.calm = 0
	}
	return true
}

// exceeded says that the bound is exceeded and lowering the frequency further does
// not do: it is at its lowest, or that was in vain.
func (p *pace) exceeded() bool {
	return p.vain > 0 || p.over >= overWindows && p.halvings == p.lowest
}

// period is the sampling period, given that of no halving.
func (p *pace) period(full time.Duration) time.Duration { return full << p.halvings }
