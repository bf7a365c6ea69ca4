// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package traces

import (
	"math"
	"slices"
)

const (
	neededHot = 10 // number of seconds of an episode that a profile must contain
	kept      = 10 // number of seconds before the opening that a flight recorder adds
	aftermath = 10 // number of seconds after hot time in which an opening is late but not false
)

// score is the result of an algorithm on traces.
type score struct {
	traces, episodes int
	hits, keptHits   int
	latencies        []float64 // latencies of the hits
	falseAlarms      int
	cool             int // number of traces with cool time
	alarmed          int // number of these traces with a false alarm
	// right, wrong and neither count the traces with an episode. Each trace counts by its
	// first opening. neither also counts traces without an opening.
	right, wrong, neither int
	losses                []loss
}

// loss counts the mistakes of an algorithm on one trace.
type loss struct {
	trace               *trace
	missed, falseAlarms []int // starts of missed episodes, and times of false openings
}

func (s *score) misses() int { return s.episodes - s.hits }

// cost is the number of mistakes. The best parameters have the lowest cost.
func (s *score) cost() int { return s.misses() + s.falseAlarms }

func (s *score) meanLatency() float64 {
	var sum float64
	for _, l := range s.latencies {
		sum += l
	}
	return sum / float64(max(1, len(s.latencies)))
}

func (s *score) medianLatency() (median, least, most float64) {
	if len(s.latencies) == 0 {
		return math.NaN(), math.NaN(), math.NaN()
	}
	l := slices.Sorted(slices.Values(s.latencies))
	n := len(l)
	return (l[(n-1)/2] + l[n/2]) / 2, l[0], l[n-1]
}

// run scores an algorithm on traces by the rules in docs/trigger-accuracy/labelling.md.
func run(a algorithm, on []*trace) *score {
	var s score
	for _, tr := range on {
		s.add(tr, a.play(tr))
	}
	return &s
}

func (s *score) add(tr *trace, opened []int) {
	s.traces++
	s.episodes += len(tr.hot)
	lost := loss{trace: tr}
	for _, e := range tr.hot {
		if slices.ContainsFunc(opened, func(t int) bool { return t <= e.To+aftermath && holds(e, t-kept, t+gateOpen) }) {
			s.keptHits++
		}
		hit := slices.IndexFunc(opened, func(t int) bool { return hits(e, t) })
		if hit < 0 {
			lost.missed = append(lost.missed, e.From)
			continue
		}
		s.hits++
		s.latencies = append(s.latencies, float64(max(0, opened[hit]-e.From)))
	}
	for _, t := range opened {
		if tr.isFalse(t) {
			lost.falseAlarms = append(lost.falseAlarms, t)
		}
	}
	s.falseAlarms += len(lost.falseAlarms)
	if len(tr.labels.Stretches(Cool)) > 0 {
		s.cool++
		if len(lost.falseAlarms) > 0 {
			s.alarmed++
		}
	}
	if len(tr.hot) > 0 {
		switch {
		case len(opened) == 0:
			s.neither++
		case tr.isHit(opened[0]):
			s.right++
		case tr.isFalse(opened[0]):
			s.wrong++
		default:
			s.neither++
		}
	}
	if len(lost.missed)+len(lost.falseAlarms) > 0 {
		s.losses = append(s.losses, lost)
	}
}

func hits(e Stretch, t int) bool { return t < e.To && holds(e, t, t+gateOpen) }

// holds reports whether a profile of [from, to) contains enough seconds of an episode.
func holds(e Stretch, from, to int) bool {
	return min(e.To, to)-max(e.From, from) >= neededHot
}

func (tr *trace) isHit(t int) bool {
	return slices.ContainsFunc(tr.hot, func(e Stretch) bool { return hits(e, t) })
}

func (tr *trace) isFalse(t int) bool {
	after := func(r Stretch) bool { return t >= r.To && t-r.To <= aftermath }
	return tr.labels.At(t) == Cool && !tr.isHit(t) &&
		!slices.ContainsFunc(tr.hot, after) && !slices.ContainsFunc(tr.grey, after)
}

// best returns the index of the algorithm with the lowest cost. If several algorithms have
// this cost, the algorithm with the lowest mean latency is best. If the mean latencies are
// equal too, the first algorithm is best.
func best(of []algorithm, on []*trace) int {
	found, least := -1, (*score)(nil)
	for i, a := range of {
		s := run(a, on)
		if found < 0 || s.cost() < least.cost() || s.cost() == least.cost() && s.meanLatency() < least.meanLatency() {
			found, least = i, s
		}
	}
	return found
}

// wilson returns the 95 % confidence interval of a rate.
func wilson(k, n int) (low, high float64) {
	if n == 0 {
		return 0, 1
	}
	const z = 1.959964
	p, m := float64(k)/float64(n), float64(n)
	center, half := p+z*z/(2*m), z*math.Sqrt(p*(1-p)/m+z*z/(4*m*m))
	return max(0, (center-half)/(1+z*z/m)), min(1, (center+half)/(1+z*z/m))
}
