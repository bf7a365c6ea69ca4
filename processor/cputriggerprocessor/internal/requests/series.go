// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package requests

import (
	"sync/atomic"
	"time"

	"go.opentelemetry.io/collector/pdata/pcommon"
)

const (
	// maxSeriesOfSource limits the remembered series of one resource.
	// maxSeries limits the remembered series of all resources. maxCells limits
	// the buckets of all series. Points that would exceed a limit are not
	// counted. A series that receives no point for TTL is forgotten.
	maxSeriesOfSource = 4096
	maxSeries         = 65536
	maxCells          = 4 << 20

	// usualInterval is the time span that a point is assumed to cover if its own times are
	// missing or implausible. It is the default export interval of SDKs.
	usualInterval = time.Minute
)

// streams remembers the cumulative series of a source.
type streams struct {
	series map[uint64]*series
	runs   map[runKey]*run
	// ended is the latest start time of a forgotten or refused run. A run that started
	// later is certainly new.
	ended pcommon.Timestamp
}

// run groups the series of a metric with the same start time, which usually come from one
// process. The workers of a service may send the same resource with different start times.
type run struct {
	runKey
	// first is the time of the first points. A series that appears later also began later,
	// so its whole count is new.
	first pcommon.Timestamp
	// fresh is true if the run began after the Intake was created. All
	// counts of a fresh run are new.
	fresh bool
	// lossy is true if a series was forgotten or refused. A series that appears
	// in a lossy run may be old.
	lossy  bool
	series int
}

type runKey struct {
	metric string
	start  pcommon.Timestamp
}

// series is the last point of a cumulative series.
type series struct {
	run        *run
	at         pcommon.Timestamp
	seen       time.Time
	count, sum float64
	layout     uint64   // hash of the bucket bounds; only buckets with the same bounds can be compared
	cells      []uint64 // bucket counts of a histogram of either kind
	scale      int32
	offset     int
}

// change describes how much of a cumulative point is new.
type change uint8

const (
	nothing change = iota // no part is new; the point is only a baseline for later points
	all                   // the whole point
	since                 // the difference from the last point
	refused               // there is no room to remember the point
	stale                 // the point is not later than the last point
)

// follow returns the series of a point, the new part of the point, and the time span of
// this part. count is the point's count, and cells is the point's number of buckets.
func (in *Intake) follow(s *source, key uint64, metric string, start, at pcommon.Timestamp, count float64, layout uint64, cells int) (*series, change, time.Duration) {
	if s.streams == nil {
		s.streams = &streams{series: map[uint64]*series{}, runs: map[runKey]*run{}}
	}
	st := s.streams
	key ^= mix(uint64(start) + 1)
	p := st.series[key]
	if p == nil {
		return in.addSeries(st, key, runKey{metric, start}, at, cells)
	}
	switch {
	case at <= p.at:
		return p, stale, 0
	case cells > len(p.cells) && in.cells.Load()+int64(cells-len(p.cells)) > maxCells:
		return p, refused, 0 // a later point includes this one
	case count < p.count: // the series restarted with the same start time
		return p, all, between(p.at, at)
	case layout != p.layout:
		return p, nothing, 0
	}
	return p, since, between(p.at, at)
}

// addSeries adds a new series. It also returns the part of the first point that counts,
// and the time span of this part. If a limit is reached, the series is nil.
func (in *Intake) addSeries(st *streams, key uint64, of runKey, at pcommon.Timestamp, cells int) (*series, change, time.Duration) {
	r, known := st.runs[of]
	if len(st.series) >= maxSeriesOfSource || in.series.Load() >= maxSeries || in.cells.Load()+int64(cells) > maxCells {
		if known {
			r.lossy = true
		} else {
			st.ended = max(st.ended, of.start)
		}
		return nil, refused, 0
	}
	if !known {
		r = &run{runKey: of, first: at, fresh: of.start > max(st.ended, pcommon.NewTimestampFromTime(in.began)-1)}
		st.runs[of] = r
	}
	in.series.Add(1)
	r.series++
	p := &series{run: r}
	st.series[key] = p
	if r.lossy || !r.fresh && at <= r.first {
		return p, nothing, 0
	}
	over := between(of.start, at)
	if at > r.first {
		over = min(over, between(r.first, at), usualInterval)
	}
	return p, all, over
}

