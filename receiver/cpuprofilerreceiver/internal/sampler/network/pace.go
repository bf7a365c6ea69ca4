// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package network

import (
	"math"
	"slices"
	"time"

	"github.com/hotprofile/hotprofile/internal/perfevent"
)

// pace determines the fraction of calls that are sampled, by setting the number of bytes
// per sample for each target and kind. A flow that needs less than its share of the bound
// is sampled completely. pace does no I/O and has no clock.
type pace struct {
	// most is the bound on samples per second.
	most  int
	flows map[flowID]*flow
	begin int64 // start of the current span
	total int   // samples in the current span
}

type flowID struct {
	of   *perfevent.Attachment
	kind kind
}

// flow represents the calls of one kind by one target.
type flow struct {
	parts []part
	// fresh reports whether the flow belongs to a new target.
	fresh bool
	// calm is the number of consecutive spans with room for more samples.
	calm int
	// demand is the number of calls in the span.
	demand float64
}

// part represents one source of a flow.
type part struct {
	index int // index of the tracepoint
	size  float64
	hits  int // hits in the current span
	// mean is the average number of calls per sample. The actual number is drawn around the
	// mean. drawn is the time of the last draw. sinceDraw is the number of samples since then.
	mean      int
	sinceDraw int
	drawn     int64
}

// changes contains the new means by target and index of the tracepoint. 0 means unchanged.
type changes map[*perfevent.Attachment][]int

func (c *changes) set(of *perfevent.Attachment, t *part, sources int, now int64) {
	if *c == nil {
		*c = make(changes)
	}
	if (*c)[of] == nil {
		(*c)[of] = make([]int, sources)
	}
	(*c)[of][t.index] = t.mean
	t.sinceDraw, t.drawn = 0, now
}

const (
	// span is the time between two adjustments of the sampling rates. Too many samples
	// cause an earlier adjustment.
	span = int64(200 * time.Millisecond)
	// leastSpan is the shortest span from which a meaningful rate can be computed.
	leastSpan = int64(10 * time.Millisecond)
	// calmSpans is the number of calm spans before more calls are sampled again.
	calmSpans = 10
	// aim is the fraction of the bound that pace aims for. The margin is needed because a
	// mean is raised only by a quarter or more. Smaller changes are not worth a system
	// call per event.
	aim = 0.8
	// redrawn is the number of samples per CPU after which n is drawn again. redrawWait is
	// the minimum time between two draws, because a draw takes a system call per event and
	// samples one more call.
	redrawn    = 50
	redrawWait = int64(50 * time.Millisecond)
)

func newPace(most int, now int64) *pace {
	return &pace{most: most, flows: make(map[flowID]*flow), begin: now}
}

// began registers the sources of a new target that are not registered yet. If everywhere
// is set, it registers only the source of failures, which is sampled on all CPUs.
// Otherwise it registers all other sources.
func (p *pace) began(of *perfevent.Attachment, sources []source, everywhere bool) {
	for i := range sources {
		s := &sources[i]
		if (s.kind == failures) != everywhere {
			continue
		}
		id := flowID{of, s.kind}
		f := p.flows[id]
		if f == nil {
			f = &flow{fresh: true}
			p.flows[id] = f
		}
		if f.part(i) == nil {
			f.parts = append(f.parts, part{index: i, size: s.size, mean: max(s.every, 1)})
		}
	}
}

// part returns the part of a source by its index, or nil.
func (f *flow) part(index int) *part {
	for i := range f.parts {
		if f.parts[i].index == index {
			return &f.parts[i]
		}
	}
	return nil
}

// every returns the largest mean of all sources.
func (p *pace) every() int {
	most := 1
	for _, f := range p.flows {
		for _, t := range f.parts {
			most = max(most, t.mean)
		}
	}
	return most
}

// sampled counts a sample of a source, with the number of hits that it represents.
func (p *pace) sampled(of *perfevent.Attachment, index int, k kind, hits uint64) {
	f := p.flows[flowID{of, k}]
	if f == nil {
		return // the target was detached
	}
	t := f.part(index)
	t.hits += int(hits)

	t.sinceDraw++
	p.total++
}

// forget removes a detached target.
func (p *pace) forget(of *perfevent.Attachment) {
	for id := range p.flows {
		if id.of == of {
			delete(p.flows, id)
		}
	}
}