// between returns the time between two points. It returns usualInterval if
// this time is implausible.
func between(from, to pcommon.Timestamp) time.Duration {
	if d := time.Duration(to - from); from != 0 && to > from && d <= time.Hour {
		return d
	}
	return usualInterval
}

// keep stores a point as the last point of its series.
func (in *Intake) keep(p *series, at pcommon.Timestamp, count, sum float64, b *buckets, now time.Time) {
	p.at, p.count, p.sum, p.layout, p.seen, p.scale, p.offset = at, count, sum, b.layout, now, b.scale, b.offset
	cells := b.cells
	if n := cells.Len(); n != len(p.cells) {
		in.cells.Add(int64(n - len(p.cells)))
		if n <= cap(p.cells) && n >= cap(p.cells)/2 {
			p.cells = p.cells[:n]
		} else {
			p.cells = make([]uint64, n)
		}
	}
	for n := range p.cells {
		p.cells[n] = cells.At(n)
	}
}

// sweepStreams forgets series that have received no point for TTL.
func (in *Intake) sweepStreams(s *source, now time.Time) {
	for key, p := range s.streams.series {
		if now.Sub(p.seen) > in.cfg.TTL {
			in.series.Add(-1)
			in.cells.Add(-int64(len(p.cells)))
			delete(s.streams.series, key)
			r := p.run
			r.lossy = true
			if r.series--; r.series == 0 {
				delete(s.streams.runs, r.runKey)
				s.streams.ended = max(s.streams.ended, r.start)
			}
		}
	}
}

func (in *Intake) forgetStreams(s *source) {
	if s.streams == nil {
		return
	}
	for _, p := range s.streams.series {
		in.series.Add(-1)
		in.cells.Add(-int64(len(p.cells)))
	}
	s.streams = nil
}

// gauges contains the last value of each series of a metric. These series count towards
// maxSeries.
type gauges struct {
	values map[uint64]gauge
	count  *atomic.Int64 // number of series of all sources
}

type gauge struct {
	value float64
	at    time.Time     // when the value arrived
	every time.Duration // time since the previous value; 0: there is no previous value
}

const (
	// A value is used for three times the interval between the last two points, but for at
	// least leastHold. A series with only one value has no known interval, so the value is
	// used for singleHold.
	leastHold  = 10 * time.Second
	singleHold = 5 * time.Minute
)

// put sets the value of a series. It returns false if there are too many series.
func (g *gauges) put(key uint64, value float64, now time.Time) bool {
	old, known := g.values[key]
	if !known {
		if len(g.values) >= maxSeriesOfSource || g.count.Load() >= maxSeries {
			return false
		}
		g.count.Add(1)
	}
	next := gauge{value: value, at: now}
	if known {
		next.every = max(now.Sub(old.at), time.Millisecond)
	}
	g.values[key] = next
	return true
}

// sum returns the sum of the values that are not outdated. ok is false if
// there is no such value.
func (g *gauges) sum(now time.Time) (sum float64, ok bool) {
	for key, v := range g.values {
		hold := singleHold
		if v.every > 0 {
			hold = max(3*v.every, leastHold)
		}
		if now.Sub(v.at) > hold {
			delete(g.values, key)
			g.count.Add(-1)
			continue
		}
		sum += v.value
		ok = true
	}
	return sum, ok
}

// release forgets all values.
func (g *gauges) release() {
	if g.count != nil {
		g.count.Add(-int64(len(g.values)))
	}
	*g = gauges{}
}