// next returns the means to set now. A mean is set if it has changed, or if n is drawn
// again for its source. cpus and sources are the numbers of CPUs and sources.
func (p *pace) next(now int64, cpus, sources int) (c changes) {
	elapsed := now - p.begin
	early := elapsed >= leastSpan && int64(p.total)*int64(time.Second) > int64(p.most)*span
	if elapsed >= span || early {
		p.adjust(float64(max(elapsed, leastSpan))/float64(time.Second), func(of *perfevent.Attachment, t *part) {
			c.set(of, t, sources, now)
		})
		p.begin, p.total = now, 0
	}
	for id, f := range p.flows {
		for i := range f.parts {
			if t := &f.parts[i]; t.mean > 1 && t.sinceDraw >= redrawn*cpus && now-t.drawn >= redrawWait {
				c.set(id.of, t, sources, now)
			}
		}
	}
	return c
}

// adjust ends a span and adapts the number of calls per sample. seconds is the length of the
// span. set applies each new number.
func (p *pace) adjust(seconds float64, set func(*perfevent.Attachment, *part)) {
	budget := aim * float64(p.most) * seconds
	share := p.share(budget)
	for id, f := range p.flows {
		bytes := f.bytesPerSample(share)
		more, less := false, f.fresh
		for i := range f.parts {
			t := &f.parts[i]
			want := meanFor(bytes, t.size)
			// Small differences are ignored.
			less = less || 4*want > 5*t.mean
			more = more || 4*want <= 3*t.mean
		}
		f.fresh = false
		if f.calm++; less || !more {
			f.calm = 0
		}
		if less || f.calm >= calmSpans {
			f.calm = 0
			for i := range f.parts {
				t := &f.parts[i]
				if want := meanFor(bytes, t.size); want != t.mean {
					t.mean = want
					set(id.of, t)
				}
			}
		}
		f.endSpan()
	}
}

func (f *flow) endSpan() {
	for i := range f.parts {
		f.parts[i].hits = 0
	}
}

// share returns the maximum number of samples per flow in a span, so that all flows
// together stay within budget.
func (p *pace) share(budget float64) float64 {
	demands := make([]float64, 0, len(p.flows))
	for _, f := range p.flows {
		f.demand = 0
		for _, t := range f.parts {
			f.demand += float64(t.hits)
		}
		demands = append(demands, f.demand)
	}
	slices.Sort(demands)
	for i, d := range demands {
		if d*float64(len(demands)-i) > budget {
			return budget / float64(len(demands)-i)
		}
		budget -= d
	}
	return math.Inf(1)
}

// meanFor returns the number of calls per sample for calls of the given size.
func meanFor(bytesPerSample, size float64) int {
	return int(min(max(math.Round(bytesPerSample/size), 1), maxMean))
}

// maxMean bounds the number of calls per sample.
const maxMean = 1 << 24

// bytesPerSample returns the smallest number of bytes per sample that would have
// limited the samples of the span to most.
func (f *flow) bytesPerSample(most float64) float64 {
	if f.demand <= most {
		return 0
	}
	samples := func(bytes float64) (n float64) {
		for _, t := range f.parts {
			n += float64(t.hits) / float64(meanFor(bytes, t.size))
		}
		return n
	}
	low, high := 0.0, 1.0
	for samples(high) > most && high < maxMean*f.parts[0].size {
		low, high = high, 2*high
	}
	for high-low > low/64 && high-low > 1 {
		if middle := (low + high) / 2; samples(middle) > most {
			low = middle
		} else {
			high = middle
		}
	}
	return high
}

// restart begins a new span.
func (p *pace) restart(now int64) {
	p.begin, p.total = now, 0
	for _, f := range p.flows {
		f.endSpan()
	}
}

// draw returns a random number around the mean. The number is not divisible by 2, 3, 5 or
// 7, unless it is 5 or 7. Most programs make calls in a loop, so a divisible number could
// sample the same calls of the loop each time.
func draw(mean int, intN func(int) int) int {
	if mean <= 1 {
		return 1
	}
	spread := mean / 4
	n := mean - spread + intN(2*spread+1)
	switch {
	case n <= 5:
		return 5
	case n <= 7:
		return 7
	}
	for n%2 == 0 || n%3 == 0 || n%5 == 0 || n%7 == 0 {
		n++
	}
	return n
}
